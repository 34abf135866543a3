"""Readers of files, each with the files that it reads."""

import bz2
import gzip
import hashlib
import io
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow
from etils import epath
from pyarrow import ipc, parquet

from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import convert
from bertjax.mesh.sharding import map_named
from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from bertjax.reports.run import read_run, render_run
from bertjax.reports.sweep import read_sweep, render_sweep
from bertjax.tasks.question_answering.metrics import score_files
from bertjax.training.initialization import PretrainedModel
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.finetuning.multiple_choice import dataset_from_rows
from data_pipelines.finetuning.question_answering.squad import read_squad
from data_pipelines.finetuning.table import read_table
from data_pipelines.finetuning.token_classification.dataset import read_tagged_file
from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

_TEXT = "the old man and the sea. it was a fine day !\n\nanother document , of one line\n" * 20
_ROWS = [{"text": f'text {i}, "a"', "label": "ab"[i % 2]} for i in range(30)]
_CONLL = "-DOCSTART- O\n\n" + "Anna B-PER\nlives O\nin O\nOslo B-LOC\n. O\n\n" * 10
_SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": "Anna lives in Oslo, and Bob in Rome.",
                    "qas": [
                        {
                            "id": str(i),
                            "question": "Where?",
                            "is_impossible": i > 3,
                            "answers": [{"text": "Oslo", "answer_start": 14}] if i < 4 else [],
                        }
                        for i in range(6)
                    ],
                }
            ],
        }
    ],
}
_PAGE = "<page><title>A</title><ns>0</ns><id>1</id><revision><id>2</id><text>{}</text>"
_PAGE += "</revision></page>"
_DUMP = "<mediawiki xmlns='x' xml:lang='en'><siteinfo><namespaces/></siteinfo>" + "".join(
    _PAGE.format("'''A''' is [[b|c]] {{d|e}}. &lt;ref&gt;x&lt;/ref&gt; A sentence.\n\n* item")
    for _ in range(5)
)
_RUN = {"name": "r", "point": "p", "failed": False, "scores": {"loss": 1.0}, "seed": 0}
_POINT = {"label": "p", "num_runs": 1, "num_failed": 0, "mean": 1.0, "std": None, "min": 1.0}
_SWEEP = {"primary_metric": "loss", "best": "r", "runs": [_RUN], "points": [_POINT | {"max": 1.0}]}


class Reader(NamedTuple):
    """A reader.

    Attributes:
      files: content of each file that is mutated, by its path in the directory.
      read: reads the directory.
      base: directory with further files; None without any.
      prepare: called with the directory after a file was mutated.
    """

    files: dict[str, bytes]
    read: Callable[[epath.Path], object]
    base: pathlib.Path | None = None
    prepare: Callable[[pathlib.Path], object] = lambda path: None


def make_readers(root: pathlib.Path) -> dict[str, Reader]:
    """Return the readers by name; models are written into a directory."""
    models = _write_models(root)
    readers = {
        "Hugging Face": _directory(models / "hf", _open_model),
        "bertjax": _directory(models / "bertjax", _open_model, _rewrite_list),
        "sentence-transformers": _directory(models / "st", find_pooling_config),
        "run": _directory(models / "run", lambda path: render_run("run", *read_run(path))),
        "sweep": Reader(
            {"sweep.json": json.dumps(_SWEEP).encode()},
            lambda path: render_sweep("sweep", read_sweep(path / "sweep.json")),
        ),
        "SQuAD scores": Reader(
            {
                "data.json": json.dumps(_SQUAD).encode(),
                "predictions.json": json.dumps({str(i): "Oslo" for i in range(6)}).encode(),
            },
            lambda path: score_files(path / "data.json", path / "predictions.json"),
        ),
        "corpus": _directory(models / "corpus", _open_corpus),
    }
    for name, content in _tables().items():
        readers[f"read_table {name}"] = _file(name, content, read_table)
    text, lines = _TEXT.encode(), "".join(json.dumps(row) + "\n" for row in _ROWS).encode()
    documents = {"x.txt": text, "x.txt.gz": gzip.compress(text), "x.jsonl": lines}
    documents |= {"x.xml": f"{_DUMP}</mediawiki>".encode(), "x.txt.bz2": bz2.compress(text)}
    documents |= {
        "x.parquet": _arrow("parquet"),
        "x.arrow": _arrow("file"),
        "x.csv": b"text,a\nb,c\n",
    }
    for name, content in documents.items():
        readers[f"read_documents {name}"] = _file(name, content, _read_documents)
    tagged = {
        "x.conll": _CONLL.encode(),
        "x.jsonl": b'{"words": ["a", "b"], "tags": ["O", "B-X"]}\n' * 9,
    }
    for name, content in tagged.items():
        readers[f"read_tagged_file {name}"] = _file(name, content, read_tagged_file)
    readers["read_squad"] = _file("x.json", json.dumps(_SQUAD).encode(), read_squad)
    choice = b'{"context": "a", "choices": ["b", "c"], "label": 1}\n' * 9
    readers["read_multiple_choice"] = _file("x.jsonl", choice, _read_choices)
    vocabulary = "\n".join(_tokens()).encode()
    readers["load_tokenizer"] = _file("vocab.txt", vocabulary, load_tokenizer)
    return readers


