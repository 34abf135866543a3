"""Runs that have lost their workdir to another one: they write and delete nothing of it."""

import contextlib
import pathlib
from typing import Any, cast

import numpy as np
import pytest
from etils import epath
from pretraining_runs import make_run_config

from bertjax.errors import LockLostError
from bertjax.inference.embedding_files import PartFiles
from bertjax.inference.output_records import OutputRecords, ShardRecord
from bertjax.inference.output_shards import InputFile, InputProblems, ShardsWriter
from bertjax.mesh.cluster import ProcessShare
from bertjax.sweeps.sweep_state import SweepState
from bertjax.training.setup import make_trainer
from bertjax.training.time_budget import TimeBudget
from bertjax.workdir.draft import held_draft, new_directory
from bertjax.workdir.goodput import GoodputClock
from bertjax.workdir.lock import LOCK_FILE, WorkdirLock
from bertjax.workdir.workdir import claim_workdir
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write

Files = dict[str, bytes]


class Place:
    """A directory whose locks another run takes."""

    def __init__(self, path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.before = path, cast(Files, {})
        monkeypatch.setattr(WorkdirLock, "confirm", self._confirm)
        self._is_lost = False

    def _confirm(self) -> None:
        if self._is_lost:
            raise LockLostError("taken")

    def lose(self) -> None:
        """Let another run take the locks, and write a file into each directory."""
        self._is_lost = True
        for folder in [self.path, *self.path.rglob("*")]:
            if folder.is_dir():
                (folder / "theirs").write_text("of the successor")
        self.before = self.files()

    def files(self) -> Files:
        """Return the content of all files but locks."""
        paths = [path for path in self.path.rglob("*") if path.is_file()]
        return {str(p): p.read_bytes() for p in paths if LOCK_FILE not in p.name}


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    return Place(tmp_path, monkeypatch)


def make_directory(place: Place, workdir: epath.Path) -> None:
    with new_directory(workdir / "new", "DST") as draft:
        (draft / "file").write_text("ours")
        place.lose()


def fail_to_make_directory(place: Place, workdir: epath.Path) -> None:
    with contextlib.suppress(KeyError), new_directory(workdir / "new", "DST"):
        place.lose()
        raise KeyError
    raise LockLostError


def end_draft(place: Place, workdir: epath.Path) -> None:
    with held_draft(workdir / "new.partial", "--output") as lock:
        (lock.workdir / "part").write_text("ours")
        place.lose()


def write_part(place: Place, workdir: epath.Path) -> None:
    with WorkdirLock(workdir) as lock:
        parts = PartFiles(workdir / "out.npz", {}, lock)
        place.lose()
        parts.write(0, "digest", {"x": np.zeros(1)})


def join_parts(place: Place, workdir: epath.Path) -> None:
    with WorkdirLock(workdir) as lock:
        parts = PartFiles(workdir / "out.npz", {}, lock)
        parts.write(0, "digest", {"x": np.zeros(1)})
        place.lose()
        parts.finish(1, lambda file, read: file.write(b"ours"))


def write_shard(place: Place, workdir: epath.Path) -> None:
    writer = ShardsWriter[str](workdir / "out", ".txt", {}, 2, str.encode, ProcessShare(0, 1))

    def write(shard: Any, path: epath.Path, lock: WorkdirLock) -> InputProblems:
        with atomic_write(path, lock.workdir) as draft:
            draft.write_text("ours")
        place.lose()
        return InputProblems()

    writer.write([InputFile("a", lambda: ["text"])], write)


def write_manifest(place: Place, workdir: epath.Path) -> None:
    records = OutputRecords(workdir / "out", {}, ProcessShare(0, 1))
    record = ShardRecord("shard", "a", 1, 1, "digest", "digest")
    records.add(record)
    manifest = records._write_manifest
    records._write_manifest = lambda files: (manifest(files), place.lose())  # type: ignore[method-assign, return-value, func-returns-value]
    records.finish([record])


def update_budget(place: Place, workdir: epath.Path) -> None:
    with WorkdirLock(workdir) as lock:
        budget = TimeBudget(workdir, 100.0, lock.confirm)
        budget.start_clock(0)
        place.lose()
        for step in (10, 20, 30):
            budget.update(step)


def record_sweep(place: Place, workdir: epath.Path) -> None:
    with WorkdirLock(workdir) as lock:
        state = SweepState(workdir, lock.confirm)
        place.lose()
        state.write_proposals([])


def clean_sweep(place: Place, workdir: epath.Path) -> None:
    (workdir / "parallel_runs" / "00000-current").mkdir(parents=True)
    with WorkdirLock(workdir) as lock:
        state = SweepState(workdir, lock.confirm)
        place.lose()
        state.remove_unfinished()


WRITERS = [make_directory, fail_to_make_directory, end_draft, write_part, join_parts]
WRITERS += [write_shard, write_manifest, update_budget, record_sweep, clean_sweep]


@pytest.mark.parametrize("write", WRITERS)
def test_displaced_writer_leaves_the_files_of_its_successor(place, tmp_path, write) -> None:
    with pytest.raises(LockLostError):
        write(place, epath.Path(tmp_path))
    assert place.before and place.files() == place.before


def test_displaced_run_leaves_goodput(place, tmp_path) -> None:
    workdir = epath.Path(tmp_path)
    with WorkdirLock(workdir) as lock:
        clock = GoodputClock(workdir, 0.0, lock.confirm)
        clock.write()
        place.lose()
        clock.write()
    assert place.files() == place.before


@pytest.mark.seconds
def test_displaced_run_that_is_rejected_leaves_the_records(place, corpus, tmp_path) -> None:
    trainer = make_trainer(make_run_config(corpus), tmp_path / "run")
    lock = WorkdirLock(trainer.workdir)
    with pytest.raises(InputError), lock, claim_workdir(lock, trainer.config, trainer.task):
        place.lose()
        raise InputError("a step takes too much memory")
    assert place.files() == place.before and (tmp_path / "run" / "run.json").exists()


@pytest.mark.seconds
def test_trainer_asks_its_lock(corpus, tmp_path) -> None:
    trainer = make_trainer(make_run_config(corpus), tmp_path / "run")
    confirm = trainer._lock.confirm
    assert trainer.checkpointer._confirm == trainer._goodput._confirm == confirm
