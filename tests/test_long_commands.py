"""The commands of README and docs/ that take minutes even when they are small."""

import importlib.util
import pathlib
import shlex

import pytest
from command_sandbox import (
    build_sandbox,
    commands_for,
    output_path,
    run_commands,
    with_prerequisites,
)
from conftest import PEERS
from documented_commands import MINUTES

from data_pipelines.finetuning.glue import GLUE


@pytest.mark.minutes
@pytest.mark.skipif(
    not (PEERS and importlib.util.find_spec("libtpu")),
    reason="needs the extra `tpu` and an environment of .ci/peers in BERTJAX_PEERS",
)
def test_long_commands_run_as_printed(tmp_path: pathlib.Path) -> None:
    build_sandbox(tmp_path)
    mrpc = next(line for line in commands_for() if line.startswith("bertjax train --config glue:"))
    documented = {output_path(shlex.split(line)) for line in commands_for()}
    others = [name for name in GLUE if name != "wnli" and f"runs/{name}" not in documented]
    glue = [mrpc.replace("mrpc", name) for name in others]
    errors = run_commands(tmp_path, with_prerequisites([*glue, *commands_for(MINUTES)]))
    assert not errors, "\n\n".join(errors)
