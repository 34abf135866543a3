"""JAX settings that commands make before JAX looks for devices."""

import importlib.metadata
import importlib.util
import logging
import os
import pathlib

from etils import epath

from data_pipelines.paths import is_remote

_log = logging.getLogger("bertjax")


def skip_missing_tpu() -> None:
    """Keep JAX from looking for TPUs on a machine without one.

    The extra `tpu`, whose compiler `preflight` needs, makes JAX look for TPUs everywhere, and
    libtpu then logs long warnings.
    """
    import jax

    from bertjax.mesh import distributed

    platforms = jax.config.values["jax_platforms"]  # set by the user, or by JAX on a TPU machine
    if platforms or distributed.on_tpu() or not importlib.util.find_spec("libtpu"):
        return
    plugins = [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]
    if all("cuda" in name for name in plugins):  # JAX knows best about other plugins
        jax.config.update("jax_platforms", "cuda,cpu" if plugins else "cpu")


def enable_compilation_cache(workdir: epath.PathLike | None = None) -> None:
    """Keep compiled programs for the next run.

    The cache lies in JAX_COMPILATION_CACHE_DIR, if that is set. Otherwise it lies in the workdir
    for a bucket or several processes, and in the user's cache directory else. In a multi-process
    run JAX lets only process 0 write, so the directory must be visible to all processes. Without
    such a directory nothing is kept: GPUs, which autotune kernels together, would hang if only some
    processes found a program. Call this after `jax.distributed` is initialized.

    Args:
      workdir: workdir of the run, if the command has one.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    if workdir is not None and (is_remote(workdir) or jax.process_count() > 1):
        place = os.fspath(epath.Path(workdir) / "compiled")
        if is_remote(workdir):  # XLA writes its own caches only to local files
            jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    elif jax.process_count() > 1:
        return
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        place = os.path.join(cache, "bertjax", "compiled")
        if not _is_writable(pathlib.Path(place)):
            _log.info("%s is not writable: compiled programs are not kept.", place)
            return
    jax.config.update("jax_compilation_cache_dir", place)
    # JAX's default keeps programs that took a second to compile, which excludes all of a small
    # model, whose predictions take not much longer.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _is_writable(place: pathlib.Path) -> bool:
    if not place.is_absolute():  # the user has no home directory
        return False
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK)
