"""`embed` and `predict` by several processes: the bytes of one, resumed and rejected."""

import dataclasses
import functools
import json
import pathlib
import shutil
import signal

import file_kills
import numpy as np
import processes
import pytest
import toy_tasks
from conftest import LONG
from random_models import draw_model
from test_output_shards import content

from bertjax.cli import predict
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.inference import feature_extraction
from bertjax.inference.output_records import MANIFEST_FILE
from bertjax.model.bert_config import BertConfig

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
