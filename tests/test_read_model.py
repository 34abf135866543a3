"""Reading of models: variants of the Hugging Face format, and what is rejected."""

import dataclasses
import importlib.util
import json
import pathlib

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from model_files import CONFIG, TOKENIZER, assert_same, draw, write_hf
from random_models import draw_model
from run_outputs import answers_of

import bertjax
from bertjax.checkpointing.integrity import MANIFEST_FILE
from bertjax.formats import huggingface
from bertjax.formats.detection import find_format
from bertjax.formats.loading import read_model
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer


def rename(path: pathlib.Path, change) -> None:
    """Replace each (name, array) of a directory's tensors by `change(name, array)`."""
    file = path / "model.safetensors"
    found = safetensors.numpy.load(file.read_bytes())
    file.write_bytes(safetensors.numpy.save(dict(change(n, a) for n, a in found.items())))


@pytest.mark.seconds
def test_read_accepts_older_names_and_missing_prefixes(tmp_path) -> None:
    path = write_hf(draw("pooler", "mlm", "nsp"), tmp_path / "hf")

    def old(name: str, array: np.ndarray):
        for new, before in ((".weight", ".gamma"), (".bias", ".beta")):
            name = name.replace(f"LayerNorm{new}", f"LayerNorm{before}")
        return name.removeprefix("bert."), array

    rename(path, old)
    assert_same(read_model(path), draw("pooler", "mlm", "nsp"))


@pytest.mark.seconds
@pytest.mark.parametrize("function", ["linear.Identity", "activation.Sigmoid"])
def test_cross_encoder_opens_as_a_classifier(function: str, tmp_path, caplog) -> None:
    """The files are those of sentence-transformers 5.7."""
    tokenizer = WordPieceTokenizer([*TOKENIZER.tokens], cased=True)
    config = dataclasses.replace(CONFIG, num_labels=1)
    path = write_hf(
        draw_model(config, tokenizer, "pooler", "sequence_classification"), tmp_path / "hf"
    )
    written = json.loads((path / "config.json").read_text())
    for name in ("problem_type", "sentence_transformers", "sbert_ce_default_activation_function"):
        written.pop(name, None)
    contents = {
        "config.json": written,
        "modules.json": [{"path": "", "type": "base.modules.transformer.Transformer"}],
        "sentence_bert_config.json": {
            "transformer_task": "sequence-classification",
            "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
            "module_output_name": "scores",
        },
        "config_sentence_transformers.json": {
            "model_type": "CrossEncoder",
            "activation_fn": f"torch.nn.modules.{function}",
            "default_prompt_name": "task",
            "prompts": {"task": "rank: "},
        },
    }
    for name, content in contents.items():
        (path / name).write_text(json.dumps(content))
    model = bertjax.load(path)
    answer = model.classify({"text": "a b", "text_pair": "c"})
    assert answer.keys() == {"text", "text_pair", "score"}
    (line,) = answers_of(path, ['{"text": "a b", "text_pair": "c"}'])
    assert line["score"] == pytest.approx(answer["score"])
    assert "sigmoid" not in caplog.text
    is_applied = "has activation_fn='torch.nn.modules.activation.Sigmoid': a number is returned"
    assert (is_applied in caplog.text) == (function == "activation.Sigmoid")
    assert "has default_prompt_name='task': no text gets a prompt." in caplog.text
    assert model.encode("a b").shape == (CONFIG.hidden_size,)


@pytest.mark.seconds
def test_read_drops_tied_decoder_and_position_ids(tmp_path) -> None:
    model = draw("mlm")
    path = write_hf(model, tmp_path / "hf")
    extra = {
        "cls.predictions.decoder.weight": model.params["encoder"]["embeddings"]["word"],
        "cls.predictions.decoder.bias": model.params["mlm"]["bias"],
        "bert.embeddings.position_ids": np.arange(32)[None],
    }
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found | extra))
    assert_same(read_model(path), model)
    extra["cls.predictions.decoder.weight"] = extra["cls.predictions.decoder.weight"] + 1
    (path / "model.safetensors").write_bytes(safetensors.numpy.save(found | extra))
    with pytest.raises(ValueError, match="MLM decoder is not tied"):
        read_model(path)


