"""Tests of bertjax/workdir/model_records.py: what made the parameters of a checkpoint."""

import json
import pathlib

import pytest
from etils import epath

from bertjax.workdir.model_history import read_history
from data_pipelines.errors import InputError

RUN = "pretraining (mlm): 1,500 steps on d/law+d/wiki, initialized from models/base"


def write_checkpoint(path: pathlib.Path, **fields: object) -> epath.Path:
    path.mkdir(parents=True)
    config = {"task": "pretraining", "init": "models/base"}
    config |= {"data": {"dir": "d/law+d/wiki", "objective": "mlm"}, **fields}
    (path / "config.json").write_text(json.dumps(config))
    (path / "run.json").write_text(json.dumps({"step": 1500, "data_fingerprint": "ab"}))
    return epath.Path(path)


def write_init_record(workdir: pathlib.Path, **content: object) -> None:
    (workdir / "init.json").write_text(json.dumps({"path": "models/base", **content}))


def test_read_history_ends_with_the_run(tmp_path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoints" / "00001500")
    assert read_history(checkpoint) == (RUN,)
    write_init_record(tmp_path, history=["first", "second"])
    assert read_history(checkpoint) == ("first", "second", RUN)


def test_read_history_of_a_task_without_objective_from_random_parameters(tmp_path) -> None:
    checkpoint = write_checkpoint(tmp_path / "copy", task="glue", init="", data={"dir": "MRPC"})
    expected = "glue: 1,500 steps on MRPC, initialized from random parameters"
    assert read_history(checkpoint) == (expected,)


def test_read_history_of_a_copy_has_nothing_of_a_directory_that_it_lies_in(tmp_path) -> None:
    checkpoint = write_checkpoint(tmp_path / "models" / "copy")
    write_init_record(tmp_path, history=["of another run"])
    assert read_history(checkpoint) == (RUN,)


def test_read_history_of_a_converted_model_is_empty(tmp_path) -> None:
    assert read_history(epath.Path(tmp_path)) == ()


def test_read_history_rejects_a_damaged_record(tmp_path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoints" / "00001500")
    write_init_record(tmp_path, history="first")
    with pytest.raises(InputError, match=r"init\.json: history"):
        read_history(checkpoint)
