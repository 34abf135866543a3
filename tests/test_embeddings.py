"""Vectors of texts, words and pieces: what they are, and the files that hold them."""

import functools
import itertools
import json
import pathlib
import re
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import draw_model

from bertjax.cli.main import main
from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference import feature_extraction as module
from bertjax.inference.feature_extraction import Features
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.pooling import POOLING_MODES, normalize, pool
from bertjax.tasks.embeddings import EmbeddingOptions, Objective, TextEmbeddings, embed_texts
from data_pipelines.errors import InputError

CONFIG = BertConfig(128, 2, 64, 4, max_position_embeddings=128)
MODEL = draw_model(CONFIG, toy_tasks.TOKENIZER)
TEXTS = [
    "ba do ki",
    "lu",
    "",
    "me nora si " * 30,
    "tu, ve. baki!",
    *(["ra " * n for n in range(1, 7)]),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("model")
    huggingface.write(MODEL, path)
    return path


_apply = jax.jit(
    functools.partial(Encoder(CONFIG).apply, deterministic=True), static_argnames="layers"
)


def alone(text: str, layers: tuple[int, ...] = (-1,)) -> np.ndarray:
    """The vectors [L, T, H] of a text that has a row for itself."""
    ids = [
        toy_tasks.TOKENIZER.cls_id,
        *toy_tasks.TOKENIZER.encode(text)[:126],
        toy_tasks.TOKENIZER.sep_id,
    ]
    row, places = np.zeros((1, 128), np.int32), np.arange(128, dtype=np.int32)[None]
    row[0, : len(ids)] = ids
    inputs = (row, 0 * row, (places < len(ids)).astype(np.int32), places)
    params = {"params": MODEL.params["encoder"]}
    return np.asarray(_apply(params, *inputs, layers=layers))[:, 0, : len(ids)]


@pytest.mark.parametrize("how", POOLING_MODES)
@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_a_row_is_pooled_text_by_text(how, lengths) -> None:
    example_ids = np.repeat(np.arange(len(lengths)) + 1, lengths)
    example_ids = np.pad(example_ids, (0, 16 - len(example_ids)))[None]
    embeddings = np.random.default_rng(0).normal(size=(1, 16, 3)).astype(np.float32)
    found = np.asarray(pool(jnp.asarray(embeddings), jnp.asarray(example_ids), 4, how))
    assert found.shape == (1, 4, 3) and not found[0, len(lengths) :].any()
    level = {
        "mean": lambda x: x.mean(axis=0),
        "cls": lambda x: x[0],
        "max": lambda x: x.max(axis=0),
    }
    for slot in range(len(lengths)):
        expected = level[how](embeddings[0, example_ids[0] == slot + 1])
        np.testing.assert_allclose(found[0, slot], expected, rtol=1e-5, atol=1e-6)


def test_normal_vectors_have_length_one_but_for_nothing() -> None:
    found = np.asarray(normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0]], rtol=1e-6)


@pytest.mark.parametrize("how", POOLING_MODES)
def test_a_text_has_its_vector_whatever_is_beside_it(how, model) -> None:
    layers = (-1, 0)
    found = Features(model, EmbeddingOptions(layers, pool=how)).encode(TEXTS)
    assert found.embeddings.shape == (len(TEXTS), 64) and found.num_truncated == 0
    level = {
        "mean": lambda x: x.mean(axis=0),
        "cls": lambda x: x[0],
        "max": lambda x: x.max(axis=0),
    }
    for text, vector in zip(TEXTS, found.embeddings, strict=True):
        expected = level[how](alone(text, layers).mean(axis=0))
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_so_have_pieces_and_words(model) -> None:
    layers = (0, -2, -1)
    tokens = Features(model, EmbeddingOptions(layers, "pieces")).encode(TEXTS)
    words = Features(model, EmbeddingOptions(layers, "words")).encode(TEXTS)
    assert tokens.names is not None and words.names is not None
    assert words.names[0] == ["ba", "do", "ki"] and words.names[2] == []
    assert words.names[4] == ["tu", ",", "ve", ".", "baki", "!"]
    at = of_words = 0
    for text, names, own in zip(TEXTS, tokens.names, words.names, strict=True):
        assert names[0] == "[CLS]" and names[-1] == "[SEP]"
        expected = alone(text, layers).swapaxes(0, 1)
        found = tokens.embeddings[at : at + len(names)]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        at += len(names)
        starts = [i for i, name in enumerate(names) if i and name[:2] != "##"]
        for first, end in itertools.pairwise(starts):
            mean = expected[first:end].mean(axis=0)
            np.testing.assert_allclose(words.embeddings[of_words], mean, atol=1e-5)
            of_words += 1
        assert len(own) == len(starts) - 1
    assert at == len(tokens.embeddings) and of_words == len(words.embeddings)