@pytest.mark.seconds
def test_read_joins_sharded_weights(tmp_path) -> None:
    path = write_hf(draw("pooler"), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    (path / "model.safetensors").unlink()
    files = {name: f"model-{i % 2 + 1:05d}-of-00002.safetensors" for i, name in enumerate(found)}
    for file in set(files.values()):
        part = {name: found[name] for name in found if files[name] == file}
        (path / file).write_bytes(safetensors.numpy.save(part))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert_same(read_model(path), draw("pooler"))
    (path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"00002-of-00002.* cannot be read"):
        read_model(path)


@pytest.mark.seconds
@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "F16"), (ml_dtypes.bfloat16, "BF16")])
def test_read_converts_half_precision(dtype, name: str, tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    found = safetensors.numpy.load((path / "model.safetensors").read_bytes())
    header, content = {}, b""
    for each, array in found.items():
        ends = [len(content), len(content) + 2 * array.size]
        header[each] = {"dtype": name, "shape": array.shape, "data_offsets": ends}
        content += array.astype(dtype).tobytes()
    head = json.dumps(header).encode()
    file = len(head).to_bytes(8, "little") + head + content
    (path / "model.safetensors").write_bytes(file)
    word = read_model(path).params["encoder"]["embeddings"]["word"]
    assert word.dtype == np.float32
    before = draw().params["encoder"]["embeddings"]["word"]
    np.testing.assert_array_equal(word, before.astype(dtype).astype(np.float32))


@pytest.mark.seconds
def test_read_warns_of_an_incomplete_vocabulary(tmp_path, caplog) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    read_model(path)
    assert "Check that it is complete" in caplog.text  # 31 tokens of 40
    caplog.clear()
    config = dataclasses.replace(CONFIG, vocab_size=32)
    read_model(write_hf(draw_model(config, TOKENIZER), tmp_path / "rounded"))
    assert not caplog.text


@pytest.mark.seconds
def test_read_warns_of_texts_that_only_embed_lower_cases(tmp_path, caplog) -> None:
    for cased in (False, True):
        tokenizer = WordPieceTokenizer([*TOKENIZER.tokens, "A" * cased or "##a"], cased=cased)
        path = write_hf(draw(tokenizer=tokenizer), tmp_path / str(cased))
        (path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
        read_model(path)
        assert ("sentence-transformers lower-cases texts before" in caplog.text) is cased


def test_find_format_names_the_best_model_of_a_sweep(tmp_path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / MANIFEST_FILE).touch()
    with pytest.raises(InputError, match=f"holds a sweep. Name its best model, {tmp_path}/best"):
        find_format(tmp_path)


def test_find_format_reads_a_model_beside_the_checkpoints_of_its_training(tmp_path) -> None:
    path = write_hf(draw_model(CONFIG, TOKENIZER, "pooler"), tmp_path / "hf")
    (path / "checkpoints").mkdir()
    assert find_format(path) == "hf"


def test_read_rejects_multi_output_regression(tmp_path) -> None:
    config = dataclasses.replace(CONFIG, num_labels=3)
    model = draw_model(config, TOKENIZER, "pooler", "sequence_classification")
    path = write_hf(model, tmp_path / "hf", problem_type="regression")
    with pytest.raises(InputError, match="regression has 3 outputs"):
        read_model(path)


def test_read_rejects_layers_of_different_shapes(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    query = "encoder.layer.1.attention.self.query.weight"
    rename(path, lambda name, array: (name, array[1:] if name == query else array))
    shapes = r"blocks/attention/query/kernel has the shapes \(64, 63\), \(64, 64\) in different"
    with pytest.raises(InputError, match=f"^{path}: encoder/{shapes} layers"):
        read_model(path)


def test_read_rejects_quantized_weights(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    rename(path, lambda name, array: (name, array.astype(np.int8)))
    with pytest.raises(ValueError, match=r"has dtype I8, which is not supported"):
        read_model(path)


@pytest.mark.seconds
def test_read_rejects_a_vocabulary_larger_than_the_model(tmp_path) -> None:
    letters = [f"##{chr(code)}" for code in range(ord("a"), ord("z") + 1)]
    large = WordPieceTokenizer([*TOKENIZER.tokens, *letters], cased=False)
    with pytest.raises(ValueError, match="57 tokens, added ones included, and the model 40"):
        read_model(write_hf(draw(tokenizer=large), tmp_path / "hf"))


def test_find_format_rejects_other_paths(tmp_path) -> None:
    with pytest.raises(ValueError, match="nowhere: does not exist"):
        find_format(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"not a model. Give a directory with"):
        find_format(tmp_path)
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ValueError, match="the run has no checkpoint yet"):
        find_format(tmp_path)


@pytest.mark.skipif(bool(importlib.util.find_spec("torch")), reason="torch is installed here")
def test_read_names_the_fix_for_torch_weights(tmp_path) -> None:
    path = write_hf(draw(), tmp_path / "hf")
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="needs torch, which is not installed"):
        read_model(path)


def test_read_labels_accepts_any_label2id_and_rejects_huge_counts(tmp_path) -> None:
    names = {"0": "a", "1": "b"}
    fields = {"id2label": names, "label2id": {"a": {}, "b": [1], "c": None}}
    assert huggingface.read_labels(fields, tmp_path) == ("a", "b")
    for count in (-1, 10**12):
        with pytest.raises(InputError, match=f"num_labels={count}: out of range"):
            huggingface.read_labels({"num_labels": count}, tmp_path)
