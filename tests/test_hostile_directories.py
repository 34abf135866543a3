"""Directories that somebody else wrote: no import, no read outside of them, no hang."""

import hashlib
import json
import os
import pathlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from conftest import TOKENIZER
from etils import epath
from random_models import draw_model
from safetensors.numpy import save_file

from bertjax.errors import CommandError
from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.convert import convert
from bertjax.model.bert_config import BertConfig
from bertjax.training.initialization import PretrainedModel
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.errors import InputError

SECONDS = 20  # of a case; a hang takes for ever
Change = Callable[[pathlib.Path], object]


def put(name: str, content: Any) -> Change:
    """Return a change that writes a file, JSON unless it is text."""
    text = content if isinstance(content, str) else json.dumps(content)
    return lambda path: (path / name).write_text(text)


def update(name: str, **fields: Any) -> Change:
    """Return a change that sets fields of a JSON file."""
    return lambda path: put(name, json.loads((path / name).read_text()) | fields)(path)


def link(name: str, target: str) -> Change:
    """Return a change that replaces a file by a link."""

    def change(path: pathlib.Path) -> None:
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(target)

    return change


def fifo(name: str) -> Change:
    """Return a change that replaces a file by a pipe, which nobody writes."""

    def change(path: pathlib.Path) -> None:
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)

    return change


def shards(target: str) -> Change:
    """Return a change that leaves the weights to an index with one file."""

    def change(path: pathlib.Path) -> None:
        (path / "model.safetensors").unlink()
        put("model.safetensors.index.json", {"weight_map": {"a": target}})(path)

    return change


def modules(name: str) -> Change:
    """Return a change that lets modules.json name the directory of the encoder."""
    types = [("Transformer", name), ("Pooling", "1_Pooling")]
    return put("modules.json", [{"type": kind, "path": path} for kind, path in types])


def manifest(name: str) -> Change:
    """Return a change that lists one file of a checkpoint."""
    return put("files.json", {name: [6, "0" * 64]})


OUTSIDE = ("../outside", "/dev/zero", "/etc/passwd", "a/../../outside", "away", "folder/outside")
DIRECTORIES: dict[str, tuple[str, Change]] = {  # format and change
    **{f"weights {name}": ("hf", shards(name)) for name in OUTSIDE},
    "weights nowhere": ("hf", shards("")),
    "weights with NUL": ("hf", shards("a\0b")),
    "weights of a bucket": ("hf", shards("gs://bucket/model.safetensors")),
    "weights without names": ("hf", shards(5)),  # type: ignore[arg-type]
    **{f"modules {name}": ("hf", modules(name)) for name in OUTSIDE},
    **{f"list {name}": ("bertjax", manifest(name)) for name in OUTSIDE},
    "list without sizes": ("bertjax", put("files.json", {"vocab.txt": "x"})),
    "list of lists": ("bertjax", put("files.json", [[1]])),
    **{
        f"task {name}": ("bertjax", update("config.json", task=name))
        for name in ("hostile_module:Task", "os:system", "hostile_module", "..:x", "", "a" * 10**6)
    },
    "task is a number": ("bertjax", update("config.json", task=5)),
    **{
        f"{name} is endless": ("hf", link(name, "/dev/zero"))
        for name in ("config.json", "vocab.txt", "model.safetensors", "tokenizer_config.json")
    },
    **{
        f"{name} is a pipe": ("hf", fifo(name))
        for name in ("config.json", "vocab.txt", "model.safetensors", "tokenizer.json")
    },
    "labels are a pipe": ("bertjax", fifo("labels.json")),
    "calibration is a pipe": ("bertjax", fifo("calibration.json")),
    "nested JSON": ("hf", put("config.json", "[" * 10**6)),
    "a number of a million digits": ("hf", put("config.json", "1" * 10**6)),
    "a billion layers": ("hf", update("config.json", num_hidden_layers=10**9)),
    "a huge vocabulary": ("hf", update("config.json", vocab_size=10**15)),
    "a huge token id": ("hf", put("tokenizer.json", {"a": 10**15})),
    "long words": ("hf", update("tokenizer_config.json", max_input_chars_per_word=10**9)),
    "labels without end": ("bertjax", put("labels.json", [5] * 1000)),
    **{
        f"arrays with {name} {content!r}": ("bertjax", put(f"params/{name}", content))
        for name, content in (("_METADATA", "{"), ("_METADATA", "{}"), ("manifest.ocdbt", "x"))
    },
    "arrays without files": ("bertjax", lambda path: shutil.rmtree(path / "params" / "d")),
    "no arrays": ("bertjax", lambda path: shutil.rmtree(path / "params")),
    "code of its own": ("hf", update("config.json", auto_map={"AutoModel": "hostile_module.X"})),
    "settings nested": ("hf", update("config.json", bertjax_inference={"task": {}})),
    "settings with code": (
        "hf",
        update("config.json", bertjax_inference={"task": "hostile_module:Task", "init": "/dev/x"}),
    ),
    "linked to itself": ("hf", link("config.json", "config.json")),
}


