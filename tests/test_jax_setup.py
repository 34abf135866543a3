"""The compilation cache and the platform of commands."""

import fnmatch
import importlib.util
import os
import pathlib
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest
from conftest import bertjax, process_environment
from toy_tasks import EXPERIMENTS

from bertjax.cli import jax_setup
from bertjax.cli.jax_setup import choose_platforms, enable_compilation_cache
from bertjax.training.metrics_file import read_metrics

PRETRAIN = EXPERIMENTS / "pretraining.py"


@pytest.mark.parametrize(
    ("compiles_only", "plugins", "files", "expected"),
    [
        (False, [], [], "cpu"),
        (False, ["xla_cuda12"], [], "cpu"),
        (False, ["xla_cuda12"], ["/dev/nvidia0"], "cuda,cpu"),
        (False, [], ["/dev/nvidia0"], "cpu"),
        (False, [], ["/dev/nvidia0", "/dev/accel0"], None),
        (False, [], ["/dev/vfio/vfio"], None),  # JAX looks for a TPU's PCI id
        (False, ["rocm"], [], None),
        (True, ["rocm"], ["/dev/vfio/0"], "cpu"),
    ],
)
def test_choose_platforms_skips_a_missing_tpu(
    compiles_only: bool, plugins: list, files: list, expected: str | None, monkeypatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(
        jax_setup.importlib.metadata,
        "entry_points",
        lambda group: [SimpleNamespace(name=name) for name in plugins],
    )
    monkeypatch.setattr(jax_setup.glob, "glob", lambda path: fnmatch.filter(files, path))
    monkeypatch.setattr(jax_setup.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(jax_setup, "sys", SimpleNamespace(modules={}))
    choose_platforms(compiles_only)
    assert os.environ.get("JAX_PLATFORMS") == expected


@pytest.fixture
def no_cache_directory():
    """JAX without a compilation cache directory, whatever the environment sets."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("workdir", "num_processes", "expected"),
    [
        (None, 1, "CACHE/bertjax/compiled"),
        ("run", 1, "CACHE/bertjax/compiled"),
        ("gs://bucket/run", 1, "gs://bucket/run/compiled"),
        ("gs://bucket/run", 16, "gs://bucket/run/compiled"),
        ("run", 16, "run/compiled"),
        (None, 16, None),
    ],
)
def test_compilation_cache_is_visible_to_all_processes(
    workdir: str | None,
    num_processes: int,
    expected: str | None,
    no_cache_directory,
    tmp_path,
    monkeypatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "process_count", lambda: num_processes)
    before = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    enable_compilation_cache(workdir)
    jax.config.update("jax_persistent_cache_enable_xla_caches", before)
    expected = expected and expected.replace("CACHE", str(tmp_path))
    assert jax.config.values["jax_compilation_cache_dir"] == expected


def test_compilation_cache_is_off_without_a_writable_directory(
    no_cache_directory, tmp_path, monkeypatch
) -> None:
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", pathlib.Path("relative")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        enable_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] is None


@pytest.mark.minutes
def test_cached_program_gives_the_same_results(corpus, tmp_path) -> None:
    environment = process_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # however busy the machine is
    del environment["JAX_COMPILATION_CACHE_DIR"]
    fields = {"model.vocab_size": 128, "model.num_hidden_layers": 1, "data.workers": 1}
    fields |= {"steps": 3, "log_every": 1}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    entries, losses = [], []
    for run in ("first", "second"):
        command = [sys.executable, "-m", "bertjax", "train", "--workdir", tmp_path / run]
        command += ["--config", f"{PRETRAIN}:smoke,data={corpus}", *flags]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        entries.append(sorted(path.name for path in (tmp_path / "cache").rglob("*-cache")))
        losses.append([line["loss"] for line in read_metrics(tmp_path / run)])
    assert entries[0] and entries[0] == entries[1]
    assert losses[0] == losses[1]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `tpu`")
def test_missing_tpu_logs_nothing() -> None:
    done = bertjax("inspect", "--params", "--config", f"{PRETRAIN}:smoke")
    assert done.returncode == 0 and done.stderr == ""
