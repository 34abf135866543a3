"""Compilation cache of the tests, kept in the user's cache directory between sessions.

JAX writes entries in place, and tests kill processes while they write. So each session has its own
directory with hard links to the kept entries, and adds its complete new entries at its end.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import platform
import shutil
import sys
import tempfile
import time
import zlib
from importlib import metadata

import zstandard

MAX_AGE_DAYS = 30
_VARIABLES = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "JAX_PLATFORMS")


@dataclasses.dataclass
class Cache:
    """Directories of a session and of the kept entries.

    Attributes:
      session: directory of this session, for JAX_COMPILATION_CACHE_DIR.
      kept: directory of the entries for this jaxlib, these flags and this processor.
    """

    session: str
    kept: pathlib.Path

    def close(self) -> None:
        """Keep the session's complete entries and remove its directory."""
        for entry in pathlib.Path(self.session).glob("*-cache"):
            target = self.kept / entry.name
            if not target.exists() and _is_complete(entry):
                os.replace(entry, target)
        shutil.rmtree(self.session, ignore_errors=True)


def open_cache() -> Cache | None:
    """Return a session's cache with links to the kept entries, or None without a writable home."""
    root = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    kept = root / "bertjax" / "tests" / _key()
    try:
        kept.mkdir(parents=True, exist_ok=True)
        session = tempfile.mkdtemp(prefix="session-", dir=kept.parent)
    except OSError:
        return None
    oldest = time.time() - MAX_AGE_DAYS * 86_400
    for entry in kept.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another session has deleted it
            if entry.stat().st_mtime < oldest:
                entry.unlink()
            else:
                os.link(entry, os.path.join(session, entry.name))
    for other in kept.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other not in (kept, pathlib.Path(session)) and other.stat().st_mtime < oldest:
                shutil.rmtree(other, ignore_errors=True)
    return Cache(session, kept)


def _key() -> str:
    """Return a digest of versions, flags and processor, on which compiled code depends."""
    parts = [metadata.version("jaxlib"), sys.version, platform.machine()]
    parts += [os.environ.get(name, "") for name in _VARIABLES]
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        parts += sorted({line for line in lines if line.startswith(("flags", "Features"))})
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _is_complete(entry: pathlib.Path) -> bool:
    """Return whether an entry decompresses; JAX uses zstandard where it is installed, else zlib."""
    content = entry.read_bytes()
    try:
        zstandard.ZstdDecompressor().decompress(content)
    except zstandard.ZstdError:
        try:
            zlib.decompress(content)
        except zlib.error:
            return False
    return True
