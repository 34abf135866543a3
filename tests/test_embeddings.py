"""Embeddings of texts, words and tokens, and the files that hold them."""

import dataclasses
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
import safetensors.numpy
import toy_tasks
from etils import epath
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import draw_model

from bertjax.cli import embed
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.formats.tensors import PoolingConfig
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


@pytest.mark.seconds
def test_embed_uses_the_pooling_of_sentence_transformers(tmp_path, capsys) -> None:
    kinds = "Transformer", "Pooling", "Normalize"
    path = publish(tmp_path, *kinds, pooling_mode_max_tokens=True, pooling_mode_cls_token=False)
    assert find_pooling_config(path) == (path, "max", True, 16, False, "", "", "", 0)
    (tmp_path / "in.txt").write_text("ba do\n" + "ki " * 40)
    given = ["embed", "--checkpoint", str(path), "--input", str(tmp_path / "in.txt"), "--output"]
    assert main([*given, str(tmp_path / "own.npz")]) == 0
    found = np.load(tmp_path / "own.npz")["embeddings"]
    expected = embed_alone("ba do")[0].max(axis=0)
    np.testing.assert_allclose(found[0], expected / np.linalg.norm(expected), atol=1e-5)
    expected = embed_alone("ki " * 14)[0].max(axis=0)  # truncated to 16 tokens
    np.testing.assert_allclose(found[1], expected / np.linalg.norm(expected), atol=1e-5)
    assert main([*given, str(tmp_path / "cls.npz"), "--pooling", "cls", "--layers", "-1,-2"]) == 0
    found = np.load(tmp_path / "cls.npz")["embeddings"]
    expected = embed_alone("ba do", (-1, -2)).mean(axis=0)[0]
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


