"""Settings and fixtures of all tests: real data, a small corpus, commands."""

import gc
import importlib.metadata
import json
import lzma
import os
import pathlib
import socket
import subprocess
import sys
import zlib
from collections.abc import Iterator
from typing import Any

# Set before JAX starts: eight devices on one CPU, for the tests of meshes, and fewer optimizations.
# Most programs run for a moment only, and compile in a third of the time.
XLA_FLAGS = [
    "--xla_force_host_platform_device_count=8",
    # Time after which a device that waits for the others ends the process; all may share one core.
    "--xla_cpu_collective_call_terminate_timeout_seconds=1200",
]
# XLA ends the process at a flag that it has removed.
if tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    XLA_FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(XLA_FLAGS))
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# XLA's own cache is a path below the session's directory, which would be part of every entry's key.
os.environ.setdefault("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none")

import compile_cache

# Workers of pytest-xdist inherit the variable and open no cache.
CACHE = None if "JAX_COMPILATION_CACHE_DIR" in os.environ else compile_cache.open_cache()
if CACHE:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.session

import hypothesis
import numpy as np
import pytest
from cloud_tool_stubs import Laptop
from pretraining_corpora import write_corpus

from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.parallel import usable_cores
from data_pipelines.pretraining import sequences
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

# Traced programs are many long-lived objects. Collecting garbage at the default threshold takes a
# sixth of a worker's time.
gc.set_threshold(100_000)

