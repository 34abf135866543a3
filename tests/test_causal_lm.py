"""Causal language models: data, objective, training and generation."""

import math

import numpy as np
import pytest
from pretraining_runs import losses, make_run_config, metrics
from run_outputs import answers_of

from bertjax.inference.convert import convert
from bertjax.model.bert import last_positions
from bertjax.tasks.pretraining import PretrainingObjective, PretrainingTask
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions

CAUSAL = {"data__objective": "clm", "data__max_predictions_per_seq": None, "model__causal": True}


def options(**fields: object) -> PretrainingOptions:
    return PretrainingOptions(32, 16, objective="clm", **fields)  # type: ignore[arg-type]


def test_clm_batch_predicts_each_next_token(corpus) -> None:
    batch = PretrainingData(corpus, options()).batch(0)
    assert batch["masked_lm_weights"].shape == (16, 32) and not batch["next_sentence_weights"].any()
    for row in range(16):
        ids, example_ids = batch["input_ids"][row], batch["example_ids"][row]
        expected = [
            (i, ids[i + 1])
            for i in range(31)
            if example_ids[i] and example_ids[i] == example_ids[i + 1]
        ]
        filled = batch["masked_lm_weights"][row] > 0
        columns, targets = batch["masked_lm_positions"][row], batch["masked_lm_ids"][row]
        assert list(zip(columns[filled], targets[filled], strict=True)) == expected
        assert filled[: len(expected)].all()


def test_clm_batch_has_no_mask_tokens(corpus) -> None:
    data = PretrainingData(corpus, options())
    for step in range(10):
        assert (data.batch(step)["input_ids"] != data.tokenizer.mask_id).all()


def test_last_positions_are_those_of_each_example() -> None:
    example_ids = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0] * 6], np.int32)
    assert last_positions(example_ids, 3).tolist() == [[1, 4, 0], [5, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"max_predictions_per_seq": 20},
            "max_predictions_per_seq=20: objective=clm masks no tokens",
        ),
        ({"mlm_probability": 0.3}, r"mlm_probability=0\.3: objective=clm masks no tokens"),
        ({"masking": "span"}, "masking=span: objective=clm masks no tokens"),
        ({"full_sentences": True}, "full_sentences=True: needs objective=mlm and packing=True"),
    ],
)
def test_options_reject_masking_for_clm(fields, message) -> None:
    with pytest.raises(InputError, match=message):
        options(**fields)


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_objective_rejects_a_mismatch_of_causal(corpus, objective) -> None:
    fields = CAUSAL | {"data__objective": objective, "model__causal": objective == "mlm"}
    with pytest.raises(InputError, match=f"data.objective={objective}: model.causal="):
        PretrainingObjective(make_run_config(corpus, **fields))


def test_description_distinguishes_clm_from_mlm(corpus) -> None:
    find_pipeline = PretrainingTask.pipeline_class
    assert find_pipeline(make_run_config(corpus)).description == "fills [MASK]s"
    assert find_pipeline(make_run_config(corpus, **CAUSAL)).description == "continues texts"


@pytest.mark.slow
def test_clm_trains_generates_and_initializes_an_mlm(corpus, tmp_path) -> None:
    config = make_run_config(corpus, **CAUSAL, steps=48, eval_every=48)
    make_trainer(config, tmp_path / "run").train()
    first, *_, last = [m["mlm_loss"] for m in metrics(tmp_path / "run") if m["split"] == "train"]
    assert last < first - 0.5 and losses(tmp_path / "run")

    lines = ["bado kilu", "me", "no ra si"]
    answers = answers_of(tmp_path / "run", lines)
    assert [answer["text"] for answer in answers] == lines
    assert all(answer["generated_text"] for answer in answers)
    (alone,) = answers_of(tmp_path / "run", lines[1:2])
    assert alone == answers[1]

    # A masked LM initialized from it starts with a lower loss.
    masks = make_run_config(corpus, log_every=1, init=str(tmp_path / "run"))
    make_trainer(masks, tmp_path / "masks").train()
    assert metrics(tmp_path / "masks")[0]["mlm_loss"] < math.log(masks.model.vocab_size) - 0.3

    convert(tmp_path / "run", tmp_path / "hf", "bertjax", "hf")
    assert answers_of(tmp_path / "hf", lines) == answers
    assert '"BertLMHeadModel"' in (tmp_path / "hf" / "config.json").read_text()