class _Shapes:
    """Computes nothing, and keeps the shapes of the rows it is given."""

    def __init__(self) -> None:
        self.seen = set[tuple[int, ...]]()

    def run(self, batches) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            self.seen.add(batch["input_ids"].shape)
            yield {"embeddings": np.zeros((*batch["cls_positions"].shape, 1), np.float32)}


def test_many_texts_are_computed_in_one_shape_for_each_length_and_one_text_in_its_own() -> None:
    config = Config(model=CONFIG, max_seq_length=128, batch_size=1)
    objective = Objective(config, 1, EmbeddingOptions(max_seq_length=128))
    random, shapes = np.random.default_rng(0), _Shapes()
    for _ in range(5):
        texts = ["ba " * n for n in random.integers(1, 120, size=500)]
        embed_texts(texts, shapes, toy_tasks.TOKENIZER, objective)
    assert shapes.seen == {(16, 64), (8, 128)}
    few = _Shapes()
    embed_texts(["ba do"], few, toy_tasks.TOKENIZER, objective)
    assert few.seen == {(1, 64)}


def test_longer_texts_are_cut_and_counted(model, caplog, tmp_path) -> None:
    long = " ".join(["ba"] * 300)
    with caplog.at_level("WARNING", "bertjax"):
        Features(model, EmbeddingOptions()).write([long, "ba", long], tmp_path / "a.npz")
    assert "2 of 3 texts are longer than 128 pieces and were cut" in caplog.text
    found = np.load(tmp_path / "a.npz")["embeddings"]
    np.testing.assert_allclose(found[0], alone(long)[0].mean(axis=0), atol=1e-5)


def vectors_in(path: pathlib.Path) -> np.ndarray:
    if path.suffix == ".npz":
        return np.load(path)["embeddings"]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        from pyarrow import parquet

        rows = parquet.read_table(path).to_pylist()
    assert [row["text"] for row in rows] == [text.strip() for text in TEXTS]
    if "embedding" in rows[0]:
        return np.array([row["embedding"] for row in rows], np.float32)
    flat = [
        np.array(own, np.float32).reshape(-1, 2, 64) for row in rows for own in row["embeddings"]
    ]
    return np.concatenate(flat)