# No deadline: the time of an example depends on what else the machine does. The examples are those
# of every run, so that a change fails only for its own faults; `make test-all` draws new ones.
ANY_MACHINE = hypothesis.settings(
    deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("random", ANY_MACHINE)
hypothesis.settings.register_profile("fixed", ANY_MACHINE, derandomize=True)
hypothesis.settings.load_profile("fixed")

MAX_MEMORY_MAPS = 30_000  # of a worker, at the end of a module
LONG = 1800  # seconds; longer than any wait of a test, on any machine

# Interpreters, separated by colons, of environments with torch and a version of `transformers`.
PEERS = [python for python in os.environ.get("BERTJAX_PEERS", "").split(":") if python]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return one worker a core, and two more where slow tests wait for other processes."""
    return usable_cores() + (0 if "not slow" in config.option.markexpr else 2)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that selects a part of the tests."""
    parser.addoption("--part", metavar="K/N", help="run the K-th of N parts of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the part, which their names decide."""
    if not (part := config.getoption("--part")):
        return
    number, count = map(int, part.split("/"))
    others = [t for t in items if zlib.crc32(t.nodeid.encode()) % count != number - 1]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


def pytest_sessionfinish() -> None:
    """Keep compiled programs for the next session; only the controller has a cache."""
    if CACHE:
        CACHE.close()


@pytest.fixture(scope="module", autouse=True)
def free_compiled_programs() -> Iterator[None]:
    """Free compiled programs after a module if they have many of the process's memory maps.

    Linux allows a process 65,530 (vm.max_map_count). A worker's programs have as many after two
    thousand tests, and XLA crashes at the next one.
    """
    yield
    maps = pathlib.Path("/proc/self/maps")
    num_maps = maps.read_bytes().count(b"\n") if maps.exists() else 0
    if "jax" in sys.modules and num_maps > MAX_MEMORY_MAPS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """Directory of real data sets, from BERTJAX_DATA; without it the test is skipped."""
    path = os.environ.get("BERTJAX_DATA")
    if not path:
        pytest.skip("needs real data: set BERTJAX_DATA to a directory of data sets")
    if not pathlib.Path(path).is_dir():
        pytest.fail(f"BERTJAX_DATA={path}: not a directory")
    return pathlib.Path(path)


@pytest.fixture(scope="session")
def tokenization_golden() -> dict:
    """Output of another implementation, see make_tokenization.py; "unassigned" is a set."""
    path = pathlib.Path(__file__).parent / "goldens" / "tokenization.json.xz"
    golden = json.loads(lzma.decompress(path.read_bytes()))
    ranges = golden["unassigned"]
    golden["unassigned"] = {c for first, last in ranges for c in range(first, last + 1)}
    return golden


def in_test_all(*cases: Any) -> list[Any]:
    """Return cases of a parametrized test that only `make test-all` runs."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.minutes)
        for case in cases
    ]


SYLLABLES = ["ba", "do", "ki", "lu", "me", "no", "ra", "si", "tu", "ve"]  # one token each


def sample_text(seed: int, documents: int) -> str:
    """Return documents of invented words with the skewed frequencies of a language."""
    draw = np.random.Generator(np.random.Philox(key=seed)).random
    words = [a + b + c for a in SYLLABLES for b in SYLLABLES for c in ("", "n", "s")]
    lines = []
    for _ in range(documents):
        for _ in range(3 + int(draw() * 12)):
            ranks = (len(words) * draw(4 + int(draw() * 12)) ** 3).astype(int)
            lines.append(" ".join(words[rank] for rank in ranks) + " .")
        lines.append("")
    return "\n".join(lines)


def sample_vocabulary() -> list[str]:
    """Return a vocabulary of 128 tokens for `sample_text`, without any of its words."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *SYLLABLES]
    tokens += [f"##{syllable}" for syllable in SYLLABLES] + ["##n", "##s"]
    return tokens + [f"[unused{i}]" for i in range(128 - len(tokens))]


TOKENIZER = WordPieceTokenizer(sample_vocabulary(), cased=False)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Prepared corpus of 8 shards, 400 documents, 128 tokens."""
    directory = tmp_path_factory.mktemp("corpus")
    text = directory / "text.txt"
    text.write_text(sample_text(seed=1, documents=400))
    shards = directory / "shards"
    options = CorpusOptions(eval_fraction=0.05, num_shards=8)
    prepare([str(text)], TOKENIZER, shards, options, workers=1)
    return shards


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Corpus of `write_corpus`, whose tokens name their document."""
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sections per document and several chunks per shard, as in a large corpus."""
    monkeypatch.setattr(sequences, "chunk_tokens", lambda max_seq_length: 1000)
    monkeypatch.setattr(sequences, "max_section_tokens", lambda max_seq_length: 150)


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Directory with the data of every kind of `toy_tasks`, which no test changes."""
    import toy_tasks

    path = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(path)
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    """Function that starts the server of a method's model once."""
    from served_models import serve_models

    with serve_models(tmp_path_factory.mktemp("served")) as serve:
        yield serve


@pytest.fixture
def laptop(tmp_path) -> Laptop:
    laptop = Laptop(tmp_path / "laptop")
    laptop.stub("gcloud", "xpk", "kubectl", "docker", "ssh", "git", "mkdir", "tar")
    return laptop


@pytest.fixture
def compilations():
    """Events of the programs that JAX compiles during the test, a list that grows."""
    import jax

    events: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def refused(capsys, compilations):
    """Run a command, check that it is rejected before compilation, and return its error line."""
    from bertjax.cli.main import main

    def run(*arguments: object) -> str:
        capsys.readouterr()  # drop earlier output
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # by argparse
            status = stop.code
        error = capsys.readouterr().err
        assert status == 2, error
        assert not compilations
        lines = error.splitlines()
        assert len(lines) == 1 and lines[0].startswith("bertjax: "), error
        return lines[0].removeprefix("bertjax: ")

    return run


def bertjax(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    """Run `bertjax ARGUMENTS` in a process of its own, on one device."""
    return subprocess.run(
        [sys.executable, "-m", "bertjax", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=process_environment(),
        timeout=LONG,
        **options,  # type: ignore[call-overload]
    )


def process_environment(devices: int = 1) -> dict[str, str]:
    """Return the environment of a process with a number of devices."""
    flags = os.environ["XLA_FLAGS"].replace("device_count=8", f"device_count={devices}")
    # JAX logs an error for a cache entry that another process is writing: cache no small programs.
    cache = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1"}
    return os.environ | {"XLA_FLAGS": flags} | cache


def run_python(program: str, *arguments: str) -> str:
    """Return the output of a program that compiles as for a user, with all optimizations."""
    environment = process_environment() | {"JAX_PLATFORMS": "cpu"}
    del environment["XLA_FLAGS"], environment["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    process = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
