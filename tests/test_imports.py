"""Layers of packages: a package imports from its own modules and from the layers below it.

Imports inside functions and for types alone count like any other import.
"""

import ast
import functools
import graphlib
import pathlib
import re
import sys
import tomllib
from collections.abc import Iterable

import pytest

ROOT = pathlib.Path(__file__).parent.parent

# From the lowest layer up. A package's modules outside all of these are its base.
LAYERS = {
    "bertjax": (
        "mesh",
        "model",
        "config",
        "steps",
        "checkpointing",
        "formats",
        "html",
        "tasks",
        "workdir",
        "training",
        "inference",
        "preflight",
        "sweeps",
        "reports",
        "serving",
        "cli",
    ),
    "data_pipelines": ("text", "vocabulary", "corpus", "pretraining", "finetuning"),
}
BASE = {
    "bertjax": {"errors", "faults", "version"},
    "data_pipelines": {"errors", "fields", "parallel", "parsing", "paths", "rampup", "ranges"},
}
# The entry points of the shell and of Python may import from every layer.
ENTRY_POINTS = {"bertjax.__main__", "bertjax.interface"}

DISTRIBUTIONS = {"tensorflow": "tensorflow_cpu", "orbax": "orbax_checkpoint"}
JAX_ONLY = tuple(f"bertjax.{package}" for package in LAYERS["bertjax"][:5])
MAX_LINES = 400
MAX_MODULES = 14  # of a package; `cli` has one module a subcommand


def files(*folders: str) -> list[pathlib.Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found
    return found


def name(path: pathlib.Path) -> str:
    """The dotted name of a module or package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in files("bertjax", "data_pipelines")}


@functools.cache
def imported(path: pathlib.Path, *, at_start: bool = False) -> set[str]:
    """What the file imports, as dotted names: `a.b` for `import a.b` and `from a import b`.

    With `at_start` only what is imported when the file itself is.
    """
    found: set[str] = set()
    left: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while left:
        node = left.pop()
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path} imports by a relative name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def within(imports: Iterable[str], *packages: str) -> set[str]:
    """The imports that lie in one of the packages."""
    return {
        each
        for each in imports
        if any(each == package or each.startswith(package + ".") for package in packages)
    }


def modules_imported(path: pathlib.Path) -> set[str]:
    """Our own modules that the file imports, itself or something in them."""
    found = set()
    for each in within(imported(path), *LAYERS):
        found.add(each if each in MODULES else each.rpartition(".")[0])
    return found


def package_imports(module: str) -> set[str]:
    """The modules of its own package that a module imports."""
    return within(modules_imported(MODULES[module]), module.partition(".")[0])


def layer(module: str) -> int:
    """Return the layer of a module, 0 for the base."""
    package, _, rest = module.partition(".")
    name = rest.partition(".")[0]
    return LAYERS[package].index(name) + 1 if name in LAYERS[package] else 0


def forbidden(modules: Iterable[str], *packages: str, at_start: bool = False) -> dict[str, set]:
    """What of the packages the modules import, by module; those that import none are left out."""
    found = {
        each: within(imported(MODULES[each], at_start=at_start), *packages) for each in modules
    }
    return {module: names for module, names in found.items() if names}


@pytest.mark.parametrize("package", LAYERS)
def test_layers_list_every_package(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
    ground = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    assert folders == set(LAYERS[package])
    assert {each for each in ground if f"{package}.{each}" not in ENTRY_POINTS} == BASE[package]


def test_imports_point_down() -> None:
    above = {
        module: higher
        for module in MODULES.keys() - ENTRY_POINTS - {"bertjax"}
        if (higher := {each for each in package_imports(module) if layer(each) > layer(module)})
    }
    assert not above


def test_imports_have_no_cycles() -> None:
    graph = {module: modules_imported(MODULES[module]) - {module} for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_data_pipelines_import_neither_jax_nor_bertjax() -> None:
    others = ("jax", "jaxlib", "flax", "optax", "orbax", "bertjax")
    assert not forbidden(within(MODULES, "data_pipelines"), *others)


def test_model_and_steps_import_no_tensorflow_and_no_tokenizer() -> None:
    modules = within(MODULES, *JAX_ONLY)
    assert not forbidden(modules, "tensorflow", "tensorflow_datasets")
    assert not forbidden(modules, "tokenizers", "sentencepiece")
    assert not forbidden(
        modules, *(f"data_pipelines.{package}" for package in LAYERS["data_pipelines"])
    )


def test_only_models_import_flax() -> None:
    models = within(MODULES, "bertjax.model")
    models |= {each for each in within(MODULES, "bertjax.tasks") if each.endswith(".model")}
    assert not forbidden(MODULES.keys() - models, "flax")


def test_only_html_imports_jinja2_and_matplotlib_and_inside_functions_only() -> None:
    libraries = "jinja2", "markupsafe", "matplotlib"
    assert not forbidden(MODULES.keys() - within(MODULES, "bertjax.html"), *libraries)
    assert not forbidden(MODULES, *libraries, at_start=True)
    assert not forbidden(MODULES, "matplotlib.pyplot")  # global state


def test_tensorflow_is_imported_inside_functions_only() -> None:
    """TensorFlow takes seconds to import, in every process at every start."""
    assert not forbidden(MODULES, "tensorflow", "tensorflow_datasets", at_start=True)


def test_packages_import_neither_experiments_nor_tests() -> None:
    assert not forbidden(MODULES, "experiments", "tests")


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=name)
def test_configurations_are_plain_dictionaries(path: pathlib.Path) -> None:
    at_start = imported(path, at_start=True)
    presets = {"bertjax.config.presets.finetuning_config"}
    libraries = ("bertjax", "data_pipelines", "jax", "flax", "tensorflow")
    assert not within(at_start - presets, *libraries)


def test_dependencies_are_the_imported_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["beam"], *extras["filters"], *extras["serve"]]
    names = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in asked}
    found = {each.partition(".")[0] for path in MODULES.values() for each in imported(path)}
    found -= {"torch", *LAYERS, *sys.stdlib_module_names}  # torch is for files that it alone reads
    assert {DISTRIBUTIONS.get(name, name) for name in found} == names


def test_files_are_at_most_max_lines_long() -> None:
    lines = {
        name(path): len(path.read_text("utf-8").splitlines())
        for path in files("bertjax", "data_pipelines", "experiments")
    }
    assert not {module: count for module, count in lines.items() if count > MAX_LINES}


def test_packages_have_at_most_max_modules() -> None:
    counts = {path.parent: 0 for path in files("bertjax", "data_pipelines")}
    for path in files("bertjax", "data_pipelines"):
        counts[path.parent] += path.name != "__init__.py"
    counts.pop(ROOT / "bertjax" / "cli")
    assert not {path: count for path, count in counts.items() if count > MAX_MODULES}


def test_package_imports_its_interface_lazily() -> None:
    assert within(imported(MODULES["bertjax"], at_start=True), *LAYERS) == {
        "bertjax.version.__version__"
    }


def test_init_files_hold_a_docstring_only() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != "bertjax":
            docstring, *rest = ast.parse(path.read_text("utf-8")).body
            assert isinstance(docstring, ast.Expr), module
            assert len(ast.literal_eval(docstring.value).strip().splitlines()) <= 2, module
            assert not rest, module
