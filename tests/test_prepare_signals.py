"""Tests of a preparation that is stopped or killed."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from conftest import LONG, TOKENIZER, process_environment, sample_text
from document_files import small

from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import read_manifest
from data_pipelines.errors import InputError

PREPARE = """
import sys
from data_pipelines.corpus import prepare as prepare_module
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.vocabulary.tokenization import load_tokenizer

if __name__ == "__main__":
    text, vocab, output = sys.argv[1:]
    options = CorpusOptions(num_shards=8)
    prepare([text], load_tokenizer(vocab), output, options, workers=2, progress=sys.stderr)
"""


@contextlib.contextmanager
def endless(tmp_path: pathlib.Path, *command: object) -> Iterator[tuple[Any, list[Any]]]:
    """Start a process that reads an endless input; yield it with its running workers."""
    source = tmp_path / "text.fifo"
    os.mkfifo(source)
    TOKENIZER.save(tmp_path / "vocab")
    process = subprocess.Popen(
        [sys.executable, *map(str, command)],
        env=process_environment() | {"PYTHONPATH": os.getcwd()},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with source.open("w") as pipe, contextlib.suppress(BrokenPipeError):
            pipe.write(sample_text(seed=1, documents=5000))
            pipe.flush()
            workers = psutil.Process(process.pid).children(recursive=True)
            while len(workers) < 2 and process.poll() is None:
                time.sleep(0.05)
                workers = psutil.Process(process.pid).children(recursive=True)
            yield process, workers
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGINT, signal.SIGINT], [signal.SIGTERM]])
def test_prepare_stopped_by_a_signal_leaves_no_workers(tmp_path, numbers) -> None:
    if signal.SIGINT in numbers and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        pytest.skip("SIGINT is ignored here, as it is in the background of a script")
    arguments = ["--input", tmp_path / "text.fifo", "--vocab", tmp_path / "vocab", "--workers", 2]
    command = ["-m", "bertjax", "prepare", *arguments, "--output", tmp_path / "out"]
    with endless(tmp_path, *command) as (process, workers):
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.2)
        assert process.wait(LONG) == 75
        lines = process.stderr.read().splitlines()
    assert lines[-1] == "bertjax: stopped: run the same command again."
    assert not any("Traceback" in line for line in lines)
    assert not psutil.wait_procs(workers, timeout=LONG)[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_prepare_killed_leaves_no_corpus_and_no_workers(tmp_path: pathlib.Path) -> None:
    out = tmp_path / "out"
    command = "-c", PREPARE, tmp_path / "text.fifo", tmp_path / "vocab", out
    with endless(tmp_path, *command) as (process, workers):
        assert (tmp_path / "out.partial").is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not out.exists()
    for leftover in (out, tmp_path / "out.partial"):
        with pytest.raises(InputError):
            read_manifest(leftover)
    gone, alive = psutil.wait_procs(workers, timeout=LONG)
    assert gone
    assert not alive

    prepare([small(tmp_path / "a.txt")], TOKENIZER, out, CorpusOptions(eval_fraction=0), workers=1)
    assert read_manifest(out).totals["documents"] == 40
    assert not (tmp_path / "out.partial").exists()
