"""Imports point one way: experiments -> nothing, cli -> everything, data_pipelines -> no jax."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PURE = ["model", "layers", "heads", "dropout", "losses", "step", "sharding", "allocator"]
PURE += ["attention", "plain_attention", "cpu_attention", "fused_attention", "optimizer", "flops"]


def imported(path: pathlib.Path) -> set[str]:
    """Every dotted name that the file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def offending(path: pathlib.Path, *packages: str) -> set[str]:
    """The imports of the file that lie in one of the packages."""
    return {
        name
        for name in imported(path)
        if any(name == package or name.startswith(package + ".") for package in packages)
    }


def files(*patterns: str) -> list[pathlib.Path]:
    found = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
    assert found, f"no file matches {patterns}"
    return found


@pytest.mark.parametrize("path", files("data_pipelines/**/*.py"), ids=lambda path: path.stem)
def test_data_pipelines_know_neither_jax_nor_the_framework(path: pathlib.Path) -> None:
    assert not offending(path, "jax", "flax", "optax", "orbax", "bertjax", "experiments")


@pytest.mark.parametrize("name", PURE)
def test_the_model_side_runs_where_only_jax_is(name: str) -> None:
    path = ROOT / "bertjax" / f"{name}.py"
    assert not offending(path, "tensorflow", "tokenizers", "sentencepiece", "data_pipelines")


@pytest.mark.parametrize("path", files("bertjax/**/*.py"), ids=lambda path: path.stem)
def test_only_the_model_and_its_heads_know_flax(path: pathlib.Path) -> None:
    if path.stem not in ("model", "heads"):
        assert not offending(path, "flax")


@pytest.mark.parametrize("path", files("bertjax/**/*.py"), ids=lambda path: path.stem)
def test_nothing_imports_the_command_line_or_the_experiments(path: pathlib.Path) -> None:
    if path.stem != "__main__":
        assert not offending(path, "bertjax.cli.main", "experiments")


@pytest.mark.parametrize("path", files("experiments/*.py"), ids=lambda path: path.stem)
def test_configurations_are_plain_dictionaries(path: pathlib.Path) -> None:
    assert not offending(path, "bertjax", "data_pipelines", "jax", "tensorflow")


def test_every_file_has_one_job() -> None:
    for path in files("bertjax/**/*.py", "data_pipelines/**/*.py", "experiments/**/*.py"):
        lines = len(path.read_text("utf-8").splitlines())
        assert lines <= 500, f"{path.relative_to(ROOT)} has {lines} lines"
