"""The commands of README and docs/, with the paths and sizes of a sandbox.

`documented_commands.RUNNERS` lists the commands that other tests run.
"""

import contextlib
import functools
import json
import os
import pathlib
import shlex
import time
import urllib.error
import urllib.request

import pytest
from bucket import Server
from command_sandbox import build_sandbox, commands_for, run_commands
from conftest import free_port
from documented_commands import (
    ROOT,
    SERVED,
    STORED,
    code_blocks,
    documented_commands,
    find_runner,
    shrink,
)
from processes import Command, run

pytestmark = pytest.mark.minutes


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("sandbox")
    build_sandbox(directory)
    return directory


@pytest.fixture(scope="module")
def errors(sandbox) -> list[str]:
    """Errors of the commands without a runner of their own; other tests read their output."""
    return run_commands(sandbox, commands_for())


def test_commands_run_as_printed(errors) -> None:
    assert not errors, "\n\n".join(errors)


def test_python_of_the_readme_runs(sandbox, errors, monkeypatch) -> None:
    monkeypatch.chdir(sandbox)
    blocks = code_blocks((ROOT / "README.md").read_text())
    (program,) = [block for language, block in blocks if language == "python"]
    exec(program.replace('"2 epochs"', "4").replace("runs/moods", "runs/python"), {})


def test_server_answers_as_printed(sandbox, errors) -> None:
    """The requests of `curl` are sent without it: not every machine has it."""
    sessions: list[list[list[str]]] = []  # a server's command, and the requests to it
    for _, command in documented_commands():
        if find_runner(command) == SERVED:
            if command.startswith("bertjax"):
                sessions.append([])
            sessions[-1].append(shlex.split(shrink(command)))
    begin = functools.partial(os.chdir, sandbox)
    for serve, *requests in sessions:
        port = free_port()
        server = Command(*serve[1:], "--port", port, begin=begin)
        try:
            wait_until_ready(server, port)
            for _, url, *options in requests:
                data = options[options.index("--data") + 1].encode() if options else None
                with urllib.request.urlopen(url.replace("8000", str(port)), data) as response:
                    content = json.loads(response.read())
                assert not data or len(content["answers"]) == len(json.loads(data)["inputs"])
        finally:
            server.terminate()
            server.communicate()


def wait_until_ready(server: Command, port: int) -> None:
    """Return when a server is ready, or has ended."""
    while server.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready").close()
            return
        time.sleep(0.1)


def test_report_reads_a_bucket_as_printed(sandbox, errors, tmp_path) -> None:
    (report,) = commands_for(STORED)
    bucket = Server("my-bucket", tmp_path)
    try:
        for path in (sandbox / "runs" / "base-1").rglob("*"):
            if path.is_file() and path.name != "report.html":
                bucket.write(str(path.relative_to(sandbox)), path.read_bytes())
        done = run(*shlex.split(report)[1:], **bucket.environment)
        assert done.returncode == 0, done.stderr
        assert "runs/base-1/report.html" in bucket.objects
    finally:
        bucket.close()