@pytest.mark.parametrize(
    "wanted", [EmbeddingOptions(normalize=True), EmbeddingOptions((-1, -2), "pieces")]
)
def test_work_that_is_stopped_goes_on_to_the_same_bytes_in_every_format(
    wanted, model, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", dict.fromkeys(("text", "pieces"), 5))
    computed: list[int] = []

    class Counting(Features):
        def encode(self, texts: Sequence[str]) -> TextEmbeddings:
            computed.append(len(texts))
            return super().encode(texts)

    features = Counting(model, wanted)

    def lines(stop: int | None = None) -> Iterator[str]:
        for number, text in enumerate(TEXTS):
            if number == stop:
                raise KeyboardInterrupt
            yield json.dumps({"text": text.strip()}) if number % 2 else f"{text}\n"

    kept = {}
    for suffix in (".npz", ".jsonl", ".parquet"):
        whole, again = tmp_path / f"whole{suffix}", tmp_path / f"again{suffix}"
        assert features.write(lines(), whole) == len(TEXTS)
        for stop in (5, 8, 10):
            with pytest.raises(KeyboardInterrupt):
                features.write(lines(stop), again)
        computed.clear()
        features.write(lines(), again)
        assert computed == [len(TEXTS) - 10]
        assert whole.read_bytes() == again.read_bytes()
        kept[suffix] = vectors_in(whole)
        assert not list(tmp_path.glob("*.partial"))
    for other in kept.values():
        np.testing.assert_array_equal(other.reshape(kept[".npz"].shape), kept[".npz"])


def test_what_was_begun_otherwise_is_not_gone_on_with(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", {"text": 2})

    def stopped() -> Iterator[str]:
        yield from ("ba", "do", "ki")
        raise KeyboardInterrupt

    output = tmp_path / "a.npz"
    with pytest.raises(KeyboardInterrupt):
        Features(model, EmbeddingOptions()).write(stopped(), output)
    with pytest.raises(InputError, match="holds parts of other arguments or another model"):
        Features(model, EmbeddingOptions(pool="cls")).write(["ba"], output)
    with pytest.raises(InputError, match=r"the input is not what .* was begun with"):
        Features(model, EmbeddingOptions()).write(["ba", "me", "ki"], output)
    Features(model, EmbeddingOptions()).write(["ba", "do", "me"], output)
    with pytest.raises(InputError, match=r"a\.npz exists: name another file, or remove it"):
        Features(model, EmbeddingOptions()).write(["ba"], output)


def publish(path: pathlib.Path, *kinds: str, **pooling: bool) -> pathlib.Path:
    """A directory of sentence-transformers."""
    huggingface.write(MODEL, path)
    modules = [
        {
            "idx": i,
            "path": "" if kind == "Transformer" else f"{i}_{kind}",
            "type": f"s_t.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 16}')
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return path


def test_a_directory_of_sentence_transformers_brings_its_recipe(tmp_path, capsys) -> None:
    kinds = "Transformer", "Pooling", "Normalize"
    path = publish(tmp_path, *kinds, pooling_mode_max_tokens=True, pooling_mode_cls_token=False)
    assert find_pooling_config(path) == (path, "max", True, 16)
    (tmp_path / "in.txt").write_text("ba do\n" + "ki " * 40)
    given = ["embed", "--checkpoint", str(path), "--input", str(tmp_path / "in.txt"), "--output"]
    assert main([*given, str(tmp_path / "own.npz")]) == 0
    found = np.load(tmp_path / "own.npz")["embeddings"]
    expected = alone("ba do")[0].max(axis=0)
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)
    expected = alone("ki " * 14)[0].max(axis=0)  # cut to 16 pieces
    np.testing.assert_allclose(found[1], expected / np.linalg.norm(expected), atol=1e-5)
    assert main([*given, str(tmp_path / "cls.npz"), "--pooling", "cls", "--layers", "-1,-2"]) == 0
    found = np.load(tmp_path / "cls.npz")["embeddings"]
    expected = alone("ba do", (-1, -2)).mean(axis=0)[0]
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_to_convert_it_tells_that_its_recipe_stays_behind(tmp_path, capsys) -> None:
    (tmp_path / "from").mkdir()
    path = publish(tmp_path / "from", "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    assert main(["convert", "--to", "bertjax", str(path), str(tmp_path / "to")]) == 0
    assert "has no pooling configuration: give `bertjax embed`" in capsys.readouterr().out


def test_modules_that_bertjax_has_not_are_refused(tmp_path) -> None:
    path = publish(tmp_path, "Transformer", "Pooling", "Dense", pooling_mode_mean_tokens=True)
    with pytest.raises(InputError, match="has the modules Transformer, Pooling, Dense; bertjax"):
        find_pooling_config(path)
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps(modules[:2]))
    assert find_pooling_config(path) == (path, "mean", False, 16)
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(InputError, match="pools by pooling_mode_lasttoken and bertjax by one of"):
        find_pooling_config(path)


@pytest.mark.parametrize(
    ("given", "content", "complaint"),
    [
        ("--layers 3", "ba", "there is no layer 3 in a model of 2 layers: choose from 0"),
        ("--layers last", "ba", "--layers=last: not numbers"),
        ("--level sentences", "ba", "--level sentences is unknown: use text, words, pieces"),
        ("--pooling sum", "ba", "--pooling sum is unknown: use mean, cls, max"),
        (
            "--level words --pooling cls",
            "ba",
            "--pooling=cls: not for --level=words",
        ),
        ("--level words --normalize", "ba", "--normalize is for --level text and not for words"),
        ("--output DIR/a.csv", "ba", r"DIR/a.csv is to end in .jsonl, .npz, .parquet"),
        ("--output DIR/no/a.npz", "ba", "is to lie in DIR/no, which is no directory: make it"),
        ("", "", "the input has no lines: give some text"),
        ("", 'ba\n{"text": 3}', 'line 2 has no "text": write'),
        ("", 'ba\n\n{"body": "ba"}', 'line 3 has no "text": write'),
        ("", "ba\n{ba", "line 2: not JSON .*. Write one object per line"),
        ("--input DIR/nothing.txt", "ba", "DIR/nothing.txt: no such file"),
        ("--checkpoint DIR/nowhere", "ba", "there is no .*nowhere"),
    ],
)
def test_what_cannot_be_done_is_refused(
    given, content, complaint, model, tmp_path, refused
) -> None:
    (tmp_path / "in.txt").write_text(content)
    plain = {"checkpoint": model, "input": tmp_path / "in.txt", "output": tmp_path / "out.npz"}
    flags = [flag for name, value in plain.items() for flag in (f"--{name}", value)]
    flags += given.replace("DIR", str(tmp_path)).split()
    sentence = refused("embed", *flags)
    assert re.search(complaint.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
    assert not (tmp_path / "out.npz").exists()
