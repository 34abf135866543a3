"""Outputs in shards that several processes write: any number of them gives the same bytes."""

import dataclasses
import functools
import json
import pathlib
import shutil
import signal
from collections.abc import Iterable

import file_kills
import numpy as np
import processes
import pytest
import toy_tasks
from conftest import LONG
from etils import epath
from random_models import draw_model

from bertjax.cli import predict
from bertjax.cli.main import main
from bertjax.errors import CommandError
from bertjax.formats import huggingface
from bertjax.inference import feature_extraction
from bertjax.inference.output_records import MANIFEST_FILE, WORK_DIR, InputProblems, OutputRecords
from bertjax.inference.output_shards import InputFile, Shard, ShardsWriter, Summary
from bertjax.mesh.cluster import ProcessShare
from bertjax.model.bert_config import BertConfig
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

CONFIG = BertConfig(128, 1, 32, 2, max_position_embeddings=32)
LINES = [f"{'ba do ki lu '[: 3 * (i % 4 + 1)]}{'me ' * (i % 7)}".strip() for i in range(21)]
LINES[3] = json.dumps({"text": "tu ve"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Two models, and two files of lines."""
    root = tmp_path_factory.mktemp("inputs")
    for num_layers, name in enumerate(("model", "other"), 1):
        (root / name).mkdir()
        config = dataclasses.replace(CONFIG, num_hidden_layers=num_layers)
        huggingface.write(draw_model(config, toy_tasks.TOKENIZER, "mlm"), root / name)
    (root / "lines.txt").write_text("\n".join(LINES) + "\n")
    (root / "texts").mkdir()
    (root / "texts" / "a.txt").write_text("\n".join(LINES[:13]))
    (root / "texts" / "b.csv").write_text("id,text\n" + "".join(f"1,{x}\n" for x in LINES[13:]))
    return root


def small_shards() -> None:
    """Shards of four texts, each made of two batches."""
    feature_extraction.LINES_PER_PART.update(text=2, word=1, token=1)
    feature_extraction.PARTS_PER_SHARD = 2


@pytest.fixture(autouse=True)
def _small(monkeypatch) -> None:
    parts = dict(feature_extraction.LINES_PER_PART)
    monkeypatch.setattr(feature_extraction, "LINES_PER_PART", parts)
    monkeypatch.setattr(feature_extraction, "PARTS_PER_SHARD", 2)
    small_shards()


def embed(folder: pathlib.Path, output: pathlib.Path, *options: object, **changes: object) -> list:
    arguments = {"--checkpoint": folder / "model", "--input": folder / "lines.txt"}
    arguments |= {f"--{name}": value for name, value in changes.items()}
    words = [word for pair in arguments.items() for word in pair]
    return list(map(str, ["embed", *words, "--output", output, *options]))


def share(process_id: int, num_processes: int) -> list[str]:
    return ["--num-processes", str(num_processes), "--process-id", str(process_id)]


def npz_rows(output: pathlib.Path) -> np.ndarray:
    return np.concatenate([np.load(p)["embeddings"] for p in sorted(output.glob("*.npz"))])


@pytest.mark.slow
@pytest.mark.parametrize("input_name", ["lines.txt", "texts", "texts/*"])
def test_embed_by_several_processes_has_the_bytes_of_one(folder, tmp_path, input_name) -> None:
    for count in (1, 3):
        for index in range(count):
            words = share(index, count)
            output = tmp_path / f"{count}.npz"
            assert main(embed(folder, output, *words, input=folder / input_name)) == 0
    assert content(tmp_path / "1.npz") == content(tmp_path / "3.npz")
    assert main(embed(folder, tmp_path / "file.npz")) == 0
    rows = npz_rows(tmp_path / "1.npz")
    if input_name == "lines.txt":  # the same batches
        assert rows.tobytes() == np.load(tmp_path / "file.npz")["embeddings"].tobytes()
    else:
        np.testing.assert_allclose(rows, np.load(tmp_path / "file.npz")["embeddings"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_embed_writes_shards_of_every_format(folder, tmp_path, suffix) -> None:
    output = tmp_path / f"out{suffix}"
    assert main(embed(folder, output, "--level", "word", *share(0, 1))) == 0
    if suffix == ".parquet":
        from pyarrow import parquet

        texts = parquet.read_table(output)["text"].to_pylist()  # leaves out the manifest
    else:
        lines = [x for path in sorted(output.glob("*.jsonl")) for x in path.open()]
        texts = [json.loads(line)["text"] for line in lines]
    assert texts == [*LINES[:3], "tu ve", *LINES[4:]]


@pytest.mark.slow
def test_embed_by_four_processes_survives_a_kill(folder, tmp_path) -> None:
    output = tmp_path / "four.npz"

    def start(index: int, kills: str = "") -> processes.Command:
        words = embed(folder, output, *share(index, 4))
        return processes.Command(*words, begin=functools.partial(begin, tmp_path, kills))

    commands = [start(i, "four.npz/shard-N-N.npz" if i == 2 else "") for i in range(4)]
    # A process too: this one has other devices, hence other roundings.
    words = embed(folder, tmp_path / "one.npz", *share(0, 1))
    commands.append(processes.Command(*words, begin=functools.partial(begin, tmp_path, "")))
    for command in commands:
        command.communicate(LONG)
    assert [command.poll() for command in commands] == [0, 0, -signal.SIGKILL, 0, 0]
    assert not (output / MANIFEST_FILE).exists()
    again = start(2)
    _, error = again.communicate(LONG)
    assert again.poll() == 0 and "complete." in error.splitlines()[-1]
    assert content(output) == content(tmp_path / "one.npz")


def begin(root: pathlib.Path, kills: str) -> None:
    small_shards()
    if kills:
        file_kills.kill_at(root, ("rename", kills))


BAD = {
    "id": (["--num-processes", "4", "--process-id", "4"], {}, "is not one of --num-processes=4"),
    "negative id": (["--num-processes", "4", "--process-id=-1"], {}, "Count processes from 0"),
    "no processes": (["--num-processes", "0", "--process-id", "0"], {}, "is not one of"),
    "no id": (["--num-processes", "4"], {}, "one is missing. Give both"),
    "no number": (["--process-id", "1"], {}, "one is missing. Give both"),
    "stdin": (share(0, 2), {"input": "-"}, "--input=-: processes cannot share it"),
    "no input": (share(0, 2), {"input": "none.txt"}, "none.txt: no such file"),
    "no match": (share(0, 2), {"input": "none/*.txt"}, "none/*.txt: no file matches"),
    "binary": (share(0, 2), {"input": "binary"}, "byte 4 is not UTF-8"),
    "no text": (share(0, 2), {"input": "json"}, 'json:2: no "text"'),
    "suffix": (share(0, 2), {"output": "out.txt"}, "unknown suffix"),
    "file": (share(0, 2), {"output": "binary"}, "is a file. Name a directory"),
    "checkpoint": (share(0, 2), {"output": "done.npz", "checkpoint": "other"}, "shards of model="),
    "option": ([*share(0, 2), "--pooling", "cls"], {"output": "done.npz"}, "of pooling='mean'"),
    "other input": (share(0, 2), {"output": "done.npz", "input": "json"}, "shards of inputs="),
}


@pytest.fixture(scope="module")
def spoiled(folder, tmp_path_factory) -> pathlib.Path:
    """A directory of bad inputs, and of an output that is complete."""
    root = tmp_path_factory.mktemp("spoiled")
    shutil.copytree(folder / "other", root / "other")
    (root / "binary").write_bytes(b"ba d\xff\n")
    (root / "json").write_text('ba\n{"other": 1}\n')
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD)
def test_embed_rejects_in_one_line(folder, spoiled, capsys, monkeypatch, name) -> None:
    monkeypatch.chdir(spoiled)
    if not (spoiled / "done.npz").exists():
        assert main(embed(folder, spoiled / "done.npz", *share(0, 1))) == 0
    options, changes, problem = BAD[name]
    changes = dict(changes)
    output = changes.pop("output", "new.npz")
    done = content(spoiled / "done.npz")
    capsys.readouterr()
    assert main(embed(folder, pathlib.Path(output), *options, **changes)) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith("bertjax: ") and problem in error[-1], error
    assert content(spoiled / "done.npz") == done
    shutil.rmtree(spoiled / "new.npz", ignore_errors=True)


@pytest.mark.slow
def test_predict_by_several_processes_has_the_bytes_of_one(
    folder, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(predict, "_FILE_BATCH_SIZE", 2)
    monkeypatch.setattr(predict, "_INPUTS_PER_SHARD", 4)
    lines = [f"{x} [MASK]" for x in LINES if x[0] != "{"]
    lines[8:12] = ["no mask"] * 4  # a whole shard of invalid inputs
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    words = ["predict", "--checkpoint", folder / "model", "--input", tmp_path / "lines.txt"]
    for count in (1, 3):
        for index in range(count):
            output = ["--output", tmp_path / f"{count}", *share(index, count)]
            assert main(list(map(str, [*words, *output]))) == 0
    assert content(tmp_path / "1") == content(tmp_path / "3")
    assert main(list(map(str, [*words, "--output", tmp_path / "file.jsonl"]))) == 0
    joined = b"".join(path.read_bytes() for path in sorted((tmp_path / "3").glob("*.jsonl")))
    assert joined == (tmp_path / "file.jsonl").read_bytes()
    capsys.readouterr()
    assert main(list(map(str, [*words, "--output", tmp_path / "1", *share(0, 1)]))) == 0
    error = capsys.readouterr().err  # of kept shards
    assert f"4 of {len(lines)} inputs are invalid" in error and "line 9: there is no" in error
    both = ["--output", str(tmp_path / "1"), "--return-all-scores", *share(0, 1)]
    assert main([*map(str, words), *both]) == 2
    assert "holds shards of return_all_scores=False, not True" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--text", "ba"], ["--input", "lines.txt"], ["--save-logits", "x", "--output", "y"]]
)
def test_predict_by_several_processes_needs_files(folder, capsys, words) -> None:
    used = ["predict", "--checkpoint", str(folder / "model")]
    assert main([*used, *words, *share(0, 2)]) == 2
    assert "--num-processes: needs --input and --output" in capsys.readouterr().err
