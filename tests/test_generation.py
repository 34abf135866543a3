"""Generation: pairs as packed examples, the objective's checks and losses, predictions."""

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import model_files
import numpy as np
import pytest
import toy_tasks
from conftest import TOKENIZER
from hypothesis import given
from hypothesis import strategies as st
from pretraining_runs import metrics, stop_at
from random_models import draw_model

import bertjax
from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.errors import StoppedError
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.model.decoder.options import DecodingOptions
from bertjax.model.losses import cross_entropy
from bertjax.preflight.analysis import preflight
from bertjax.preflight.topology import Topology
from bertjax.tasks import registry
from bertjax.tasks.generation.objective import GenerationObjective
from bertjax.tasks.generation.sources import SourceBatches
from bertjax.training.evaluator import evaluate
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.generation.pairs import (
    GenerationDataset,
    dataset_from_rows,
    encode_pairs,
)
from data_pipelines.finetuning.packed_examples import PackedShape, build_batch, pack_eval_batches
from data_pipelines.finetuning.table import TableRow
from data_pipelines.finetuning.training_batches import TrainingBatches

SHAPE = PackedShape(tokens=32, examples=4, predictions=9)
texts = st.lists(st.sampled_from(["ba", "do", "ki"]), max_size=40).map(" ".join)


def rows(*values: dict[str, Any]) -> list[TableRow]:
    return [TableRow(f"t.csv:{i}", row) for i, row in enumerate(values, 2)]


