"""The map of the house: which room stands on which, and what each may know.

A room imports from its own and from the floors below it. Imports inside functions and for types
alone count as any other.
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

# From the ground up. The files of a package that lie in no room are its ground.
FLOORS = {
    "bertjax": (
        "mesh",  # the mesh and its rules, hosts, feeding devices
        "model",  # encoder, heads, layers, losses, attention
        "training",  # configuration, step, programs, optimiser, checkpoints
        "formats",  # models as others write them down
        "pages",  # how a page is written that needs nothing else
        "tasks",  # what is learned, a file or a folder a task
        "runs",  # what a command does
        "sweeps",  # many short runs, trained several at once
        "preflight",  # will it fit, how fast
        "reports",  # pages on runs
        "serving",  # a model behind HTTP
        "cli",  # one file a verb
    ),
    "data_pipelines": (
        "text",  # sources to documents, sentences
        "vocabulary",  # tokenisation, training of vocabularies
        "corpus",  # documents to token shards
        "pretraining",  # token shards to batches
        "finetuning",  # examples to batches
    ),
}
GROUND = {
    "bertjax": {"errors", "version"},
    "data_pipelines": {"errors", "fields", "growth", "parallel", "parsing", "paths"},
}
# The doors, of the shell and of Python: they may know the top floor.
ENTRANCES = {"bertjax.__main__", "bertjax.interface"}

CALLED_OTHERWISE = {"tensorflow": "tensorflow_cpu", "orbax": "orbax_checkpoint"}  # to install
WHERE_ONLY_JAX_IS = ("bertjax.mesh", "bertjax.model", "bertjax.training")
MOST_LINES = 400


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
    for each in within(imported(path), *FLOORS):
        found.add(each if each in MODULES else each.rpartition(".")[0])
    return found


def neighbours(module: str) -> set[str]:
    """The modules of its own package that a module imports."""
    return within(modules_imported(MODULES[module]), module.partition(".")[0])


def floor(module: str) -> int:
    """0 for the ground, then from 1 up."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return FLOORS[package].index(room) + 1 if room in FLOORS[package] else 0


def forbidden(modules: Iterable[str], *packages: str, at_start: bool = False) -> dict[str, set]:
    """What of the packages the modules import, by module; those that import none are left out."""
    found = {
        each: within(imported(MODULES[each], at_start=at_start), *packages) for each in modules
    }
    return {module: names for module, names in found.items() if names}


@pytest.mark.parametrize("package", FLOORS)
def test_every_file_is_in_a_room_or_on_the_ground(package: str) -> None:
    folders = {path.parent.name for path in (ROOT / package).glob("*/*.py")}
    ground = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    assert folders == set(FLOORS[package])
    assert {each for each in ground if f"{package}.{each}" not in ENTRANCES} == GROUND[package]


def test_a_room_stands_on_those_below() -> None:
    above = {
        module: higher
        for module in MODULES.keys() - ENTRANCES - {"bertjax"}
        if (higher := {each for each in neighbours(module) if floor(each) > floor(module)})
    }
    assert not above


def test_no_import_leads_back_to_where_it_came_from() -> None:
    graph = {module: modules_imported(MODULES[module]) - {module} for module in MODULES}
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle


def test_data_pipelines_know_neither_jax_nor_the_framework() -> None:
    others = ("jax", "jaxlib", "flax", "optax", "orbax", "bertjax")
    assert not forbidden(within(MODULES, "data_pipelines"), *others)


def test_the_model_runs_where_only_jax_is() -> None:
    modules = within(MODULES, *WHERE_ONLY_JAX_IS)
    assert not forbidden(modules, "tensorflow", "tensorflow_datasets")
    assert not forbidden(modules, "tokenizers", "sentencepiece")
    assert not forbidden(modules, *(f"data_pipelines.{room}" for room in FLOORS["data_pipelines"]))


def test_only_models_know_flax() -> None:
    models = within(MODULES, "bertjax.model")
    models |= {each for each in within(MODULES, "bertjax.tasks") if each.endswith(".model")}
    assert not forbidden(MODULES.keys() - models, "flax")


def test_nobody_waits_for_tensorflow_who_does_not_call_it() -> None:
    """It takes seconds to import, on every host at every start."""
    assert not forbidden(MODULES, "tensorflow", "tensorflow_datasets", at_start=True)


def test_nothing_knows_the_experiments() -> None:
    assert not forbidden(MODULES, "experiments", "tests")


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.py")), ids=name)
def test_configurations_are_plain_dictionaries(path: pathlib.Path) -> None:
    at_start = imported(path, at_start=True)
    assert not within(at_start, "bertjax", "data_pipelines", "jax", "flax", "tensorflow")


def test_what_is_imported_is_asked_for_when_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["beam"], *extras["filters"], *extras["serve"]]
    names = {re.split(r"[^\w-]", each)[0].replace("-", "_") for each in asked}
    found = {each.partition(".")[0] for path in MODULES.values() for each in imported(path)}
    found -= {"torch", *FLOORS, *sys.stdlib_module_names}  # torch is for files that it alone reads
    assert {CALLED_OTHERWISE.get(name, name) for name in found} == names


def test_every_file_has_one_job() -> None:
    lines = {
        name(path): len(path.read_text("utf-8").splitlines())
        for path in files("bertjax", "data_pipelines", "experiments")
    }
    assert not {module: count for module, count in lines.items() if count > MOST_LINES}


def test_the_package_itself_opens_a_door_only_when_it_is_asked() -> None:
    assert within(imported(MODULES["bertjax"], at_start=True), *FLOORS) == {
        "bertjax.version.__version__"
    }


def test_a_package_says_what_it_is_and_no_more() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module != "bertjax":
            docstring, *rest = ast.parse(path.read_text("utf-8")).body
            assert isinstance(docstring, ast.Expr), module
            assert len(ast.literal_eval(docstring.value).strip().splitlines()) <= 2, module
            assert not rest, module
