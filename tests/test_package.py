"""The wheel: every module, the configurations, and nothing else of the repository."""

import pathlib
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import process_environment

from bertjax.config.config_file import builtin_configs

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("bertjax", "data_pipelines")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> pathlib.Path:
    """Directory with the content of the wheel, built from a copy: the build writes files there."""
    copy, target = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("installed")
    for name in (*PACKAGES, "experiments", "tests"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", "dist", "."]
    subprocess.run(pip, cwd=copy, check=True)
    (wheel,) = (copy / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def test_wheel_holds_modules_and_configurations_only(installed) -> None:
    modules = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed" or path.parent.name == "templates"
    }
    configurations = {f"bertjax/experiments/{name}.py" for name in builtin_configs()}
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    metadata = {name for name in files if ".dist-info/" in name}
    assert files - metadata == modules | configurations
    assert any(name.endswith("/LICENSE") for name in metadata)


def test_installed_package_runs_its_configurations(installed, tmp_path) -> None:
    program = (
        "import sys, bertjax.config.config_file as file; from bertjax.cli.main import main\n"
        "print(file.__file__)\n"
        "print(all(file.run_config_file(name) for name in file.builtin_configs()))\n"
        "sys.exit(main(['config']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=process_environment() | {"PYTHONPATH": str(installed)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    file, ran, *listed = done.stdout.splitlines()
    assert file.startswith(str(installed)) and ran == "True"
    assert [line.split()[0] for line in listed] == list(builtin_configs())
