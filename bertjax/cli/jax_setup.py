"""JAX settings of subcommands: platforms and the compilation cache."""

import glob
import importlib.util
import logging
import os
import pathlib
import sys
import types
from typing import TYPE_CHECKING

from data_pipelines.paths import is_remote

if TYPE_CHECKING:
    from etils import epath

_log = logging.getLogger("bertjax")

_CUDA_PLUGINS = {"xla_cuda12", "xla_cuda13"}


def has_device_files(*names: str) -> bool:
    """Return whether /dev has a file of an accelerator.

    Args:
      names: glob patterns of the beginnings of file names; those of TPUs and GPUs by default.
    """
    names = names or ("accel", "vfio/", "nvidia", "dxg")
    return any(glob.glob(f"/dev/{name}*") for name in names)


def choose_platforms(compiles_only: bool) -> None:
    """Keep JAX from looking for devices that are absent, and its plugins from warning of them.

    The extra `tpu`, whose compiler `preflight` needs, makes JAX look for TPUs everywhere, and
    libtpu then logs long warnings. Call this before JAX is imported. JAX_PLATFORMS has precedence.

    Args:
      compiles_only: the command compiles for accelerators, and leaves those that are here to
        others.
    """
    from importlib import metadata  # takes as long as the other imports of this module

    if compiles_only:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    plugins = {plugin.name for plugin in metadata.entry_points(group="jax_plugins")}
    if plugins - _CUDA_PLUGINS:  # of other devices: leave the choice to JAX
        return
    if has_device_files():
        # JAX finds TPUs by their PCI ids: decide only for a machine with GPUs and no TPU's files.
        has_gpus_alone = has_device_files("nvidia", "dxg") and not has_device_files(
            "accel[0-9]", "vfio/[0-9]"
        )
        if has_gpus_alone and importlib.util.find_spec("libtpu"):
            os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if plugins else "cpu")
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if not compiles_only:  # loading the libraries already logs warnings
        sys.modules.setdefault("jax_cuda12_plugin", None)  # type: ignore[arg-type]
        stub = types.ModuleType("jax_plugins.xla_cuda12")
        stub.initialize = lambda: None  # type: ignore[attr-defined]
        sys.modules.setdefault(stub.__name__, stub)


def enable_compilation_cache(workdir: "epath.PathLike | None" = None) -> None:
    """Enable JAX's persistent compilation cache.

    The cache is JAX_COMPILATION_CACHE_DIR, if that is set. Otherwise it is in the workdir, if that
    is in a bucket or the run has several processes, and else in the user's cache directory. In a
    multi-process run only process 0 writes to the cache, so all processes must see the directory.
    Several processes without a workdir have no cache: processes on GPUs autotune kernels together,
    and would hang if only some of them found a program. Call this after `jax.distributed` is
    initialized.

    Args:
      workdir: workdir of the run, if the command has one.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    if workdir is not None and (is_remote(workdir) or jax.process_count() > 1):
        cache_dir = os.path.join(workdir, "compiled")
        if is_remote(workdir):  # XLA writes its own caches only to local files
            jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    elif jax.process_count() > 1:
        return
    else:
        user_cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache_dir = os.path.join(user_cache, "bertjax", "compiled")
        if not _is_writable(pathlib.Path(cache_dir)):
            _log.info("%s is not writable: compiled programs are not kept.", cache_dir)
            return
    jax.config.update("jax_compilation_cache_dir", cache_dir)
    # JAX's default keeps only programs that take more than a second to compile. Those of a small
    # model take less, but most of the time of a prediction.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _is_writable(directory: pathlib.Path) -> bool:
    """Create a directory and return whether this process can write to it."""
    if not directory.is_absolute():  # the user has no home directory
        return False
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)