def rewrite_list(path: pathlib.Path) -> None:
    files = [file for file in path.rglob("*") if not file.is_symlink() and not file.is_dir()]
    contents = {
        file.relative_to(path).as_posix(): b"" if file.is_fifo() else file.read_bytes()
        for file in files
        if file.name not in ("files.json", "outside")
    }
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    put("files.json", {name: [len(contents[name]), digests[name]] for name in contents})(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> pathlib.Path:
    """Directory of a small model in two formats."""
    path = tmp_path_factory.mktemp("models")
    model = draw_model(
        BertConfig(128, 1, 64, 1, max_position_embeddings=32), TOKENIZER, "pooler", "mlm"
    )
    (path / "hf").mkdir()
    huggingface.write(model, epath.Path(path / "hf"))
    convert(path / "hf", path / "bertjax", "hf", "bertjax")
    return path


@pytest.fixture(scope="module")
def opened() -> Iterator[list[str]]:
    """Paths that were opened and modules that were imported, by any code."""
    events: list[str] = []
    is_active = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if is_active and event in ("open", "import"):
            events.append(str(arguments[0]))

    sys.addaudithook(hook)  # which cannot be removed
    yield events
    is_active = False


@pytest.fixture
def time_limit() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError("the directory is not opened in time")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def test_there_are_fifty_directories() -> None:
    assert len(DIRECTORIES) >= 50


@pytest.mark.seconds
@pytest.mark.parametrize("name", DIRECTORIES)
def test_hostile_directory(
    name: str, models, opened, time_limit, tmp_path, monkeypatch, capfd
) -> None:
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    kind, change = DIRECTORIES[name]
    path = tmp_path / "model"
    shutil.copytree(models / kind, path)
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "outside")
    (tmp_path / "outside_folder").mkdir()
    shutil.copy(tmp_path / "outside", tmp_path / "outside_folder" / "outside")
    (path / "away").symlink_to(tmp_path / "outside")
    (path / "folder").symlink_to(tmp_path / "outside_folder")
    change(path)
    if kind == "bertjax" and not name.startswith("list"):
        rewrite_list(path)  # whoever changes a file can change its digest
    del opened[:]
    try:
        find_pooling_config(path)
        model = PretrainedModel(path)
        model.config()
        model.host_params()
    except (InputError, CommandError) as error:
        assert kind == "hf" or "has changed" not in str(error)
        assert len(str(error)) <= 500 and str(error).isprintable()
    else:
        # Settings that are not read, or have no effect.
        assert name in ("code of its own", "settings with code")
    outside = ("/dev/", "/etc/passwd", "outside", "hostile_module")
    assert not [event for event in opened if event.startswith(outside[:2])]
    assert not [event for event in opened if event.endswith(outside[2:])]


@pytest.mark.parametrize("name", OUTSIDE)
def test_hostile_manifest_of_a_corpus(name: str, corpus, opened, tmp_path) -> None:
    path = tmp_path / "corpus"
    shutil.copytree(corpus, path)
    content = json.loads((path / "manifest.json").read_text())
    content["train_shards"][0]["name"] = name
    put("manifest.json", content)(path)
    (tmp_path / "outside").write_text("secret")
    (path / "away").symlink_to(tmp_path / "outside")
    (path / "folder").symlink_to(tmp_path)
    del opened[:]
    with pytest.raises(InputError, match="not inside its directory"):
        read_shard(path, read_manifest(path).train_shards[0])
    assert not [event for event in opened if event.endswith(("outside", "passwd", "zero"))]
