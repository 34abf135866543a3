"""Embeddings of texts, words and tokens, and the files that hold them."""

import functools
import itertools
import json
import pathlib
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import draw_model

from bertjax.formats import huggingface
from bertjax.inference import feature_extraction as module
from bertjax.inference.feature_extraction import Embedder
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.pooling import POOLING_MODES, l2_normalize, pool
from bertjax.tasks.embeddings.encoder_embeddings import (
    EmbeddingOptions,
    TextEmbeddings,
)
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


def embed_alone(text: str, layers: tuple[int, ...] = (-1,)) -> np.ndarray:
    """Return the embeddings [L, T, H] of a text that has a sequence for itself."""
    ids = [
        toy_tasks.TOKENIZER.cls_id,
        *toy_tasks.TOKENIZER.encode(text)[:126],
        toy_tasks.TOKENIZER.sep_id,
    ]
    input_ids, position_ids = np.zeros((1, 128), np.int32), np.arange(128, dtype=np.int32)[None]
    input_ids[0, : len(ids)] = ids
    example_ids = (position_ids < len(ids)).astype(np.int32)
    inputs = (input_ids, 0 * input_ids, example_ids, position_ids)
    params = {"params": MODEL.params["encoder"]}
    return np.asarray(_apply(params, *inputs, layers=layers))[:, 0, : len(ids)]


@pytest.mark.seconds
@pytest.mark.parametrize("pooling", POOLING_MODES)
@settings(max_examples=20)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_pool_pools_each_text_of_a_sequence(pooling, lengths) -> None:
    example_ids = np.repeat(np.arange(len(lengths)) + 1, lengths)
    example_ids = np.pad(example_ids, (0, 16 - len(example_ids)))[None]
    embeddings = np.random.default_rng(0).normal(size=(1, 16, 3)).astype(np.float32)
    pooled = np.asarray(pool(jnp.asarray(embeddings), jnp.asarray(example_ids), 4, pooling))
    assert pooled.shape == (1, 4, 3) and not pooled[0, len(lengths) :].any()
    expected_pools = {
        "mean": lambda x: x.mean(axis=0),
        "cls": lambda x: x[0],
        "max": lambda x: x.max(axis=0),
    }
    for slot in range(len(lengths)):
        expected = expected_pools[pooling](embeddings[0, example_ids[0] == slot + 1])
        np.testing.assert_allclose(pooled[0, slot], expected, rtol=1e-5, atol=1e-6)


def test_normalize_gives_length_one_except_for_zero() -> None:
    normalized = np.asarray(l2_normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])))
    np.testing.assert_allclose(normalized, [[0.6, 0.8], [0, 0]], rtol=1e-6)


@pytest.mark.seconds
@pytest.mark.parametrize("pooling", POOLING_MODES)
def test_embedding_of_a_text_does_not_depend_on_the_others(pooling, model) -> None:
    layers = (-1, 0)
    found = Embedder(model, EmbeddingOptions(layers, pooling=pooling)).encode(TEXTS)
    assert found.embeddings.shape == (len(TEXTS), 64) and found.num_truncated == 0
    expected_pools = {
        "mean": lambda x: x.mean(axis=0),
        "cls": lambda x: x[0],
        "max": lambda x: x.max(axis=0),
    }
    for text, vector in zip(TEXTS, found.embeddings, strict=True):
        expected = expected_pools[pooling](embed_alone(text, layers).mean(axis=0))
        np.testing.assert_allclose(vector, expected, atol=1e-5)


@pytest.mark.seconds
def test_embeddings_of_tokens_and_words_agree_with_those_of_one_text(model) -> None:
    layers = (0, -2, -1)
    tokens = Embedder(model, EmbeddingOptions(layers, "token")).encode(TEXTS)
    words = Embedder(model, EmbeddingOptions(layers, "word")).encode(TEXTS)
    assert tokens.tokens is not None and words.tokens is not None
    assert words.tokens[0] == ["ba", "do", "ki"] and words.tokens[2] == []
    assert words.tokens[4] == ["tu", ",", "ve", ".", "baki", "!"]
    num_tokens = num_words = 0
    for text, text_tokens, text_words in zip(TEXTS, tokens.tokens, words.tokens, strict=True):
        assert text_tokens[0] == "[CLS]" and text_tokens[-1] == "[SEP]"
        expected = embed_alone(text, layers).swapaxes(0, 1)
        embeddings = tokens.embeddings[num_tokens : num_tokens + len(text_tokens)]
        np.testing.assert_allclose(embeddings, expected, atol=1e-5)
        num_tokens += len(text_tokens)
        starts = [i for i, token in enumerate(text_tokens) if i and token[:2] != "##"]
        for first, end in itertools.pairwise(starts):
            mean = expected[first:end].mean(axis=0)
            np.testing.assert_allclose(words.embeddings[num_words], mean, atol=1e-5)
            num_words += 1
        assert len(text_words) == len(starts) - 1
    assert num_tokens == len(tokens.embeddings) and num_words == len(words.embeddings)


@pytest.mark.seconds
def test_embedder_truncates_and_counts_long_texts(model, caplog, tmp_path) -> None:
    long = " ".join(["ba"] * 300)
    with caplog.at_level("WARNING", "bertjax"):
        Embedder(model, EmbeddingOptions()).write([long, "ba", long], tmp_path / "a.npz")
    assert "2 of 3 texts are longer than 128 tokens and were truncated" in caplog.text
    found = np.load(tmp_path / "a.npz")["embeddings"]
    np.testing.assert_allclose(found[0], embed_alone(long)[0].mean(axis=0), atol=1e-5)


