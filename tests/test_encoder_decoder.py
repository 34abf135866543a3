"""Directories of `EncoderDecoderModel`: read, written, and rejected; logits of `transformers`."""

import dataclasses
import json
import pathlib
from typing import Any

import jax
import model_files
import numpy as np
import pytest
from generation_batches import SEP, by_target, make_batch
from goldens import make_encoder_decoder as recipe
from jax import export
from model_files import CONFIG, TOKENIZER
from random_models import draw_model
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.formats.loading import find_bert_config, read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.convert import convert
from bertjax.inference.export.stablehlo import write_stablehlo
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import BertWithHeads
from bertjax.tasks import registry
from bertjax.tasks.generation.objective import GenerationObjective
from data_pipelines.errors import InputError

CROSS = dataclasses.replace(CONFIG, decoder="cross_attention")


def draw(*heads: str) -> NumpyModel:
    return draw_model(CROSS, TOKENIZER, "decoder", "mlm", *heads)


def write(path: pathlib.Path, sections: dict[str, dict] | None = None, **fields: Any) -> None:
    """Write a random model; `sections` replaces fields of its encoder and decoder."""
    model_files.write_hf(draw(), path, **fields)
    config = json.loads((path / "config.json").read_text())
    for name, changed in (sections or {}).items():
        config[name] |= changed
    (path / "config.json").write_text(json.dumps(config))


def logits(model: NumpyModel, batch: dict[str, np.ndarray]) -> np.ndarray:
    apply = BertWithHeads(model.config, ("mlm",)).apply
    return np.asarray(apply({"params": model.params}, batch, deterministic=True)["mlm_logits"])


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(recipe.PATH) as arrays:
        return dict(arrays)


@pytest.fixture
def theirs(golden, tmp_path) -> pathlib.Path:
    """Directory of the golden model."""
    shapes = json.loads(str(golden["shapes"]))
    arrays = {name: recipe.weight(name, shape) for name, shape in shapes.items()}
    save_file(arrays, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(str(golden["config"]))
    return tmp_path


@pytest.mark.seconds
def test_logits_equal_golden(golden, theirs) -> None:
    model = read_model(theirs)
    assert (model.config.decoder, model.unexpected_keys) == ("cross_attention", ())
    batch = make_batch(recipe.PAIRS, 2)
    packed = by_target(batch, logits(model, batch))
    for number, (_, target) in enumerate(recipe.PAIRS):
        expected = golden[f"logits/{number}"]
        assert np.abs(expected).max() > 1
        np.testing.assert_allclose(packed[(*target, SEP)], expected, atol=1e-5)


def test_reading_and_writing_keeps_every_array(theirs, tmp_path) -> None:
    model_files.write_hf(read_model(theirs), tmp_path / "again")
    before, after = (load_file(path / "model.safetensors") for path in (theirs, tmp_path / "again"))
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes(), name


@pytest.mark.seconds
def test_written_config_is_that_of_an_encoder_decoder(tmp_path) -> None:
    write(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    encoder, decoder = config.pop("encoder"), config.pop("decoder")
    assert config == {
        "architectures": ["EncoderDecoderModel"],
        "model_type": "encoder-decoder",
        "is_encoder_decoder": True,
        "pad_token_id": TOKENIZER.pad_id,
        "decoder_start_token_id": TOKENIZER.cls_id,
        "eos_token_id": TOKENIZER.sep_id,
    }
    assert decoder.pop("is_decoder") and decoder.pop("add_cross_attention")
    assert encoder.pop("architectures") == ["BertModel"]
    assert decoder.pop("architectures") == ["BertLMHeadModel"]
    assert encoder == decoder
    assert {"bertjax_decoder", "is_decoder"}.isdisjoint(encoder)


@pytest.mark.seconds
def test_export_round_trip_keeps_the_model_and_its_task(tmp_path) -> None:
    model = draw()
    path = model_files.write_hf(model, tmp_path / "hf")
    opened = read_model(path)
    model_files.assert_same(opened, model)
    assert (
        opened.config
        == find_bert_config(path)
        == dataclasses.replace(CROSS, intermediate_size=CROSS.feed_forward_size)
    )
    inferred = registry.infer_config(opened)
    assert (inferred.task, inferred.max_seq_length) == ("generation", 32)
    objective = GenerationObjective(inferred)
    shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
    assert {*dict(named_leaves(shapes))} == {*dict(named_leaves(opened.params))}
    convert(path, tmp_path / "ours", "hf", "bertjax")
    model_files.assert_same(read_model(tmp_path / "ours"), model)
    convert(tmp_path / "ours", tmp_path / "back", "bertjax", "hf")
    model_files.assert_same(read_model(tmp_path / "back"), model)
    assert "AutoModelForSeq2SeqLM" in (tmp_path / "back" / "README.md").read_text()


@pytest.mark.seconds
def test_tied_decoder_has_the_arrays_of_the_encoder(tmp_path) -> None:
    for kept in ("encoder", "decoder"):
        path = tmp_path / kept
        write(path, tie_encoder_decoder=True)
        arrays = load_file(path / "model.safetensors")
        other = {"encoder": "decoder.bert.", "decoder": "encoder."}[kept]
        arrays = {
            name: array
            for name, array in arrays.items()
            if not name.startswith(other) or "crossattention" in name
        }
        save_file(arrays, path / "model.safetensors")
        params = read_model(path).params
        decoder = dict(named_leaves(params["decoder"]))
        for name, array in named_leaves(params["encoder"]):
            np.testing.assert_array_equal(array, decoder[name])


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"decoder": {"hidden_size": 32}}, "its encoder has hidden_size=64, its decoder 32"),
        ({"decoder": {"vocab_size": 41}}, "its encoder has vocab_size=40, its decoder 41"),
        ({"encoder": {"num_hidden_layers": 1}}, "its encoder has num_hidden_layers=1, its d"),
        ({"encoder": {"is_decoder": True}}, "its encoder has direction='left_to_right'"),
        ({"decoder": {"model_type": "gpt2"}}, "its decoder has model_type='gpt2'"),
        ({"encoder": {"model_type": "roberta"}}, "its encoder has model_type='roberta'"),
        ({"decoder": {"add_cross_attention": False}}, "its decoder lacks add_cross_attention"),
        ({"decoder": {"hidden_size": "32"}}, "hidden_size='32'"),
        ({"decoder": {"pruned_heads": {"0": [1]}}}, "has pruned_heads="),
    ],
)
def test_other_encoder_decoders_are_rejected(sections, message: str, tmp_path) -> None:
    write(tmp_path / "model", sections)
    with pytest.raises(InputError) as error:
        read_model(tmp_path / "model")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.seconds