@pytest.mark.slow
def test_embed_lower_cases_and_prompts_as_sentence_transformers(tmp_path) -> None:
    path = publish(tmp_path, "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    settings = {"prompts": {"query": "Ki lu ", "empty": ""}, "default_prompt_name": "query"}
    cased = json.loads((path / "tokenizer_config.json").read_text()) | {"do_lower_case": False}
    (path / "tokenizer_config.json").write_text(json.dumps(cased))
    (path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    (path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    model, options = module.find_embedding_options(path)
    assert (options.prompt, options.do_lower_case) == ("Ki lu ", True)
    embedder = Embedder(model, options)
    prompted = embedder.encode(["Ba DO"]).embeddings[0]
    np.testing.assert_allclose(prompted, embed_alone("ki lu ba do")[0].mean(axis=0), atol=1e-5)
    plain = dataclasses.replace(embedder.options, prompt="", do_lower_case=False)
    assert np.abs(Embedder(model, plain).encode(["Ba DO"]).embeddings[0] - prompted).max() > 0.01


def test_find_pooling_config_reads_default_prompts(tmp_path, caplog) -> None:
    path = publish(tmp_path, "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    file = path / "config_sentence_transformers.json"
    file.write_text('{"prompts": {"query": "q: ", "document": ""}}')
    pooling = find_pooling_config(path)
    assert pooling and not pooling.prompt
    assert "has the prompts {'query': 'q: '} and no default: no text gets one" in caplog.text
    file.write_text('{"prompts": {"query": "q: "}, "default_prompt_name": "passage"}')
    with pytest.raises(InputError, match="'passage' is none of the prompts query"):
        find_pooling_config(path)
    (path / "sentence_bert_config.json").unlink()
    file.unlink()
    pooling = find_pooling_config(path)
    assert pooling and pooling.max_seq_length == 128  # of tokenizer_config.json


def test_find_embedding_options_warns_once_of_the_prompts_of_a_run(
    tmp_path, monkeypatch, caplog
) -> None:
    config = PoolingConfig(epath.Path(tmp_path), "mean", True, 16, document_prompt="options: ")
    monkeypatch.setattr(module, "find_pooling_config", lambda directory: config)
    for _ in range(2):
        assert not module.find_embedding_options(tmp_path)[1].prompt
    (warning,) = (message for message in caplog.messages if "prompt" in message)
    assert warning.startswith("data.document_prompt='options: ': put before texts in training")


def test_pooling_reports_the_modules_that_it_replaces(tmp_path, caplog) -> None:
    kinds = "Transformer", "Pooling", "Normalize"
    path = publish(tmp_path, *kinds, pooling_mode_mean_tokens=True)
    assert module.find_embedding_options(path)[1].normalize
    assert not module.find_embedding_options(path, pooling="mean")[1].normalize
    assert "pooling=mean leaves out its scaling to length 1." in caplog.text
    caplog.clear()
    assert module.find_embedding_options(path, pooling="cls", normalize=True)[1].normalize
    assert "leaves out" not in caplog.text


def test_embed_reads_a_list_of_json(tmp_path) -> None:
    path = tmp_path / "texts.json"
    path.write_text('[{"text": "ba do"},\n {"text": "ki"}]')
    assert [*module._iter_texts(embed._lines(str(path)))] == ["ba do", "ki"]
    path.write_text('{"text": "ba do"}\n{"text": "ki"}\n')
    assert [*module._iter_texts(embed._lines(str(path)))] == ["ba do", "ki"]


def test_embed_warns_of_a_pair(caplog) -> None:
    texts = module._iter_texts(iter(['{"text": "ba", "text_pair": "do"}', "ki"]), 0)
    assert [*texts] == ["ba", "ki"]
    assert 'line 1: "text_pair" is not read: one text is embedded.' in caplog.text


def test_convert_reports_that_pooling_is_not_converted(tmp_path, capsys) -> None:
    (tmp_path / "from").mkdir()
    path = publish(tmp_path / "from", "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    assert main(["convert", "--to", "bertjax", str(path), str(tmp_path / "to")]) == 0
    assert "has no pooling configuration: give `bertjax embed`" in capsys.readouterr().out


@pytest.mark.seconds
@pytest.mark.parametrize("has_bias", [True, False])
def test_embed_projects_by_dense_of_sentence_transformers(has_bias: bool, tmp_path) -> None:
    kinds = "Transformer", "Pooling", "Dense", "Normalize"
    path = publish(tmp_path, *kinds, pooling_mode_mean_tokens=True)
    (path / "2_Dense").mkdir()
    size, random = MODEL.config.hidden_size, np.random.default_rng(0)
    arrays = {"linear.weight": random.normal(size=(5, size)).astype(np.float32)}
    bias = random.normal(size=5).astype(np.float32) if has_bias else np.zeros(5, np.float32)
    if has_bias:
        arrays["linear.bias"] = bias
    safetensors.numpy.save_file(arrays, path / "2_Dense" / "model.safetensors")
    settings = {"in_features": size, "out_features": 5, "bias": has_bias}
    settings["activation_function"] = "torch.nn.modules.linear.Identity"
    (path / "2_Dense" / "config.json").write_text(json.dumps(settings))
    expected = arrays["linear.weight"] @ embed_alone("ba do")[0].mean(axis=0) + bias
    embedder = Embedder(*module.find_embedding_options(path))
    found = embedder.encode(["ba do"]).embeddings[0]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)
    settings["activation_function"] = "torch.nn.modules.activation.Tanh"
    (path / "2_Dense" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match="Use a model whose Dense has none, Identity"):
        module.find_embedding_options(path)


def test_find_pooling_config_rejects_unknown_modules(tmp_path) -> None:
    path = publish(tmp_path, "Transformer", "Pooling", "LSTM", pooling_mode_mean_tokens=True)
    with pytest.raises(InputError, match="has the modules Transformer, Pooling, LSTM; bertjax"):
        find_pooling_config(path)
    modules = json.loads((path / "modules.json").read_text())
    (path / "modules.json").write_text(json.dumps(modules[:2]))
    assert find_pooling_config(path) == (path, "mean", False, 16, False, "", "", "", 0)
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with pytest.raises(
        InputError, match="pools by pooling_mode_lasttoken; bertjax supports one of"
    ):
        find_pooling_config(path)


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        ("--layers 3", "ba", "layer 3: not in a model of 2 layers. Use 0"),
        ("--layers last", "ba", "--layers=last: not numbers. Write -1,-2"),
        ("--level sentences", "ba", "level=sentences: unknown value. Use text, word, token"),
        ("--pooling sum", "ba", "pooling=sum: unknown value. Use mean, cls, max"),
        ("--level word --pooling cls", "ba", "--pooling=cls: not for --level=word"),
        ("--level word --normalize", "ba", "normalize=True: level=word has no such option"),
        (
            "--output DIR/a.csv",
            "ba",
            r"DIR/a.csv: unknown suffix. Use one of .jsonl, .npz, .parquet",
        ),
        ("--output DIR/no/a.npz", "ba", "DIR/no is not a directory. Create it"),
        ("", "", "the input has no lines. Give some text"),
        ("", 'ba\n{"text": 3}', 'line 2: no "text". Write'),
        ("", 'ba\n\n{"body": "ba"}', 'line 3: no "text". Write'),
        ("", "ba\n{ba", "line 2: not JSON .*. Write one object per line"),
        ("--input DIR/nothing.txt", "ba", "DIR/nothing.txt: no such file"),
        ("--checkpoint DIR/nowhere", "ba", "nowhere: does not exist"),
    ],
)
def test_embed_rejects_invalid_arguments(
    arguments, content, message, model, tmp_path, refused
) -> None:
    (tmp_path / "in.txt").write_text(content)
    plain = {"checkpoint": model, "input": tmp_path / "in.txt", "output": tmp_path / "out.npz"}
    flags = [flag for name, value in plain.items() for flag in (f"--{name}", value)]
    flags += arguments.replace("DIR", str(tmp_path)).split()
    sentence = refused("embed", *flags)
    assert re.search(message.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
    assert not (tmp_path / "out.npz").exists()
