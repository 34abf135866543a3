"""The commands that README and docs/ print run, as printed but for paths and sizes.

Those of an installation and of a cloud are run elsewhere: see `manual.RUN_BY`.
"""

import contextlib
import functools
import json
import os
import pathlib
import shlex
import socket
import time
import urllib.request

import pytest
from bucket import Server
from command_sandbox import build, commands, failures
from conftest import free_port
from documented_commands import ROOT, SERVED, STORED, blocks
from processes import Command, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("world")
    build(folder)
    return folder


@pytest.fixture(scope="module")
def failed(world) -> list[str]:
    """What fails of all that needs nobody else; the rest reads what the others made."""
    return failures(world, commands())


def test_commands_run_as_printed(failed) -> None:
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
