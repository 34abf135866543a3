"""The commands that README and docs/ print run, as printed but for paths and sizes.

Those of an installation and of a cloud are run elsewhere: see `manual.RUN_BY`.
"""

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import shlex
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from bucket import Server
from conftest import PEERS, free_port, process_environment
from manual import MINUTES, ROOT, SERVED, STORED, blocks, printed, run_by, smaller
from processes import Command, run
from world import build

from data_pipelines.finetuning.glue import GLUE

pytestmark = pytest.mark.slow


def commands(who: str = "") -> list[str]:
    """Those that `who` runs, in the order of a first day; what several pages print comes once."""
    return list(dict.fromkeys(smaller(each.command) for each in printed() if run_by(each) == who))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("world")
    build(folder)
    return folder


def product(words: Sequence[str]) -> str:
    """What a command writes, which later ones may read; "" for nothing."""
    if words[1] == "convert":
        return words[-1]
    return next((b for a, b in itertools.pairwise(words) if a in ("--output", "--workdir")), "")


def do(world: pathlib.Path, command: str) -> None:
    """Runs a command, which must end well and leave its product."""
    words = shlex.split(command)
    if words[0] == "bertjax":
        ended = run(*words[1:], begin=functools.partial(os.chdir, world))
    else:
        assert words[0] == "python", f"nobody runs {words[0]}"
        ended = subprocess.run(
            [sys.executable, *words[1:]],
            capture_output=True,
            text=True,
            check=False,
            cwd=world,
            env=process_environment() | {"PYTHONPATH": str(ROOT)},
        )
    assert ended.returncode == 0, f"{command}\n{ended.stderr[-3000:]}"
    assert (world / product(words)).exists(), command


def failures(world: pathlib.Path, every: Sequence[str]) -> list[str]:
    """Runs commands two at once; each waits for what makes what it reads."""
    made: dict[str, Future] = {}

    def do_after(command: str, before: list[Future]) -> None:
        for each in before:
            each.result()
        do(world, command)

    with ThreadPoolExecutor(2) as pool:
        futures = []
        for command in every:
            before = [future for path, future in made.items() if path in command]
            futures.append(pool.submit(do_after, command, before))
            if own := product(shlex.split(command)):
                made[own] = futures[-1]
        return [str(each.exception()) for each in futures if each.exception()]


@pytest.fixture(scope="module")
def failed(world) -> list[str]:
    """What fails of all that needs nobody else; the rest reads what the others made."""
    return failures(world, commands())


def test_commands_run_as_printed(failed) -> None:
    assert not failed, "\n\n".join(failed)


@pytest.mark.skipif(
    not (PEERS and importlib.util.find_spec("libtpu")),
    reason="takes minutes: where BERTJAX_PEERS names an environment of .ci/peers, and with [tpu]",
)
def test_what_takes_minutes_runs_as_printed(world, failed) -> None:
    (mrpc,) = [each for each in commands() if each.startswith("bertjax train --config glue:")]
    others = [mrpc.replace("mrpc", name) for name in GLUE if name not in ("mrpc", "wnli")]
    failed = failures(world, [*others, *commands(MINUTES)])
    assert not failed, "\n\n".join(failed)


def test_python_of_the_readme_runs(world, failed, monkeypatch) -> None:
    monkeypatch.chdir(world)
    (block,) = [
        block for kind, block in blocks((ROOT / "README.md").read_text()) if kind == "python"
    ]
    exec(block.replace('"2 epochs"', "4").replace("runs/moods", "runs/python"), {})


def test_what_is_served_answers_as_printed(world, failed) -> None:
    """What `curl` would send is sent without it, as not every machine has it."""
    (serve,) = [each for each in commands(SERVED) if each.startswith("bertjax")]
    asked = [shlex.split(each) for each in commands(SERVED) if each.startswith("curl")]
    port = free_port()
    begin = functools.partial(os.chdir, world)
    server = Command(*shlex.split(serve)[1:], "--port", port, begin=begin)
    try:
        while server.poll() is None:
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", port)),
            ):
                break
            time.sleep(0.1)
        for _, url, *rest in asked:
            data = rest[rest.index("--data") + 1].encode() if rest else None
            with urllib.request.urlopen(url.replace("8000", str(port)), data) as answer:
                said = json.loads(answer.read())
            assert not data or len(said["answers"]) == len(json.loads(data)["inputs"])
    finally:
        server.terminate()
        server.communicate()


def test_a_run_in_a_bucket_is_named_as_printed(world, failed, tmp_path) -> None:
    (report,) = commands(STORED)
    bucket = Server("my-bucket", tmp_path)
    try:
        for path in (world / "runs" / "base-1").rglob("*"):
            if path.is_file() and path.name != "report.html":
                bucket.write(str(path.relative_to(world)), path.read_bytes())
        ended = run(*shlex.split(report)[1:], **bucket.environment)
        assert ended.returncode == 0, ended.stderr
        assert "runs/base-1/report.html" in bucket.objects
    finally:
        bucket.close()
