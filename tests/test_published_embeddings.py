"""Embeddings of models of sentence-transformers: pooling, prompts, projections."""

import dataclasses
import json
import pathlib
import re

import numpy as np
import pytest
import safetensors.numpy
from etils import epath
from random_models import draw_model
from test_embeddings import MODEL, embed_alone

import bertjax
from bertjax.cli import embed
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.formats.tensors import PoolingConfig
from bertjax.inference import feature_extraction as module
from bertjax.inference.feature_extraction import Embedder
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("model")
    huggingface.write(MODEL, path)
    return path


def publish(path: pathlib.Path, *kinds: str, **pooling: bool) -> pathlib.Path:
    """A directory of sentence-transformers."""
    path.mkdir(exist_ok=True)
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
    (path / "1_Pooling").mkdir(exist_ok=True)
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
    monkeypatch.setattr(module, "find_pooling_config", lambda *_: config)
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


def test_embed_reads_lines_of_a_text_file_that_start_with_a_brace() -> None:
    lines = ["{{Infobox film}}", '{"text": "ba"}', "{do"]
    assert [*module._iter_texts(lines, file_name="a.txt")] == ["{{Infobox film}}", "ba", "{do"]
    for name in ("", "a.jsonl"):
        with pytest.raises(InputError, match=r"^(line |a\.jsonl:)1: not JSON"):
            [*module._iter_texts(lines, file_name=name)]


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


@pytest.mark.seconds
@pytest.mark.parametrize("has_default_prompt", [False, True])
def test_given_pooling_replaces_one_that_is_not_supported(has_default_prompt, tmp_path) -> None:
    kinds = ["Transformer", "Pooling"] + ["LayerNorm"] * (not has_default_prompt)
    path = publish(tmp_path, *kinds, pooling_mode_mean_tokens=True, include_prompt=False)
    settings = {"prompts": {"query": "ki "}, "default_prompt_name": "query"}
    file = path / "config_sentence_transformers.json"
    file.write_text(json.dumps(settings if has_default_prompt else {}))
    prompt = "ki " if has_default_prompt else ""
    expected = embed_alone(f"{prompt}ba do")[0].max(axis=0)
    with pytest.raises(InputError, match="Give the encoder a pooling, by `embed --pooling`"):
        module.find_embedding_options(path)
    model, options = module.find_embedding_options(path, pooling="max")
    assert options.max_seq_length == 16
    found = Embedder(model, options).encode(["ba do"]).embeddings[0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    opened = bertjax.load(path)
    np.testing.assert_allclose(opened.encode("ba do", pooling="max"), expected, atol=1e-5)
    with pytest.raises(InputError, match="Give the encoder a pooling"):
        opened.encode("ba do")
    assert module.find_embedding_options(path, level="token")[1].level == "token"


@pytest.mark.seconds
def test_embed_of_an_unstated_length_reads_all_positions(tmp_path) -> None:
    config = dataclasses.replace(MODEL.config, max_position_embeddings=1024)
    long = draw_model(config, MODEL.tokenizer)
    (tmp_path / "plain").mkdir()
    huggingface.write(long, tmp_path / "plain")
    path = publish(tmp_path / "pooled", "Transformer", "Pooling", pooling_mode_mean_tokens=True)
    huggingface.write(long, path)
    (path / "tokenizer_config.json").unlink()
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": null}')
    for directory in (tmp_path / "plain", path):
        embedder = Embedder(*module.find_embedding_options(directory))
        assert embedder.options.max_seq_length == 1024
        encoded = embedder.encode(["ba " * 1022, "ba " * 1023])
        assert encoded.num_truncated == 1
        assert np.abs(encoded.embeddings[0] - embedder.encode(["ba " * 510]).embeddings).max() > 0


def test_model_opens_without_the_weights_of_a_projection_that_is_not_used(tmp_path) -> None:
    """Only a pooling that is used has a projection."""
    path = publish(tmp_path, "Transformer", "Pooling", "Dense", "LayerNorm")
    (path / "2_Dense").mkdir()
    assert PretrainedModel(path).parts == ("encoder",)


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
        ("", 'ba\n{"text": 3}', 'in.jsonl:2: no "text". Write'),
        ("", 'ba\n\n{"body": "ba"}', 'in.jsonl:3: no "text". Write'),
        ("", "ba\n{ba", "in.jsonl:2: not JSON .*. Write one object per line"),
        ("--input DIR/nothing.txt", "ba", "DIR/nothing.txt: no such file"),
        ("--checkpoint DIR/nowhere", "ba", "nowhere: does not exist"),
    ],
)
def test_embed_rejects_invalid_arguments(
    arguments, content, message, model, tmp_path, refused
) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    plain = {"checkpoint": model, "input": tmp_path / "in.jsonl", "output": tmp_path / "out.npz"}
    flags = [flag for name, value in plain.items() for flag in (f"--{name}", value)]
    flags += arguments.replace("DIR", str(tmp_path)).split()
    sentence = refused("embed", *flags)
    assert re.search(message.replace("DIR", re.escape(str(tmp_path))), sentence), sentence
    assert not (tmp_path / "out.npz").exists()