def _file(name: str, content: bytes, read: Callable[[Any], object]) -> Reader:
    return Reader({name: content}, lambda path: read(path / name))


def _directory(
    path: pathlib.Path,
    read: Callable[[Any], object],
    prepare: Callable[[pathlib.Path], object] = lambda path: None,
) -> Reader:
    files = {
        file.relative_to(path).as_posix(): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.stat().st_size < 1 << 20
    }
    return Reader(files, read, path, prepare)


def _tokens() -> list[str]:
    letters = "abcdefghijklmnopqrstuvwxyz.,!"
    return [*SPECIAL_TOKENS, *letters, *(f"##{letter}" for letter in letters), "the", "man"]


def _write_models(root: pathlib.Path) -> pathlib.Path:
    tokenizer = WordPieceTokenizer(_tokens(), cased=False)
    config = BertConfig(len(_tokens()), 1, 64, 1, max_position_embeddings=32, num_labels=2)
    shapes = param_shapes(config)
    params = map_named(
        lambda name, leaf: np.full(leaf.shape, 0.01, np.float32),
        {name: shapes[name] for name in ("encoder", "pooler", "sequence_classification")},
    )
    (root / "hf").mkdir()
    huggingface.write(
        NumpyModel(config, params, tokenizer, labels=("a", "b")), epath.Path(root / "hf")
    )
    # In a process of its own: threads of Orbax do not survive the forks of the campaign.
    if not (child := os.fork()):
        convert(root / "hf", root / "bertjax", "hf", "bertjax")
        os._exit(0)
    os.waitpid(child, 0)
    (root / "st" / "1_Pooling").mkdir(parents=True)
    modules = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "1_Pooling"}]
    for name, value in (
        ("modules.json", modules),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}),
        ("sentence_bert_config.json", {"max_seq_length": 32, "do_lower_case": False}),
        ("config_sentence_transformers.json", {"prompts": {"q": "x"}, "default_prompt_name": "q"}),
    ):
        (root / "st" / name).write_text(json.dumps(value))
    (root / "run").mkdir()
    metrics = [
        {"step": i, "split": s, "loss": 1.0 / i} for i in (1, 2, 3) for s in ("train", "eval")
    ]
    (root / "run" / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in metrics))
    (root / "run" / "config.json").write_bytes((root / "bertjax" / "config.json").read_bytes())
    _write_corpus(root)
    return root


def _write_corpus(root: pathlib.Path) -> None:
    (root / "text.txt").write_text("".join(f"{_TEXT[:60]} {i}\n\n" for i in range(60)))
    tokenizer = load_tokenizer(root / "hf")
    prepare([str(root / "text.txt")], tokenizer, root / "corpus", workers=1)


def _open_model(path: epath.Path) -> object:
    return PretrainedModel(path).config()


def _open_corpus(path: epath.Path) -> object:
    manifest = read_manifest(path)
    return [read_shard(path, info) for info in (*manifest.train_shards, *manifest.eval_shards)]


def _read_documents(path: epath.Path) -> object:
    return list(read_documents([str(path)]))


def _read_choices(path: epath.Path) -> object:
    return dataset_from_rows("x", read_table(path), True)


def _rewrite_list(path: pathlib.Path) -> None:
    """Update the digests of a checkpoint outside of its arrays: their author can do so."""
    try:
        listed = json.loads((path / "files.json").read_text())
        for name in listed:
            if "/" not in name:
                content = (path / name).read_bytes()
                listed[name] = [len(content), hashlib.sha256(content).hexdigest()]
        (path / "files.json").write_text(json.dumps(listed))
    except (ValueError, OSError, TypeError):
        pass


def _tables() -> dict[str, bytes]:
    lines = "".join(json.dumps(row) + "\n" for row in _ROWS)
    csv = "text,label\n" + "".join(f'"a, ""{i}""",{i % 2}\n' for i in range(30))
    return {
        "x.csv": csv.encode(),
        "x.tsv": csv.replace(",", "\t").encode(),
        "x.jsonl": lines.encode(),
        "x.json": json.dumps(_ROWS).encode(),
        "x.parquet": _arrow("parquet"),
        "x.arrow": _arrow("file"),
        "x.feather": _arrow("stream"),
    }


def _arrow(kind: str) -> bytes:
    table, content = pyarrow.Table.from_pylist(_ROWS), io.BytesIO()
    if kind == "parquet":
        parquet.write_table(table, content)
        return content.getvalue()
    with (ipc.new_file if kind == "file" else ipc.new_stream)(content, table.schema) as writer:
        writer.write_table(table)
    return content.getvalue()
