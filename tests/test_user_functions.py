"""Tests of functions that a user names as MODULE:FUNCTION."""

import importlib
import sys

import pytest

from bertjax.config.user_functions import find_function, import_function
from data_pipelines.errors import InputError


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """Name of a module in the current directory, which no test has imported."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    name = f"functions_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("import json\n\n\ndef f():\n    return 3\n\n\nlimit = 1\n")
    importlib.invalidate_caches()
    return name


def test_function_is_imported_only_where_a_user_names_it(module) -> None:
    with pytest.raises(InputError, match=f"^metrics='{module}:f': not imported.*--config.metrics="):
        find_function("metrics", f"{module}:f")
    assert module not in sys.modules
    assert import_function("metrics", f"{module}:f")() == 3
    assert find_function("metrics", f"{module}:f")() == 3


def test_import_function_rejects_names_of_no_function(module) -> None:
    for name in ("", "f", ":f", f"{module}:", f"{module}.f", f".{module}:f", f"{module}:f()"):
        with pytest.raises(InputError, match=r"^loss=.*: not a function. Write MODULE:FUNCTION"):
            import_function("loss", name)
    for name in (f"{module}:g", f"{module}:limit"):
        with pytest.raises(InputError, match=f"^loss={name}: {module} has no function"):
            import_function("loss", name)
    with pytest.raises(InputError, match=r"there is no module no\.such"):
        import_function("loss", "no.such:f")


def test_import_function_shows_errors_of_the_module(tmp_path, module) -> None:
    (tmp_path / f"{module}_broken.py").write_text("import no_such_library")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        import_function("loss", f"{module}_broken:f")


def test_functions_of_the_process_cannot_be_named_by_a_file() -> None:
    for name in ("os:system", "builtins:exec", "json:loads"):
        with pytest.raises(InputError, match=f"^metrics='{name}': not imported"):
            find_function("metrics", name)
