"""Tests of the compilation cache that sessions of tests share."""

import os
import pathlib
import subprocess
import sys

import pytest

# A session that compiles one program.
SESSION = """
import os
import compile_cache
cache = compile_cache.open_cache()
os.environ["JAX_COMPILATION_CACHE_DIR"] = cache.session
import jax
jax.jit(lambda x: x + 1)(1.0)
cache.close()
"""


READS = """
import jax
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
jax.jit(lambda x: x + 1)(1.0)
assert "/jax/compilation_cache/cache_hits" in hits, hits
"""


def run_session(cache_home: pathlib.Path, program: str = SESSION) -> list[str]:
    """Run a session in a process of its own and return the names of the kept entries."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache_home)}
    environment["PYTHONPATH"] = str(pathlib.Path(__file__).parent)
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    return sorted(path.name for path in cache_home.rglob("*-cache"))


@pytest.mark.slow
def test_second_session_reads_the_programs_of_the_first(tmp_path) -> None:
    entries = run_session(tmp_path)
    reading = SESSION.replace("import jax\njax.jit(lambda x: x + 1)(1.0)\n", READS)
    assert entries and entries == run_session(tmp_path, reading)


@pytest.mark.slow
def test_close_drops_entries_that_were_cut_off(tmp_path) -> None:
    truncate = """
(entry,) = [name for name in os.listdir(cache.session) if name.endswith("-cache")]
os.truncate(os.path.join(cache.session, entry), 100)
cache.close()
"""
    assert not run_session(tmp_path, SESSION.replace("cache.close()", truncate))
