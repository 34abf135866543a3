"""Readers of files, each with the files that it reads."""

import hashlib
import json
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from etils import epath

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.formats.loading import read_model
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.mesh.device_mesh import make_mesh
from bertjax.mesh.sharding import sharded_shapes
from bertjax.reports.run import read_run, render_run
from bertjax.reports.sweep import read_sweep, render_sweep
from bertjax.tasks.question_answering.metrics import score_files
from bertjax.training.initialization import PretrainedModel
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.finetuning import multiple_choice, sequence_classification
from data_pipelines.finetuning.question_answering.squad import read_squad
from data_pipelines.finetuning.table import read_table
from data_pipelines.finetuning.token_classification.dataset import read_tagged_file
from data_pipelines.text.sources import read_documents
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.bench.mutations import inputs

_SAMPLE = "the old man, É, 中, and\u0301 \U0001f600 ffi!"


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


def make_readers(root: pathlib.Path, size: int) -> dict[str, Reader]:
    """Return the readers by name.

    Args:
      root: new directory for models.
      size: bytes of the files, or of the largest files of a directory, about.
    """
    inputs.write_models(root, size)
    data, predictions = inputs.squad(size)
    rewrite_all = partial(_rewrite_list, arrays=True)
    choices = [{"context": "a", "choices": ["b", "c"], "label": 1}] * (size // 52)
    readers = {
        "Hugging Face": _directory(root / "hf", _open_model),
        "TF1": _directory(root / "tf1", _open_model),
        "bertjax": _directory(root / "bertjax", _open_model, partial(_rewrite_list, arrays=False)),
        "bertjax arrays": _directory(root / "bertjax", read_model, rewrite_all, "params/"),
        "training state": _directory(root / "state", partial(_restore, size=size), rewrite_all),
        "sentence-transformers": _directory(root / "st", find_pooling_config),
        "run": _directory(root / "run", lambda path: render_run("run", *read_run(path))),
        "sweep": _file("sweep.json", inputs.sweep(size), _open_sweep),
        "SQuAD scores": Reader(
            {"data.json": data, "predictions.json": predictions},
            lambda path: score_files(path / "data.json", path / "predictions.json"),
        ),
        "corpus": _directory(root / "corpus", _open_corpus),
        "read_squad": _file("x.json", data, read_squad),
        "read_multiple_choice": _file("x.jsonl", inputs.json_lines(choices), _read_choices),
        "vocab.txt": _file("vocab.txt", "\n".join(inputs.vocabulary(size)).encode(), _open_tokens),
        "SentencePiece": _file("spm.model", inputs.sentencepiece_model(root, size), _open_tokens),
    }
    for prefix, files, read in (
        ("read_table", inputs.tables(size), _read_table),
        ("read_documents", inputs.documents(size), _read_documents),
        ("read_tagged_file", inputs.tagged(size), read_tagged_file),
    ):
        for name, content in files.items():
            readers[f"{prefix} {name}"] = _file(name, content, read)
    return readers


def _file(name: str, content: bytes, read: Callable[[Any], object]) -> Reader:
    return Reader({name: content}, lambda path: read(path / name))


def _directory(
    path: pathlib.Path,
    read: Callable[[Any], object],
    prepare: Callable[[pathlib.Path], object] = lambda path: None,
    mutated: str = "",
) -> Reader:
    """Return the reader of a directory, of which files whose paths start so are mutated."""
    files = {name: file for name, file in inputs.files_of(path) if name.startswith(mutated)}
    return Reader(files, read, path, prepare)


def _open_model(path: epath.Path) -> object:
    return PretrainedModel(path).config()


def _open_tokens(path: epath.Path) -> object:
    tokenizer = load_tokenizer(path)
    return tokenizer.decode(tokenizer.encode(_SAMPLE)), tokenizer.encode_with_offsets(_SAMPLE)


def _open_sweep(path: epath.Path) -> object:
    return render_sweep("sweep", read_sweep(path))


def _read_table(path: epath.Path) -> object:
    """Read texts and labels: a table's other columns may hold any number."""
    columns = sequence_classification.TableColumns(("text",), (), "label")
    data = sequence_classification.dataset_from_rows(
        str(path), read_table(path), columns, labeled=True
    )
    return data.texts, data.values


def _open_corpus(path: epath.Path) -> object:
    manifest = read_manifest(path)
    return [read_shard(path, info) for info in (*manifest.train_shards, *manifest.eval_shards)]


def _restore(path: epath.Path, size: int) -> object:
    mesh = make_mesh(1, 1, 1, jax.devices()[:1])
    return Checkpointer(path).restore(sharded_shapes(mesh, inputs.state(size)))


def _read_documents(path: epath.Path) -> object:
    return list(read_documents([str(path)]))


def _read_choices(path: epath.Path) -> object:
    return multiple_choice.dataset_from_rows("x", read_table(path), True)


def _rewrite_list(path: pathlib.Path, arrays: bool) -> None:
    """Update the digests of a checkpoint, of arrays too or not: its author can do so."""
    for listing in path.rglob("files.json"):
        try:
            listed = json.loads(listing.read_text())
            for name in listed:
                if arrays or "/" not in name:
                    content = (listing.parent / name).read_bytes()
                    listed[name] = [len(content), hashlib.sha256(content).hexdigest()]
            listing.write_text(json.dumps(listed))
        except (ValueError, OSError, TypeError):
            pass
