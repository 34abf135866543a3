"""Outputs in shards that several processes write: any number of them gives the same bytes."""

import functools
import json
import pathlib
from collections.abc import Iterable

import pytest
from etils import epath

from bertjax.errors import CommandError
from bertjax.inference.output_records import MANIFEST_FILE, WORK_DIR, InputProblems, OutputRecords
from bertjax.inference.output_shards import InputFile, Shard, ShardsWriter, Summary
from bertjax.mesh.cluster import ProcessShare
from bertjax.workdir.draft import held_draft
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text

ROWS = 3  # of a shard
FILES = {"a.txt": ["ba", "do", "ki", "lu", "me", "no", "ra"], "b.txt": ["si"], "c.txt": list("tuv")}
SETTINGS = {"model": "1234", "layers": (-1, -2)}
NO_PROBLEMS = InputProblems()


def write(
    output: pathlib.Path,
    process_id: int = 0,
    num_processes: int = 1,
    files: dict[str, list[str]] = FILES,
    computed: list[str] | None = None,
    suffix: str = "!",
    problems: InputProblems = NO_PROBLEMS,  # of each shard
    **changes: object,
) -> Summary:
    """Write a share of the upper-case items; append the names of computed shards to `computed`."""

    def write_shard(shard: Shard[str], path: epath.Path, lock: object) -> InputProblems:
        text = "".join(f"{shard.input}:{i} {x.upper()}" for i, x in enumerate(shard.items))
        atomic_write_text(path, text + suffix)
        if computed is not None:
            computed.append(shard.name)
        return problems

    share = ProcessShare(process_id, num_processes)
    writer = ShardsWriter[str](
        epath.Path(output), ".txt", SETTINGS | changes, ROWS, str.encode, share
    )
    inputs = [InputFile(name, functools.partial(iter, lines)) for name, lines in files.items()]
    return writer.write(inputs, write_shard)


def content(folder: pathlib.Path) -> dict[str, bytes]:
    assert not [path for path in folder.iterdir() if path.is_dir()]
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("sizes", "order"),
    [([1], [0, 1]), ([3], [2, 0, 1]), ([4, 6, 1], [1, 0]), ([10], [3, 2, 1, 0]), ([1] * 8, [1, 0])],
)
def test_any_number_of_processes_in_any_order_writes_the_same_bytes(
    tmp_path, sizes: list[int], order: list[int]
) -> None:
    folder = tmp_path
    files = {f"{i}": [f"{i}.{j}" for j in range(size)] for i, size in enumerate(sizes)}
    names: list[str] = []
    summaries = [write(folder / "n", i, len(order), files, computed=names) for i in order]
    assert [summary.is_complete for summary in summaries] == [False] * (len(order) - 1) + [True]
    assert sum(summary.rows for summary in summaries) == sum(sizes)
    write(folder / "1", files=files)
    assert content(folder / "n") == content(folder / "1")
    assert sorted([*names, MANIFEST_FILE]) == [*content(folder / "1")]


def test_manifest_names_settings_input_and_shards_in_order(tmp_path) -> None:
    write(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST_FILE).read_text())
    assert manifest["settings"] == {
        "model": "1234",
        "layers": [-1, -2],
        "format": ".txt",
        "rows_per_shard": ROWS,
        "inputs": ["a.txt", "b.txt", "c.txt"],
    }
    shards = [(shard["name"], shard["input"], shard["rows"]) for shard in manifest["shards"]]
    assert shards == [
        ("shard-00000-00000.txt", "a.txt", 3),
        ("shard-00000-00001.txt", "a.txt", 3),
        ("shard-00000-00002.txt", "a.txt", 1),
        ("shard-00001-00000.txt", "b.txt", 1),
        ("shard-00002-00000.txt", "c.txt", 3),
    ]


@pytest.mark.parametrize(("num_files", "num_read"), [(7, 7), (8, 4)])
def test_process_reads_its_own_files_alone_if_there_are_many(
    tmp_path, num_files: int, num_read: int
) -> None:
    opened = []

    def read(number: int) -> Iterable[str]:
        opened.append(number)
        return [f"text {number}"]

    inputs = [InputFile(f"{i}", functools.partial(read, i)) for i in range(num_files)]
    writer = ShardsWriter[str](
        epath.Path(tmp_path / "out"), ".txt", SETTINGS, ROWS, str.encode, ProcessShare(0, 2)
    )

    def write_shard(shard: Shard[str], path: epath.Path, *_: object) -> InputProblems:
        path.write_text(shard.input)
        return NO_PROBLEMS

    summary = writer.write(inputs, write_shard)
    assert len(opened) == num_read and summary.shards == 4


