"""Weights of Hugging Face's directories under other names, in other files and with other JSON."""

import dataclasses
import functools
import json
import pathlib
import random
import sys
import types
from collections.abc import Callable
from typing import NamedTuple

import model_files
import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from model_files import CONFIG, TOKENIZER, assert_same, write_hf
from random_models import draw_model

from bertjax.formats.detection import find_format
from bertjax.formats.huggingface import read
from bertjax.formats.tensors import NumpyModel
from bertjax.formats.weights import read_files
from data_pipelines import log
from data_pipelines.errors import InputError

MUTATIONS = 12
HEADS = ("pooler", "mlm", "sequence_classification")
PREFIXES = ("", "module.", "model.", "_orig_mod.", "bert.", "module.model.", "encoder.bert_model.")
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _forget_warnings(monkeypatch) -> None:
    monkeypatch.setattr(log, "_logged", set())


@functools.cache  # shapes take a second
def draw(*heads: str) -> NumpyModel:
    return model_files.draw(*heads)


@functools.cache
def draw_classifier(num_labels: int) -> NumpyModel:
    config = dataclasses.replace(CONFIG, num_labels=num_labels)
    return draw_model(config, TOKENIZER, *HEADS)


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load((path / WEIGHTS).read_bytes())


def save(path: pathlib.Path, arrays: dict[str, np.ndarray]) -> None:
    (path / WEIGHTS).write_bytes(safetensors.numpy.save(arrays))


