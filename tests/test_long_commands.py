"""Those commands that README and docs/ print which take minutes, though they are small here."""

import importlib.util
import pathlib

import pytest
from command_sandbox import build, commands, failures, with_what_they_read
from conftest import PEERS
from documented_commands import MINUTES

from data_pipelines.finetuning.glue import GLUE


@pytest.mark.slow
@pytest.mark.skipif(
    not (PEERS and importlib.util.find_spec("libtpu")),
    reason="takes minutes: where BERTJAX_PEERS names an environment of .ci/peers, and with [tpu]",
)
def test_what_takes_minutes_runs_as_printed(tmp_path: pathlib.Path) -> None:
    build(tmp_path)
    (mrpc,) = [each for each in commands() if each.startswith("bertjax train --config glue:")]
    others = [mrpc.replace("mrpc", name) for name in GLUE if name not in ("mrpc", "wnli")]
    failed = failures(tmp_path, with_what_they_read([*others, *commands(MINUTES)]))
    assert not failed, "\n\n".join(failed)
