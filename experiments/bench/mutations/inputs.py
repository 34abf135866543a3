"""Files and models that readers read, each of about a number of bytes."""

import bz2
import gzip
import io
import itertools
import json
import os
import pathlib
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import pyarrow
from etils import epath
from pyarrow import ipc, parquet
from sentencepiece import sentencepiece_model_pb2

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.formats import huggingface, tf1
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import map_named
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.steps.train_step import TrainState
from data_pipelines.corpus.prepare import prepare
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import train_vocabulary
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

_TEXT = "the old man and the sea. it was a fine day !\n\nanother document , of one line\n"
_CONLL = "Anna B-PER\nlives O\nin O\nOslo B-LOC\n. O\n\n"
_PAGE = (
    "<page><title>A</title><ns>0</ns><id>1</id><revision><id>2</id><text>'''A''' is [[b|c]] "
    "{{d|e}}. &lt;ref&gt;x&lt;/ref&gt; A sentence.\n\n* item</text></revision></page>"
)
_DUMP = "<mediawiki xmlns='x' xml:lang='en'><siteinfo><namespaces/></siteinfo>"


def tables(size: int) -> dict[str, bytes]:
    """Return tables by their names."""
    rows: list[dict[str, object]] = [
        {"text": f'text {i}, "a"', "label": "ab"[i % 2]} for i in range(size // 40)
    ]
    csv = "text,label\n" + "".join(f'"a, ""{i}""",{i % 2}\n' for i in range(size // 16))
    table = pyarrow.Table.from_pylist(rows)
    return {
        "x.csv": csv.encode(),
        "x.tsv": csv.replace(",", "\t").encode(),
        "x.jsonl": json_lines(rows),
        "x.json": json.dumps(rows).encode(),
        "x.parquet": _arrow(table, "parquet"),
        "x.arrow": _arrow(table, "file"),
        "x.feather": _arrow(table, "stream"),
    }


def documents(size: int) -> dict[str, bytes]:
    """Return texts by their names."""
    text, pages = repeat(_TEXT, size), repeat(_PAGE, size).decode()
    names = ("x.jsonl", "x.parquet", "x.arrow")
    return {
        **{name: content for name, content in tables(size).items() if name in names},
        "x.txt": text,
        "x.txt.gz": gzip.compress(text),
        "x.txt.bz2": bz2.compress(text),
        "x.xml": f"{_DUMP}{pages}</mediawiki>".encode(),
        "x.csv": b"text,a\n" + repeat("b,c\n", size),
    }


def tagged(size: int) -> dict[str, bytes]:
    """Return tagged sentences by the names of their files."""
    words: dict[str, object] = {"words": ["a", "b"], "tags": ["O", "B-X"]}
    return {
        "x.conll": repeat(_CONLL, size),
        "x.jsonl": json_lines([words] * (size // 44)),
    }


def squad(size: int) -> tuple[bytes, bytes]:
    """Return questions, and predicted answers."""

    def question(number: int) -> dict[str, object]:
        answers = [{"text": "Oslo", "answer_start": 14}] if number % 6 < 4 else []
        known = {"id": str(number), "question": "Where?", "is_impossible": not answers}
        return known | {"answers": answers}

    count = size // 130
    paragraphs = [
        {
            "context": "Anna lives in Oslo, and Bob in Rome.",
            "qas": [question(i) for i in range(first, min(first + 6, count))],
        }
        for first in range(0, count, 6)
    ]
    data = {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}
    return json.dumps(data).encode(), json.dumps({str(i): "Oslo" for i in range(count)}).encode()


def sweep(size: int) -> bytes:
    """Return the results of a sweep."""
    names = [f"r{i}" for i in range(size // 100)]
    run = {"failed": False, "scores": {"loss": 1.0}, "seed": 0}
    points = [f"p{i}" for i in range(len(names) // 4 + 1)]
    point = {"num_runs": 1, "num_failed": 0, "mean": 1.0, "std": None, "min": 1.0, "max": 1.0}
    results = {
        "primary_metric": "loss",
        "best": names[0],
        "runs": [run | {"name": name, "point": points[i // 4]} for i, name in enumerate(names)],
        "points": [point | {"label": label} for label in points],
    }
    return json.dumps(results).encode()


def vocabulary(size: int) -> list[str]:
    """Return the tokens of a vocabulary."""
    letters = "abcdefghijklmnopqrstuvwxyz.,!"
    tokens = [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), "the", "man"]
    more = ("".join(word) for word in itertools.product(letters[:26], repeat=4))
    return [*tokens, *itertools.islice(more, max(0, size // 5 - len(tokens)))]


def sentencepiece_model(root: pathlib.Path, size: int) -> bytes:
    """Return a SentencePiece model, which is trained in a directory."""
    path = root / "small.model"
    train_vocabulary([[_TEXT]], size=30, cased=False, kind="unigram", output=path)
    protos: Any = sentencepiece_model_pb2
    model = protos.ModelProto.FromString(path.read_bytes())
    known = {piece.piece for piece in model.pieces}
    for token in vocabulary(max(0, size - len(path.read_bytes())) // 3):
        if token not in known:
            model.pieces.add(piece=token, score=-20.0)
    return bytes(model.SerializeToString())


def repeat(unit: str, size: int) -> bytes:
    """Return copies of a text."""
    return (unit * (size // len(unit) + 1)).encode()


def json_lines(rows: list[dict[str, object]]) -> bytes:
    """Return rows as JSON, one a line."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def write_models(root: pathlib.Path, size: int) -> None:
    """Write directories of models, runs and corpora below a new directory.

    A process of its own does it: threads of JAX, Orbax and TensorFlow do not survive the forks of
    the campaign.
    """
    if not (child := os.fork()):
        status = 1
        try:
            _write_models(root, size)
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert not status


def _write_models(root: pathlib.Path, size: int) -> None:
    hidden_size = 64
    tokenizer = WordPieceTokenizer(vocabulary(size // (4 * hidden_size) * 5), cased=False)
    config = BertConfig(
        len(tokenizer.tokens), 1, hidden_size, 1, max_position_embeddings=32, num_labels=2
    )
    shapes = param_shapes(config)
    params = map_named(
        lambda name, leaf: np.full(leaf.shape, 0.01, np.float32),
        {name: shapes[name] for name in ("encoder", "pooler", "sequence_classification")},
    )
    model = NumpyModel(config, params, tokenizer, labels=("a", "b"))
    (root / "hf").mkdir(parents=True)
    huggingface.write(model, epath.Path(root / "hf"))
    convert(root / "hf", root / "bertjax", "hf", "bertjax")
    (root / "tf1").mkdir()
    tf1.write(model, epath.Path(root / "tf1"))
    checkpoints = Checkpointer(root / "state")
    checkpoints.save(state(size), lambda folder: None)
    checkpoints.wait_until_finished()
    (root / "st" / "1_Pooling").mkdir(parents=True)
    modules = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    prompts = {f"q{i}": "x" for i in range(size // 10)}
    for name, value in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False}),
        ("config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "q1"}),
    ):
        (root / "st" / name).write_text(json.dumps(value))
    (root / "run").mkdir()
    metrics: list[dict[str, object]] = [
        {"step": i, "split": split, "loss": 1.0 / i}
        for i in range(1, size // 120 + 2)
        for split in ("train", "eval")
    ]
    (root / "run" / "metrics.jsonl").write_bytes(json_lines(metrics))
    (root / "run" / "config.json").write_bytes((root / "bertjax" / "config.json").read_bytes())
    (root / "text.txt").write_bytes(repeat(_TEXT, size))
    prepare([str(root / "text.txt")], load_tokenizer(root / "hf"), root / "corpus", workers=1)


def state(size: int) -> TrainState:
    """Return a training state."""
    rows = size // 128 + 1
    params = {"encoder": {"w": np.ones((rows, 8), np.float32)}, "bias": np.ones(5, np.float32)}
    sums = {"loss": (1.0, 1.0)}
    host = TrainState(1, params, optax.adam(1e-3).init(params), sums)  # type: ignore[arg-type]
    return jax.tree.map(jax.numpy.asarray, host)


def _arrow(table: pyarrow.Table, kind: str) -> bytes:
    content = io.BytesIO()
    if kind == "parquet":
        parquet.write_table(table, content)
        return content.getvalue()
    with (ipc.new_file if kind == "file" else ipc.new_stream)(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()


def files_of(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file below a directory."""
    for file in sorted(path.rglob("*")):
        if file.is_file():
            yield file.relative_to(path).as_posix(), file.read_bytes()