@pytest.mark.seconds
def test_resume_keeps_intact_shards_and_computes_the_others(tmp_path) -> None:
    out, computed = tmp_path / "out", []
    for index in range(3):
        write(out, index, 4)
    first, second = sorted(out.glob("shard-*"))[:2]
    first.write_text("damaged")
    second.unlink()
    for index in range(2):
        write(out, index, 2, computed=computed)
    write(tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")
    names = {first.name, second.name}
    assert names <= {*computed} and len(computed) < len(list(out.glob("shard-*")))


def test_complete_output_is_verified_and_repaired(tmp_path, caplog) -> None:
    out, computed = tmp_path / "out", []
    write(out)
    before = content(out)
    assert write(out, 1, 4, computed=computed) == Summary(4, 2, 2, True)
    shard = next(out.glob("shard-00000-00001*"))
    shard.write_bytes(before[shard.name].swapcase())  # as long as before
    assert write(out, 1, 4, computed=computed).kept == 1
    assert computed == [shard.name] and content(out) == before
    assert f"{shard}: is damaged. It is computed again." in caplog.text
    shard.unlink()
    with pytest.raises(CommandError, match=f"{shard}: was damaged, .* has other bytes than"):
        write(out, suffix="?")


@pytest.mark.parametrize("is_complete", [False, True])
def test_problems_of_kept_shards_are_reported(tmp_path, monkeypatch, is_complete) -> None:
    out, problems = tmp_path / "out", InputProblems(2, 1, "line 2: blank")
    with monkeypatch.context() as patch:
        if not is_complete:
            patch.setattr(OutputRecords, "finish", lambda *_: False)
        write(out, problems=problems)
    next(out.glob("shard-*")).unlink()
    summary = write(out, problems=problems)
    assert (summary.shards, summary.kept) == (5, 4)
    assert summary.problems == InputProblems(10, 5, "line 2: blank")


def test_killed_completion_is_resumed(tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("bertjax.inference.output_records.thread_map", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write(out)
    assert (out / MANIFEST_FILE).exists() and (out / WORK_DIR).exists()
    assert write(out).is_complete
    write(tmp_path / "whole")
    assert content(out) == content(tmp_path / "whole")


REMOVE = "Name another --output, or remove this one"
REJECTED = {
    "setting": ({"model": "5678"}, "holds shards of model='1234', not '5678'"),
    "new setting": ({"other": 1}, "holds shards of other=None, not 1"),
    "text": ({"files": FILES | {"a.txt": ["BA", *FILES["a.txt"][1:]]}}, "is not of this input"),
    "more lines": ({"files": FILES | {"b.txt": ["si", "tu"]}}, "is not of this input"),
    "more shards": ({"files": FILES | {"b.txt": ["si"] * 9}}, "is not of this input"),
    "fewer lines": ({"files": FILES | {"a.txt": FILES["a.txt"][:6]}}, "is not of this input"),
    "fewer files": ({"files": {"a.txt": FILES["a.txt"]}}, "holds shards of inputs="),
}


@pytest.mark.parametrize("is_complete", [False, True])
@pytest.mark.parametrize("name", REJECTED)
def test_resume_with_other_input_or_settings_is_rejected(
    tmp_path, monkeypatch, name, is_complete
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        if not is_complete:
            patch.setattr(OutputRecords, "finish", lambda *_: False)
        write(out)
    before = {path: path.read_bytes() for path in out.glob("shard-*")}
    changes, problem = REJECTED[name]
    with pytest.raises(InputError, match=f"{problem}.*{REMOVE}"):
        for index in range(2):
            write(out, index, 2, **changes)
    assert before.items() <= {path: path.read_bytes() for path in out.glob("shard-*")}.items()


def test_shard_of_an_earlier_input_is_not_left_in_the_output(tmp_path) -> None:
    out = tmp_path / "out"
    write(out, 0, 2)  # has the last of three shards of a.txt, not the second
    with pytest.raises(
        InputError, match=rf"shard-00000-00002\.txt: is not of this input.*{REMOVE}"
    ):
        write(out, files=FILES | {"a.txt": FILES["a.txt"][:6]})
    assert not (out / MANIFEST_FILE).exists()


def test_directory_with_other_files_is_rejected(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"has notes\.txt and no _manifest\.json"):
        write(tmp_path)
    assert [*tmp_path.iterdir()] == [tmp_path / "notes.txt"]


def test_complete_output_without_its_manifest_is_rejected(tmp_path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / MANIFEST_FILE).unlink()
    with pytest.raises(InputError, match=r"has shard-00000-00000\.txt and no _manifest\.json"):
        write(tmp_path / "out")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"settings": {}, "shards": []}'])
def test_damaged_manifest_is_rejected(tmp_path, text: str) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / MANIFEST_FILE).write_text(text)
    with pytest.raises(InputError, match=f"{MANIFEST_FILE}: .*{REMOVE}"):
        write(tmp_path / "out")


def test_empty_file_is_rejected(tmp_path) -> None:
    with pytest.raises(InputError, match=r"b\.txt: has no inputs\. Leave the file out\."):
        write(tmp_path / "out", files=FILES | {"b.txt": []})


def test_shard_that_another_process_writes_is_rejected(tmp_path) -> None:
    write(tmp_path / "out", 0, 2)
    folder = epath.Path(tmp_path / "out" / WORK_DIR / "shard-00000-00001.txt.partial")
    with held_draft(folder, "--output"), pytest.raises(InputError, match="in use by process"):
        write(tmp_path / "out", 1, 2)
    assert write(tmp_path / "out", 1, 2).is_complete


# ---------------------------------------------------------------- the commands
