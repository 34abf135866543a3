"""What JAX is told before it looks for devices."""

import importlib.metadata
import importlib.util
import logging
import os
import pathlib

from etils import epath

from data_pipelines.paths import is_remote

_log = logging.getLogger("bertjax")


def skip_missing_tpu() -> None:
    """Keeps JAX from looking for TPUs where there are none.

    With the extra `tpu`, whose compiler `preflight` needs, it would look for them all the same, and
    their library would complain at length.
    """
    import jax

    from bertjax.mesh import distributed

    told = jax.config.values["jax_platforms"]  # by the user, or by JAX where it has seen the chips
    if told or distributed.on_tpu() or not importlib.util.find_spec("libtpu"):
        return
    plugins = [plugin.name for plugin in importlib.metadata.entry_points(group="jax_plugins")]
    if all("cuda" in name for name in plugins):  # others are better left to JAX
        jax.config.update("jax_platforms", "cuda,cpu" if plugins else "cpu")


def enable_compilation_cache(workdir: epath.PathLike | None = None) -> None:
    """Keeps compiled programs for the next run: where JAX_COMPILATION_CACHE_DIR says, or the user's
    cache, or the workdir where that is in a bucket or of several hosts.

    Machines of a pod come and go, and of several hosts JAX lets only the first one write, so that
    the others find no program but in a place that all of them see. Where some hosts found one and
    others had to compile it, GPUs, which measure kernels together, would wait for ever; so several
    hosts without a common place keep none. To be called after the hosts have come together.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"]:
        return
    if workdir is not None and (is_remote(workdir) or jax.process_count() > 1):
        place = os.fspath(epath.Path(workdir) / "compiled")
        if is_remote(workdir):  # XLA's own files beside ours can only be local
            jax.config.update("jax_persistent_cache_enable_xla_caches", "none")
    elif jax.process_count() > 1:
        return
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        place = os.path.join(cache, "bertjax", "compiled")
        if not _is_writable(pathlib.Path(place)):
            _log.info("%s cannot be written to, so compiled programs are not kept.", place)
            return
    jax.config.update("jax_compilation_cache_dir", place)
    # By itself JAX keeps what took a second; of small models that is nothing, and what they are
    # asked takes not much longer.
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _is_writable(place: pathlib.Path) -> bool:
    if not place.is_absolute():  # a user without a home
        return False
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK | os.X_OK)
