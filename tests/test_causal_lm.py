"""Left-to-right language models: each piece tells the next, and sees none that follows."""

import math

import numpy as np
import pytest
from run_outputs import answers_of
from test_train import configure, losses, metrics

from bertjax.inference.convert import convert
from bertjax.model.heads import last_positions
from bertjax.tasks.pretraining import Objective, Task
from bertjax.training.trainer import Run
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions

CAUSAL = {"data__objective": "left_to_right", "data__max_predictions": None, "model__causal": True}


def options(**fields: object) -> PretrainingOptions:
    return PretrainingOptions(32, 16, objective="left_to_right", **fields)  # type: ignore[arg-type]


def test_every_piece_but_the_last_of_a_segment_tells_the_next(corpus) -> None:
    batch = PretrainingData(corpus, options()).batch(0)
    assert batch["mlm_weights"].shape == (16, 32) and not batch["nsp_weights"].any()
    for row in range(16):
        ids, packs = batch["token_ids"][row], batch["pack_ids"][row]
        expected = [
            (at, ids[at + 1]) for at in range(31) if packs[at] and packs[at] == packs[at + 1]
        ]
        filled = batch["mlm_weights"][row] > 0
        columns, targets = batch["mlm_positions"][row], batch["mlm_targets"][row]
        assert list(zip(columns[filled], targets[filled], strict=True)) == expected
        assert filled[: len(expected)].all()


def test_no_piece_is_hidden(corpus) -> None:
    """What is read is the text itself: [MASK] stands nowhere."""
    data = PretrainingData(corpus, options())
    for step in range(10):
        assert (data.batch(step)["token_ids"] != data.tokenizer.mask_id).all()


def test_the_last_positions_are_those_of_each_example() -> None:
    pack_ids = np.array([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1], [0] * 6], np.int32)
    assert last_positions(pack_ids, 3).tolist() == [[1, 4, 0], [5, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_predictions": 20}, "max_predictions=20 is of masks, which objective=left_to_right"),
        ({"mask_prob": 0.3}, r"mask_prob=0\.3 is of masks"),
        ({"masking": "word"}, "masking=word is of masks"),
        ({"across_documents": True}, "across_documents=True is of objective=mlm"),
    ],
)
def test_what_is_of_masks_is_refused(fields, message) -> None:
    with pytest.raises(InputError, match=message):
        options(**fields)


@pytest.mark.parametrize("objective", ["mlm", "left_to_right"])
def test_the_model_must_look_as_the_objective_does(corpus, objective) -> None:
    fields = CAUSAL | {"data__objective": objective, "model__causal": objective == "mlm"}
    with pytest.raises(InputError, match=f"does not go with data.objective={objective}"):
        Objective(configure(corpus, **fields))


def test_a_model_says_whether_it_continues_texts_or_fills_masks(corpus) -> None:
    assert Task.ability_of(configure(corpus)) == "fills [MASK]s"
    assert Task.ability_of(configure(corpus, **CAUSAL)) == "continues texts"


@pytest.mark.slow
def test_it_is_trained_opened_and_goes_on_with_a_line(corpus, tmp_path) -> None:
    config = configure(corpus, **CAUSAL, steps=60, eval_every=60)
    Run(config, tmp_path / "run").train()
    first, *_, last = [m["mlm_loss"] for m in metrics(tmp_path / "run") if m["split"] == "train"]
    assert last < first - 0.5 and losses(tmp_path / "run")

    lines = ["bado kilu", "me", "no ra si"]
    answers = answers_of(tmp_path / "run", lines)
    assert [answer["text"] for answer in answers] == lines
    assert all(answer["continued"] for answer in answers)
    (alone,) = answers_of(tmp_path / "run", lines[1:2])
    assert alone == answers[1]

    # What it has learned of words serves where it goes on with masks, and sees both sides.
    masks = configure(corpus, steps=2, log_every=1, init=str(tmp_path / "run"))
    Run(masks, tmp_path / "masks").train()
    assert metrics(tmp_path / "masks")[0]["mlm_loss"] < math.log(masks.model.vocab_size) - 0.3

    convert(tmp_path / "run", tmp_path / "hf", "bertjax", "hf")
    assert answers_of(tmp_path / "hf", lines) == answers
    assert '"BertLMHeadModel"' in (tmp_path / "hf" / "config.json").read_text()