@pytest.mark.seconds
def test_write_reports_truncated_texts_of_kept_parts(model, tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", {"text": 2})
    texts = ["ba " * 300, "ba", "do"]

    def stopped() -> Iterator[str]:
        yield from texts
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Embedder(model, EmbeddingOptions()).write(stopped(), tmp_path / "a.npz")
    with caplog.at_level("WARNING", "bertjax"):
        Embedder(model, EmbeddingOptions()).write(texts, tmp_path / "a.npz")
    assert "1 of 3 texts are longer than 128 tokens and were truncated" in caplog.text
    assert {*np.load(tmp_path / "a.npz")} == {"embeddings", "text_digests"}


@pytest.mark.seconds
@pytest.mark.parametrize("level", ["text", "word"])
def test_write_escapes_lone_surrogates_in_parquet(level, model, tmp_path) -> None:
    from pyarrow import parquet

    embedder = Embedder(model, EmbeddingOptions(level=level))
    embedder.write(['{"text": "ba \\ud800"}', "ba \u00e9"], tmp_path / "a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [row["text"] for row in rows] == ["ba \\ud800", "ba \u00e9"]


def read_embeddings(path: pathlib.Path) -> np.ndarray:
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
    tokens = [token for row in rows for token in row["embeddings"]]
    return np.concatenate([np.array(token, np.float32).reshape(-1, 2, 64) for token in tokens])


@pytest.mark.seconds
@pytest.mark.parametrize(
    "options", [EmbeddingOptions(normalize=True), EmbeddingOptions((-1, -2), "token")]
)
def test_write_resumes_to_the_same_bytes_in_every_format(
    options, model, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", dict.fromkeys(("text", "token"), 5))
    computed: list[int] = []

    class CountingEmbedder(Embedder):
        def encode(self, texts: Sequence[str]) -> TextEmbeddings:
            computed.append(len(texts))
            return super().encode(texts)

    embedder = CountingEmbedder(model, options)

    def lines(stop: int | None = None) -> Iterator[str]:
        for number, text in enumerate(TEXTS):
            if number == stop:
                raise KeyboardInterrupt
            yield json.dumps({"text": text.strip()}) if number % 2 else f"{text}\n"

    written = {}
    for suffix in (".npz", ".jsonl", ".parquet"):
        whole, again = tmp_path / f"whole{suffix}", tmp_path / f"again{suffix}"
        assert embedder.write(lines(), whole) == len(TEXTS)
        for stop in (5, 8, 10):
            with pytest.raises(KeyboardInterrupt):
                embedder.write(lines(stop), again)
        computed.clear()
        embedder.write(lines(), again)
        assert computed == [len(TEXTS) - 10]
        assert whole.read_bytes() == again.read_bytes()
        written[suffix] = read_embeddings(whole)
        assert not list(tmp_path.glob("*.partial"))
    for other in written.values():
        np.testing.assert_array_equal(other.reshape(written[".npz"].shape), written[".npz"])


@pytest.mark.seconds
@pytest.mark.parametrize("content", [b"", b"PK", b"\x93NUMPY"])
def test_write_computes_a_damaged_part_again(model, tmp_path, monkeypatch, content) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", {"text": 2})

    def stopped() -> Iterator[str]:
        yield from ("ba", "do", "ki")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Embedder(model, EmbeddingOptions()).write(stopped(), tmp_path / "a.npz")
    (tmp_path / "a.npz.partial" / "00000000.npz").write_bytes(content)
    for name in "ab":
        Embedder(model, EmbeddingOptions()).write(["ba", "do", "ki"], tmp_path / f"{name}.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.seconds
def test_write_rejects_texts_and_leaves_nothing(model, tmp_path) -> None:
    for lines in ([], ["ba", '{"other": "do"}']):
        with pytest.raises(InputError):
            Embedder(model, EmbeddingOptions()).write(lines, tmp_path / "new" / "a.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.seconds
def test_write_accepts_texts_without_words(model, tmp_path) -> None:
    from pyarrow import parquet

    words = Embedder(model, EmbeddingOptions(level="word"))
    words.write(["", "ba do"], tmp_path / "a.parquet")
    rows = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert [len(row["embeddings"]) for row in rows] == [0, 2]


@pytest.mark.seconds
def test_write_does_not_resume_with_other_options_or_texts(model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LINES_PER_PART", {"text": 2})

    def stopped() -> Iterator[str]:
        yield from ("ba", "do", "ki")
        raise KeyboardInterrupt

    output = tmp_path / "a.npz"
    with pytest.raises(KeyboardInterrupt):
        Embedder(model, EmbeddingOptions()).write(stopped(), output)
    with pytest.raises(InputError, match="holds parts of other arguments or another model"):
        Embedder(model, EmbeddingOptions(pooling="cls")).write(["ba"], output)
    with pytest.raises(InputError, match="holds parts of another input"):
        Embedder(model, EmbeddingOptions()).write(["ba", "me", "ki"], output)
    Embedder(model, EmbeddingOptions()).write(["ba", "do", "me"], output)
    with pytest.raises(InputError, match=r"a\.npz: exists\. Name another --output"):
        Embedder(model, EmbeddingOptions()).write(["ba"], output)