def test_from_rows_reads_the_named_columns() -> None:
    data = dataset_from_rows("t.csv", rows({"a": " ba do", "b": "ki", "c": None}), "a", "b")
    assert (data.sources, data.targets) == (["ba do"], ["ki"])
    assert data.all_texts == ["ba do", "ki"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"source": "ba", "text": "do"},
            "t.csv: there is no column 'target', but 'source', 'text'",
        ),
        ({"source": "ba", "target": " "}, "t.csv:2: column 'target' is empty"),
        ({"source": ["ba"], "target": "do"}, r"t.csv:2: column 'source' is \['ba'\], not text"),
        ({"source": "ba", "target": None}, "t.csv:2: column 'target' is None, not text"),
    ],
)
def test_from_rows_rejects_missing_texts(row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        dataset_from_rows("t.csv", rows(row), "source", "target")


@given(texts, texts, st.integers(3, 20), st.integers(2, 20))
def test_encode_pairs_truncates_source_and_target(
    source: str, target: str, max_source: int, max_target: int
) -> None:
    data = GenerationDataset("it", [source], [target])
    examples, num_sources, num_targets = encode_pairs(data, TOKENIZER, max_source, max_target)
    source_ids, target_ids = TOKENIZER.encode(source), TOKENIZER.encode(target)
    (prefix,) = examples.prefix_lengths
    cls_id, sep_id = TOKENIZER.cls_id, TOKENIZER.sep_id
    assert examples.ids[:prefix].tolist() == [cls_id, *source_ids[: max_source - 2], sep_id]
    assert examples.ids[prefix:].tolist() == [*target_ids, sep_id][:max_target]
    assert num_sources == (len(source_ids) > max_source - 2)
    assert num_targets == (len(target_ids) >= max_target)


def draw_pairs(count: int) -> GenerationDataset:
    random = np.random.default_rng(0)
    words = [
        [" ".join(random.choice(toy_tasks.OTHER, random.integers(1, size))) for _ in range(count)]
        for size in (20, 9)
    ]
    return GenerationDataset("it", *words)


def test_batches_predict_each_target_token_once() -> None:
    examples = encode_pairs(draw_pairs(50), TOKENIZER, 23, 9).examples
    layouts = pack_eval_batches(examples, SHAPE, 8)
    predicted = []
    for layout in layouts:
        batch = build_batch(examples, layout, 8, SHAPE)
        for row, slot in np.argwhere(batch["masked_lm_weights"] > 0):
            position = batch["masked_lm_positions"][row, slot]
            example_ids = batch["example_ids"][row, position : position + 2]
            assert example_ids[0] == example_ids[1] > 0
            assert batch["masked_lm_ids"][row, slot] == batch["input_ids"][row, position + 1]
            assert batch["token_type_ids"][row, position + 1] == 1
            predicted.append((id(layout), row, position))
    assert len(set(predicted)) == len(predicted)
    assert len(predicted) == (examples.lengths - examples.prefix_lengths).sum()
    assert max(layout.slot.max() for layout in layouts) > 0  # some sequences hold several pairs


def test_training_batches_keep_the_limit_of_predictions() -> None:
    examples = encode_pairs(draw_pairs(40), TOKENIZER, 23, 9).examples
    batches = TrainingBatches(examples, 0, 16, SHAPE, steps=5, pad_to_multiple_of=2)
    for step in range(5):
        batch = batches.batch(step)
        assert batch["masked_lm_weights"].sum() == batch["token_type_ids"].sum()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(path)
    return path


def objective_of(folder: pathlib.Path, **overrides: Any) -> GenerationObjective:
    config = toy_tasks.configuration("generation", folder, **overrides)
    return GenerationObjective(config.resolve(300))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__decoder": ""}, "model.decoder='': each target token would see the next one"),
        ({"model__bilstm": 8}, "model.bilstm=8: texts are generated from the last layer"),
        ({"model__feature_layers": "-2..-1"}, "model.feature_layers='-2..-1': texts are generated"),
        (
            {"decoding__max_new_tokens": 600},
            "decoding.max_new_tokens=600: the model has 64 positions. Use at most 64",
        ),
        (
            {"decoding__min_new_tokens": 60},
            "decoding.min_new_tokens=60: leaves no space for .SEP. in",
        ),
        ({"model__type_vocab_size": 1}, "model.type_vocab_size=1: .* source and target"),
        ({"data__max_target_length": 1}, "data.max_target_length=1: no space for a token"),
        (
            {"data__max_target_length": 30},
            "data.max_target_length=30: leaves no space for a source",
        ),
        ({"data__label_smoothing": 1.0}, r"data.label_smoothing=1.0: not in \[0, 1\)"),
        (
            {"data__mlm_probability": 0.0, "model__decoder": "masked_prefix"},
            r"data.mlm_probability=0.0: not in \(0, 1\]",
        ),
        ({"data__mlm_probability": 0.5}, "data.mlm_probability=0.5: model.decoder=prefix masks no"),
    ],
)
def test_objective_rejects_what_it_cannot_learn(folder, overrides, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        objective_of(folder, **overrides)


@pytest.mark.parametrize("field", ["teacher", "logits"])
def test_objective_rejects_smoothed_labels_with_a_teacher(folder, field: str) -> None:
    config = toy_tasks.configuration("generation", folder, data__label_smoothing=0.1)
    with pytest.raises(InputError, match=r"^data\.label_smoothing=0\.1: the teacher of section"):
        GenerationObjective(dataclasses.replace(config, distill=DistillConfig(**{field: "x"})))


def test_stored_logits_do_not_fit_masked_targets(folder) -> None:
    objective_of(folder).check_inputs_repeat()
    with pytest.raises(InputError, match=r"^model\.decoder='masked_prefix': each step masks other"):
        objective_of(folder, model__decoder="masked_prefix").check_inputs_repeat()


def test_truncated_pairs_are_logged(folder, caplog) -> None:
    config = toy_tasks.configuration("generation", folder, data__max_target_length=3)
    registry.find_task(config.task)(config)
    assert "eval: truncated 0 sources and " in caplog.text
    assert " targets of 60 pairs to data.max_target_length=3 tokens and the rest of" in caplog.text


@pytest.mark.seconds
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_train_sums_smooth_labels_and_sums_do_not(folder, smoothing: float) -> None:
    objective = objective_of(folder, data__label_smoothing=smoothing)
    params = objective.init_params(jax.random.key(0))
    random = np.random.default_rng(0)
    batch = {
        name: random.integers(0, 2, x.shape).astype(x.dtype)
        for name, x in objective.batch_shapes(2).items()
    }
    outputs = objective.apply(params, batch, None, {})
    logits, ids = np.asarray(outputs["mlm_logits"], np.float64), batch["masked_lm_ids"]
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    own = np.take_along_axis(log_probs, ids[..., None], -1)[..., 0]
    weights = batch["masked_lm_weights"]
    expected = -((1 - smoothing) * own + smoothing * log_probs.mean(-1)) * weights
    sums = objective.train_sums(params, batch, None, {}, np.float32(0))
    np.testing.assert_allclose(sums["mlm_loss"], (expected.sum(), weights.sum()), rtol=1e-5)
    np.testing.assert_allclose(
        objective.sums(outputs, batch)["mlm_loss"][0], -(own * weights).sum(), rtol=1e-5
    )


@pytest.mark.seconds
def test_smoothed_cross_entropy_is_least_at_the_smoothed_label() -> None:
    # With three classes and smoothing 0.3 the label is 0.8, 0.1, 0.1.
    best = np.log([[0.8, 0.1, 0.1]])
    loss, _ = cross_entropy(best, np.array([0]), np.ones(1), label_smoothing=0.3)
    entropy = -0.8 * math.log(0.8) - 0.2 * math.log(0.1)
    assert float(loss) == pytest.approx(entropy, rel=1e-6)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_generation_shapes_are_those_of_the_longest_sources(folder, num_beams: int) -> None:
    objective = objective_of(folder, decoding__num_beams=num_beams)
    options, length = objective.decoding_options, objective.config.max_seq_length
    assert options.max_new_tokens == objective.max_target_length == 12
    source = np.full(objective.max_source_length, 7, np.int32)
    (batch,) = SourceBatches([source] * 3, [12] * 3, length, [options] * 3)
    shapes = {name: (array.shape, array.dtype) for name, array in batch.items()}
    expected = objective.generation_shapes(3).items()
    assert shapes == {name: (x.shape, x.dtype) for name, x in expected}
    assert objective.generation_flops(3, options) > objective.generation_flops(1, options) * 2


@pytest.mark.slow
def test_preflight_reports_generated_tokens(folder) -> None:
    config = toy_tasks.configuration("generation", folder, steps=2, optimizer__warmup=1)
    report = preflight(config, Topology("cpu:2"))
    assert report.prediction and report.prediction.fits
    # The program has space for the power of two from 12 tokens.
    assert report.prediction.target_tokens == 16 * report.prediction.per_device_batch_size * 2
    beams = dataclasses.replace(config, decoding=DecodingOptions(num_beams=4))
    larger = preflight(beams, Topology("cpu:2")).prediction
    assert larger and larger.hbm_bytes > report.prediction.hbm_bytes


@pytest.mark.seconds
@pytest.mark.parametrize("decoder", ["prefix", "masked_prefix"])
def test_export_keeps_the_decoder_and_its_task(tmp_path, decoder: str) -> None:
    config = dataclasses.replace(model_files.CONFIG, decoder=decoder)
    model = draw_model(config, model_files.TOKENIZER, "pooler", "mlm")
    opened = read_model(model_files.write_hf(model, tmp_path / "hf"))
    assert opened.config.decoder == decoder and opened.head.architecture == "BertForMaskedLM"
    inferred = registry.infer_config(opened)
    assert (inferred.task, inferred.max_seq_length) == ("generation", 32)
    assert GenerationObjective(inferred).max_target_length == 16
    bert = dataclasses.replace(opened, config=dataclasses.replace(config, decoder=""))
    assert registry.infer_config(bert).task == "pretraining"


@pytest.mark.slow
@pytest.mark.parametrize("decoder", ["prefix", "masked_prefix", "cross_attention"])
def test_training_resumes_exactly_and_does_not_depend_on_the_mesh(
    decoder: str, folder, tmp_path, monkeypatch
) -> None:
    def losses_of(name: str, **mesh: int) -> list[float]:
        fields: dict[str, Any] = {f"mesh__{axis}": size for axis, size in mesh.items()}
        fields |= {"steps": 6, "log_every": 1, "checkpoint_every": 3, "optimizer__warmup": 1}
        fields |= {"model__attention_probs_dropout_prob": 0.1, "model__decoder": decoder}
        config = toy_tasks.configuration("generation", folder, **fields)
        make_trainer(config, tmp_path / name).train()
        lines = metrics(tmp_path / name)
        assert lines[-1]["mlm_perplexity"] == pytest.approx(math.exp(lines[-1]["mlm_loss"]))
        return [line["mlm_loss"] for line in lines if line["split"] == "train"]

    expected = losses_of("whole", data=8)
    np.testing.assert_allclose(losses_of("mesh", data=2, fsdp=2, tensor=2), expected, rtol=1e-4)
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(StoppedError):
            losses_of("stopped", data=8)
    assert losses_of("stopped", data=8) == expected


def train_on_words(path: pathlib.Path, decoder: str, order: int, **fields: Any) -> Config:
    """Train on targets that repeat the words of their sources, backward for order -1."""
    toy_tasks.TOKENIZER.save(path)
    draw = np.random.default_rng(0)
    for name, count in (("pairs.jsonl", 2000), ("pairs-dev.jsonl", 100)):
        sources = [draw.choice(toy_tasks.OTHER, draw.integers(1, 6)) for _ in range(count)]
        pairs = [{"source": " ".join(s), "target": " ".join(s[::order])} for s in sources]
        toy_tasks.write_lines(path / name, pairs)
    fields = {"steps": 200, "batch_size": 64, "model__decoder": decoder} | fields
    config = toy_tasks.configuration("generation", path, **fields)
    make_trainer(config, path / "run").train()
    return config


@pytest.mark.minutes
@pytest.mark.parametrize("decoder", ["prefix", "masked_prefix", "cross_attention"])
@pytest.mark.parametrize("order", [1, -1], ids=["copy", "reverse"])
def test_decoders_learn_to_copy_and_to_reverse(tmp_path, decoder: str, order: int) -> None:
    config = train_on_words(tmp_path, decoder, order, steps=600)
    scores = evaluate(config, tmp_path / "run").scores
    assert scores["mlm_accuracy"] > 0.99
    lines = (tmp_path / "pairs-dev.jsonl").read_text().splitlines()
    pairs = [json.loads(line) for line in lines]
    model = bertjax.load(tmp_path / "run")
    texts = [answer["generated_text"] for answer in model.generate([p["source"] for p in pairs])]
    matches = [text == pair["target"] for text, pair in zip(texts, pairs, strict=True)]
    assert np.mean(matches) >= 0.99


@pytest.mark.slow  # trains for half a minute
def test_cross_attention_learns_to_reverse_a_source(tmp_path) -> None:
    decoder = {"model__decoder": "cross_attention"}
    train_on_words(tmp_path, "cross_attention", -1)
    assert metrics(tmp_path / "run")[-1]["mlm_accuracy"] > 0.99
    convert(tmp_path / "run", tmp_path / "hf", "bertjax", "hf")
    for path in (tmp_path / "run", tmp_path / "hf"):  # scored as while training
        config = toy_tasks.configuration("generation", tmp_path, path, **decoder)
        loss = evaluate(config, path).scores["mlm_loss"]
        assert loss == pytest.approx(metrics(tmp_path / "run")[-1]["mlm_loss"], abs=1e-5)
    config = toy_tasks.configuration("generation", tmp_path, path, model__decoder="prefix")
    with pytest.raises(
        InputError, match=r"^model\.decoder='prefix': the model at .* has decoder='cross_attention'"
    ):
        evaluate(config, path)