@pytest.mark.parametrize("keeps_bert", [False, True])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_read_removes_a_prefix(prefix: str, keeps_bert: bool, tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    path = write_hf(draw("pooler"), tmp_path / "hf")  # BertModel: names have no "bert."
    save(path, {f"{prefix}{'bert.' * keeps_bert}{n}": a for n, a in load(path).items()})
    assert_same(read(path), draw("pooler"))
    is_plain = prefix == "" or (prefix == "bert." and not keeps_bert)
    assert (f"names of arrays begin with {prefix!r}" in caplog.text) is not is_plain


def test_read_removes_wrappers_of_layers(tmp_path) -> None:
    path = write_hf(draw_classifier(2), tmp_path / "hf")
    wrapper = "_fsdp_wrapped_module."
    arrays = {n.replace("attention.", f"{wrapper}attention."): a for n, a in load(path).items()}
    save(path, {f"{wrapper}{name}": array for name, array in arrays.items()})
    assert_same(read(path), draw_classifier(2))


def test_read_rejects_two_encoders_and_names_that_meet(tmp_path) -> None:
    path = write_hf(draw("pooler"), tmp_path / "hf")
    arrays = load(path)
    towers = {f"{tower}.{n}": a for tower in ("query", "passage") for n, a in arrays.items()}
    save(path, towers)
    with pytest.raises(InputError, match=r"holds 2 encoders, whose names begin with passage\., qu"):
        read(path)
    save(path, arrays | {"module.pooler.dense.bias": arrays["pooler.dense.bias"]})
    assert "module.pooler.dense.bias" in read(path).unexpected_keys
    save(path, arrays | {"embeddings.LayerNorm.gamma": arrays["embeddings.LayerNorm.weight"]})
    with pytest.raises(InputError, match=r"holds bert.embeddings.LayerNorm.weight twice"):
        read(path)


@pytest.mark.seconds
def test_read_names_arrays_of_another_kind(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    save(path, {f"layer_{i}": np.zeros(2, np.float32) for i in range(5)})
    message = r"lacks bert\.\S+ \S+ \S+ and .. more and has layer_0, layer_1, layer_2 and 2 more"
    with pytest.raises(InputError, match=message):
        read(path)


def test_write_keeps_the_values_of_strided_arrays(tmp_path) -> None:
    model = model_files.draw("pooler")
    for table in ("word", "type", "position"):
        array = model.params["encoder"]["embeddings"][table]
        model.params["encoder"]["embeddings"][table] = np.repeat(array, 2, axis=1)[:, ::2]
    assert_same(read(write_hf(model, tmp_path / "hf")), draw("pooler"))


def test_read_of_torch_tensors_that_are_views_is_contiguous(tmp_path, monkeypatch) -> None:
    class Tensor(NamedTuple):
        array: np.ndarray

        def float(self) -> "Tensor":
            return self

        def numpy(self) -> np.ndarray:
            return self.array

    path = write_hf(draw("pooler"), tmp_path / "hf")
    tensors = {name: Tensor(np.asfortranarray(array)) for name, array in load(path).items()}
    torch = types.SimpleNamespace(Tensor=Tensor, load=lambda *args, **options: tensors)
    monkeypatch.setitem(sys.modules, "torch", torch)
    (path / WEIGHTS).rename(path / "pytorch_model.bin")
    assert all(array.flags.c_contiguous for array in read_files(epath.Path(path)).values())
    assert_same(read(path), draw("pooler"))


@pytest.mark.seconds
def test_read_uses_the_bias_of_the_decoder(tmp_path, caplog) -> None:
    path = write_hf(draw("mlm"), tmp_path / "hf")
    arrays = load(path)
    bias = arrays["cls.predictions.bias"] + 1
    for keeps_other in (True, False):
        others = arrays if keeps_other else {n: a for n, a in arrays.items() if "ons.bias" not in n}
        save(path, others | {"cls.predictions.decoder.bias": bias})
        np.testing.assert_array_equal(read(path).params["mlm"]["bias"], bias)
    assert caplog.text.count("cls.predictions.decoder.bias is used, not cls.predictions.bias") == 1
    (path / "config.json").write_text(
        json.dumps(json.loads((path / "config.json").read_text()) | {"tie_word_embeddings": False})
    )
    read(path)
    assert "tie_word_embeddings=false and no decoder" in caplog.text


@pytest.mark.parametrize(
    ("id2label", "message"),
    [
        ({"0": "a", "1": "b", "2": "a"}, "names the outputs 0 and 2 'a', so their scores have one"),
        ({"0": "a", "2": "b", "3": "c"}, "id2label has the ids 0, 2, 3, not 0 to 2"),
        ({"0": "a", "1": "b"}, "id2label names 2 labels, the head has 3 outputs"),
        (["a", "b", "c"], "not an object of ids and names"),
        ({"a": 0, "b": 1, "c": 2}, "not an object of ids and names"),
    ],
)
def test_read_rejects_ambiguous_labels(id2label, message: str, tmp_path) -> None:
    path = write_hf(draw_classifier(3), tmp_path / "hf", id2label=id2label)
    with pytest.raises(InputError, match=message):
        read(path)


def test_read_rejects_an_unknown_problem_type(tmp_path) -> None:
    path = write_hf(draw_classifier(2), tmp_path / "hf", problem_type="multilabel")
    with pytest.raises(InputError, match=r"problem_type='multilabel': unknown value\. Use single_"):
        read(path)


def test_read_warns_of_label2id_that_contradicts(tmp_path, caplog) -> None:
    model = draw_classifier(2)
    names = {"0": "a", "1": "b"}
    read(write_hf(model, tmp_path / "hf", id2label=names, label2id={"a": 0, "b": 1}))
    assert "label2id" not in caplog.text
    read(write_hf(model, tmp_path / "alone", id2label=None, label2id={"a": 0, "b": 1}))
    assert "label2id has 'a'=0, id2label 'LABEL_0'" in caplog.text
    path = write_hf(model, tmp_path / "hf", id2label=names, label2id={"a": 1, "b": 0})
    assert read(path).labels == ("a", "b")
    assert "label2id has 'a'=1, id2label 'b'. id2label is used" in caplog.text


def mutate_json(path: pathlib.Path, draw: random.Random) -> None:
    content = json.loads(path.read_text())
    if isinstance(content, dict):
        names = [*content]
        draw.shuffle(names)
        content = {name: content[name] for name in names}
    text = json.dumps(content, indent=draw.choice([None, 1, 4]), ensure_ascii=draw.random() < 0.5)
    end = draw.choice(["\n", "\r\n"])
    encoding = draw.choice(["utf-8", "utf-8-sig"])
    path.write_bytes((text.replace("\n", end) + end * draw.randint(0, 2)).encode(encoding))


def mutate_weights(path: pathlib.Path, draw: random.Random) -> None:
    """Rename arrays, reorder them, and distribute them over several files."""
    prefix, has_old_names = draw.choice(PREFIXES), draw.random() < 0.5
    rename: Callable[[str], str] = lambda n: (  # noqa: E731
        n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        if has_old_names
        else n
    )
    items = [(f"{prefix}{rename(name)}", array) for name, array in load(path).items()]
    draw.shuffle(items)
    count = draw.randint(1, 4)
    if count == 1:
        return save(path, dict(items))
    (path / WEIGHTS).unlink()
    files = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    for i, file in enumerate(files):
        (path / file).write_bytes(safetensors.numpy.save(dict(items[i::count])))
    weight_map = {name: files[i % count] for i, (name, _) in enumerate(items)}
    (path / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.seconds
def test_read_ignores_how_the_directory_was_written(tmp_path) -> None:
    draws = random.Random(0)
    model = draw_classifier(2)
    for number in range(MUTATIONS):
        path = write_hf(model, tmp_path / str(number))
        (path / draws.choice(["vocab.txt", "tokenizer.json", "no file"])).unlink(missing_ok=True)
        mutate_weights(path, draws)
        for file in path.glob("*.json"):
            mutate_json(file, draws)
        found = read(path)
        assert_same(found, model)
        assert (found.labels, found.problem_type) == (("LABEL_0", "LABEL_1"), model.problem_type)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("tf_model.h5", r"has tf_model.h5, weights of Keras. Save it .*from_tf=True"),
        (
            "flax_model.msgpack",
            r"has flax_model.msgpack, weights of Flax. Save it .*from_flax=True",
        ),
        ("adapter_config.json", "an adapter of peft, not a model. Merge it into its base model"),
        ("saved_model.pb", "a SavedModel of TF2. Give the checkpoint"),
        ("model.fp16.safetensors", "no model.safetensors, but model.fp16.safetensors. If it holds"),
        ("model.onnx", "an ONNX model. Give the model from which"),
        ("onnx/model.onnx", "an ONNX model. Give the model from which"),
        ("best.pt", "no pytorch_model.bin, but best.pt. If it holds the weights, rename it"),
        ("snapshots/abc/model.safetensors", "holds some. Give one, such as .*snapshots/abc"),
        ("checkpoint-90/model.safetensors", "holds some. Give one, such as .*checkpoint-90"),
    ],
)
def test_find_format_names_what_a_directory_is(file: str, message: str, tmp_path) -> None:
    for name in (file, "checkpoint-9/config.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=message):
        find_format(tmp_path)


def test_read_accepts_the_names_of_early_converters(tmp_path) -> None:
    path = write_hf(draw_classifier(2), tmp_path / "hf")
    (path / "config.json").rename(path / "bert_config.json")
    assert_same(read(path), draw_classifier(2))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (WEIGHTS, b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS, not"),
        ("vocab.txt", b"version https://git-lfs.github.com/spec/v1", "is a pointer of Git LFS"),
        ("vocab.txt", b"\x1f\x8b\x08", "is compressed by gzip. Decompress it"),
        ("vocab.txt", b"1,[PAD]\n2,[UNK]", r"added token '\[PAD\]': .* is that of '1,\[PAD\]'"),
        (
            "config.json",
            b'{"hidden_size": 64, "vocab_size": "40"}',
            "vocab_size='40': not a whole number",
        ),
    ],
)
def test_read_names_damaged_files(file: str, content: bytes, message: str, tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    (path / file).write_bytes(content)
    with pytest.raises(InputError, match=f"^{path}.*{message}"):
        read(path)


@pytest.mark.parametrize(
    ("shape", "numbers", "size", "message"),
    [
        ([0, 2**62], 0, None, r"cannot be read \(array is too big"),
        ([1] * 100, 1, None, r"cannot be read \(maximum supported dimension"),
        ([2**32, 2**32], 1, None, r"cannot be read \(.*overflow computing buffer size"),
        ([10**12], 10**12, None, r"cannot be read \(.*incomplete metadata"),
        ([10**12], 10**12, 2**42, r"has 4,096.00 GiB, and this process has .* memory left"),
    ],
)
def test_read_rejects_arrays_that_claim_huge_sizes(shape, numbers, size, message, tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * numbers]}
    header = json.dumps({"a": entry}).encode()
    with (path / WEIGHTS).open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header + bytes(4 * min(numbers, 1)))
        file.truncate(size)  # a sparse file takes no space
    with pytest.raises(InputError, match=f"^{path / WEIGHTS}: {message}"):
        read(path)