def test_an_untied_head_and_missing_arrays_are_rejected(tmp_path) -> None:
    write(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    arrays = load_file(file)
    head = "decoder.cls.predictions.decoder.weight"
    save_file(arrays | {head: arrays["encoder.embeddings.word_embeddings.weight"]}, file)
    with pytest.raises(InputError, match="the MLM decoder is not tied to the word embeddings"):
        read_model(tmp_path / "model")
    save_file({n: x for n, x in arrays.items() if "crossattention" not in n}, file)
    with pytest.raises(InputError, match=r"lacks decoder\.bert.encoder.layer\.0\.crossattention"):
        read_model(tmp_path / "model")


@pytest.mark.seconds
def test_another_start_token_is_warned_of(tmp_path, caplog) -> None:
    write(tmp_path / "model", decoder_start_token_id=0)
    read_model(tmp_path / "model")
    assert "decoder_start_token_id=0: targets begin with [CLS], 2, nevertheless" in caplog.text


@pytest.mark.seconds
def test_tf1_rejects_a_decoder(tmp_path) -> None:
    path = model_files.write_hf(draw(), tmp_path / "hf")
    with pytest.raises(
        InputError, match=r"^model\.decoder='cross_attention': the TF1 format has no"
    ):
        convert(path, tmp_path / "tf1", "hf", "tf1")


@pytest.mark.slow  # compiles three programs
def test_programs_and_embeddings_of_a_decoder(tmp_path) -> None:
    model = draw()
    path = model_files.write_hf(model, tmp_path / "hf")
    write_stablehlo(path, tmp_path / "program")
    program = export.deserialize((tmp_path / "program").read_bytes())
    batch = make_batch([([5, 6], [7, 8, 9])], 1)
    names = ("input_ids", "token_type_ids", "example_ids", "masked_lm_positions")
    outputs = program.call(*(batch[name] for name in names))["mlm_logits"]
    np.testing.assert_allclose(outputs[:, :4], logits(model, batch)[:, :4], atol=1e-5)
    alone = model_files.write_hf(
        dataclasses.replace(model, config=CONFIG, params={"encoder": model.params["encoder"]}),
        tmp_path / "encoder",
    )
    embeddings = [bertjax.load(directory).encode("a b") for directory in (path, alone)]
    np.testing.assert_array_equal(*embeddings)
