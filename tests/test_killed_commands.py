"""Every command killed at its operations on files, then run again: the result is the same.

Evenly spaced operations are tested; `BERTJAX_KILLS=1000` tests all, which takes more than an hour.
"""

import functools
import json
import os
import pathlib
import signal

import file_kills
import pytest
from killable_commands import COMMANDS, Killable, write_inputs

pytestmark = pytest.mark.minutes

MAX_KILLS = int(os.environ.get("BERTJAX_KILLS", "6"))  # of a command


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> pathlib.Path:
    return write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.mark.parametrize("name", COMMANDS)
def test_command_killed_at_each_operation_has_the_same_result(name, inputs, tmp_path) -> None:
    command, log = Killable(name, inputs, tmp_path), tmp_path / "log"
    command.clear()
    status, error = command.execute(functools.partial(file_kills.record, command.root, log))
    assert status == 0, error
    whole, operations = command.contents(), file_kills.distinct_operations(log)
    assert operations
    for operation in operations[:: -(-len(operations) // MAX_KILLS)]:
        command.clear()
        kill = functools.partial(file_kills.kill_at, command.root, operation)
        status, error = command.execute(kill)
        assert status == -signal.SIGKILL, (operation, status, error)
        assert command.finish() == whole, operation
    print(json.dumps({name: operations}))
