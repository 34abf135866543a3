"""Layers of packages: a package imports from its own modules and from the layers below it.

Imports inside functions and for types alone count like any other import.
"""

import ast
import functools
import graphlib
import itertools
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
    "data_pipelines": {
        "errors",
        "fields",
        "hub",
        "libraries",
        "log",
        "model_settings",
        "parallel",
        "parsing",
        "paths",
        "rampup",
        "ranges",
        "schedules",
        "schema",
    },
}
# The entry points of the shell, of Python and of Beam may import from every layer.
ENTRY_POINTS = {"bertjax.__main__", "bertjax.beam", "bertjax.interface"}

# Extras whose packages modules import.
OPTIONAL_EXTRAS = ("beam", "wikipedia", "filters", "serve", "generation", "search", "onnx")
DISTRIBUTIONS = {"tensorflow": "tensorflow_cpu", "orbax": "orbax_checkpoint", "yaml": "PyYAML"}
DISTRIBUTIONS |= {"google": "protobuf"}
WITHOUT_DATA_LIBRARIES = tuple(f"bertjax.{package}" for package in LAYERS["bertjax"][:5])
MAX_LINES = 400
MAX_MODULES = 14  # of a package; `cli` has one module a subcommand


def files(*folders: str) -> list[pathlib.Path]:
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert paths
    return paths


def name(path: pathlib.Path) -> str:
    """Return the dotted name of a module or package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name(path): path for path in files("bertjax", "data_pipelines")}


@functools.cache
def imported(path: pathlib.Path, *, at_start: bool = False) -> set[str]:
    """Return the imports of a file: `a.b` for `import a.b` and `from a import b`.

    Args:
      path: the file.
      at_start: leave out imports inside functions and for types only.
    """
    names: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while nodes:
        node = nodes.pop()
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{path} imports by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def within(imports: Iterable[str], *packages: str) -> set[str]:
    """Return the imports of the packages or of something in them."""
    prefixes = tuple(f"{package}." for package in packages)
    return {name for name in imports if f"{name}.".startswith(prefixes)}


def modules_imported(path: pathlib.Path) -> set[str]:
    """Return the modules of this repository that a file imports, or imports from."""
    names = within(imported(path), *LAYERS)
    return {name if name in MODULES else name.rpartition(".")[0] for name in names}


def package_imports(module: str) -> set[str]:
    """Return the modules of its own package that a module imports."""
    return within(modules_imported(MODULES[module]), module.partition(".")[0])


def layer(module: str) -> int:
    """Return the layer of a module, 0 for the base."""
    package, name = f"{module}.".split(".")[:2]
    return LAYERS[package].index(name) + 1 if name in LAYERS[package] else 0


def forbidden(modules: Iterable[str], *packages: str, at_start: bool = False) -> dict[str, set]:
    """Return the imports of some packages by module, without the modules that have none."""
    return {
        module: names
        for module in modules
        if (names := within(imported(MODULES[module], at_start=at_start), *packages))
    }


@pytest.mark.parametrize("package", LAYERS)
def test_layers_list_every_package(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    assert folders == set(LAYERS[package])
    assert {name for name in modules if f"{package}.{name}" not in ENTRY_POINTS} == BASE[package]


@pytest.mark.seconds
def test_imports_point_down() -> None:
    above = {
        module: higher
        for module in MODULES.keys() - ENTRY_POINTS - {"bertjax"}
        if (higher := {name for name in package_imports(module) if layer(name) > layer(module)})
    }
    assert not above


@pytest.mark.seconds
def test_imports_have_no_cycles() -> None:
    graph = {module: modules_imported(MODULES[module]) - {module} for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the cycle


def test_data_pipelines_import_neither_jax_nor_bertjax() -> None:
    others = ("jax", "jaxlib", "flax", "optax", "orbax", "bertjax")
    assert not forbidden(within(MODULES, "data_pipelines"), *others)


def test_model_and_steps_import_no_tensorflow_and_no_tokenizer() -> None:
    modules = within(MODULES, *WITHOUT_DATA_LIBRARIES)
    assert not forbidden(modules, "tensorflow", "tensorflow_datasets")
    assert not forbidden(modules, "tokenizers", "sentencepiece")
    assert not forbidden(
        modules, *(f"data_pipelines.{package}" for package in LAYERS["data_pipelines"])
    )


@pytest.mark.seconds
def test_only_models_import_flax() -> None:
    models = within(MODULES, "bertjax.model")
    models |= {name for name in within(MODULES, "bertjax.tasks") if name.endswith(".model")}
    assert not forbidden(MODULES.keys() - models, "flax")


@pytest.mark.seconds
def test_only_html_imports_jinja2_and_matplotlib_and_inside_functions_only() -> None:
    libraries = "jinja2", "markupsafe", "matplotlib"
    assert not forbidden(MODULES.keys() - within(MODULES, "bertjax.html"), *libraries)
    assert not forbidden(MODULES, *libraries, at_start=True)
    assert not forbidden(MODULES, "matplotlib.pyplot")  # global state


@pytest.mark.seconds
def test_tensorflow_is_imported_inside_functions_only() -> None:
    """TensorFlow takes seconds to import, in every process at every start."""
    assert not forbidden(MODULES, "tensorflow", "tensorflow_datasets", at_start=True)


@pytest.mark.seconds
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
    optional = (extras[name] for name in OPTIONAL_EXTRAS)
    required: Iterable[str] = itertools.chain(project["dependencies"], *optional)
    required = (text for text in required if "sys_platform !=" not in text)  # of other machines
    distributions = {re.split(r"[^\w-]", text)[0].replace("-", "_") for text in required}
    packages = {name.partition(".")[0] for path in MODULES.values() for name in imported(path)}
    packages -= {"torch", *LAYERS, *sys.stdlib_module_names}  # torch reads pickled weights only
    assert {DISTRIBUTIONS.get(package, package) for package in packages} == distributions


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
            docstring, *statements = ast.parse(path.read_text("utf-8")).body
            assert isinstance(docstring, ast.Expr), module
            assert len(ast.literal_eval(docstring.value).strip().splitlines()) <= 2, module
            assert not statements, module
