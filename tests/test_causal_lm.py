"""Causal language models: data, objective, training and generation."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pretraining_runs import losses, make_run_config, metrics
from run_outputs import answers_of

from bertjax.config.config import Config
from bertjax.inference.convert import convert
from bertjax.model.encoders import last_positions
from bertjax.model.heads import sampled_logits
from bertjax.tasks.embeddings.encoder_embeddings import EmbeddingOptions, EmbeddingsObjective
from bertjax.tasks.pretraining import PretrainingObjective, PretrainingTask
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions

CAUSAL = {
    "data__objective": "clm",
    "data__max_predictions_per_seq": None,
    "model__direction": "left_to_right",
}


REVERSE = CAUSAL | {"data__objective": "clm_reverse", "model__direction": "right_to_left"}


def options(objective: str = "clm", **fields: object) -> PretrainingOptions:
    return PretrainingOptions(32, 16, objective=objective, **fields)  # type: ignore[arg-type]


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


def test_clm_reverse_batch_predicts_each_token_before(corpus) -> None:
    ahead = PretrainingData(corpus, options()).batch(0)
    batch = PretrainingData(corpus, options("clm_reverse")).batch(0)
    for name in ("input_ids", "example_ids", "position_ids", "masked_lm_weights"):
        np.testing.assert_array_equal(batch[name], ahead[name])
    rows, slots = np.nonzero(batch["masked_lm_weights"])
    columns = batch["masked_lm_positions"][rows, slots]
    np.testing.assert_array_equal(columns, ahead["masked_lm_positions"][rows, slots] + 1)
    expected = batch["input_ids"][rows, columns - 1]
    np.testing.assert_array_equal(batch["masked_lm_ids"][rows, slots], expected)


@pytest.mark.seconds
def test_clm_reverse_is_clm_of_reversed_sequences(corpus) -> None:
    ahead = PretrainingObjective(make_run_config(corpus, **CAUSAL))
    back = PretrainingObjective(make_run_config(corpus, **REVERSE))
    batch = PretrainingData(corpus, back.options).batch(0)
    per_token = ("input_ids", "token_type_ids", "example_ids", "position_ids")
    reverse = batch | {name: batch[name][:, ::-1] for name in per_token}
    last = batch["input_ids"].shape[1] - 1
    reverse["masked_lm_positions"] = last - batch["masked_lm_positions"]
    params = jax.jit(back.init_params)(jax.random.key(0))

    def loss(objective: PretrainingObjective, arrays: Any) -> float:
        outputs = jax.jit(objective.apply, static_argnums=2)(params, arrays, None, {})
        total, weight = objective.sums(outputs, arrays)["mlm_loss"]
        return float(total / weight)

    assert loss(back, batch) == pytest.approx(loss(ahead, reverse), rel=1e-6)
    assert loss(back, batch) != pytest.approx(loss(ahead, batch), rel=3e-6)


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


@pytest.mark.parametrize(
    ("objective", "direction"),
    [("mlm", "left_to_right"), ("clm", "bidirectional"), ("clm_reverse", "left_to_right")],
)
def test_objective_rejects_a_mismatch_of_direction(corpus, objective, direction) -> None:
    fields = CAUSAL | {"data__objective": objective, "model__direction": direction}
    with pytest.raises(InputError, match=f"data.objective={objective}: model.direction="):
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


@pytest.mark.seconds
def test_sampled_softmax_estimates_the_sum_over_the_vocabulary() -> None:
    random = np.random.default_rng(0)
    x, word, bias = (
        jnp.asarray(random.normal(size=shape), jnp.float32) for shape in ((1, 1, 8), (50, 8), (50,))
    )
    targets = jnp.array([[7]])
    whole = x[0, 0] @ word.T + bias
    draws = jax.random.randint(jax.random.key(0), (4000, 20), 0, 50)
    logits = jax.jit(jax.vmap(lambda drawn: sampled_logits(x, word, bias, targets, drawn)))(draws)
    assert logits.shape == (4000, 1, 1, 21)
    np.testing.assert_allclose(logits[..., 0], whole[7], rtol=1e-5)
    sums = jnp.exp(logits).sum(axis=-1)
    error = float(sums.std()) / 4000**0.5
    assert abs(float(sums.mean() - jnp.exp(whole).sum())) < 3 * error < 0.05 * float(sums.mean())
    is_target = np.asarray(draws == 7)
    assert is_target.any() and np.isneginf(logits[:, 0, 0, 1:][is_target]).all()


def test_sampled_softmax_counts_all_places_of_a_token_in_bfloat16() -> None:
    """A sum of ones in bfloat16 ends at 256."""
    x, word = jnp.ones((1, 1000, 4), jnp.bfloat16), jnp.zeros((9, 4), jnp.bfloat16)
    targets, drawn = jnp.full((1, 1000), 7), jnp.zeros((1,), jnp.int32)

    def target_logits(word: jax.Array) -> jax.Array:
        return sampled_logits(x, word, jnp.zeros(9), targets, drawn)[..., 0].sum()

    gradient = jax.jit(jax.grad(target_logits))(word)
    np.testing.assert_allclose(gradient[7].astype(np.float32), 1000, rtol=2**-8)


@pytest.mark.seconds
def test_sampled_softmax_is_weighed_by_loss_weights(corpus) -> None:
    fields = CAUSAL | {"model__sampled_softmax": 127}
    plain = PretrainingObjective(make_run_config(corpus, **fields))
    weighed = PretrainingObjective(make_run_config(corpus, **fields, loss_weights="mlm=2"))
    batch = PretrainingData(corpus, plain.options).batch(0)
    params = jax.jit(plain.init_params)(jax.random.key(0))
    once, twice = (
        jax.jit(objective.train_sums)(params, batch, None, {}, jnp.float32(0))["mlm_loss"]
        for objective in (plain, weighed)
    )
    np.testing.assert_allclose(twice, (2 * once[0], once[1]), rtol=1e-6)


def test_encoder_that_a_sampled_softmax_trained_embeds_texts(corpus) -> None:
    model = make_run_config(corpus, **CAUSAL, model__sampled_softmax=127).model
    config = Config(model=model, max_seq_length=32, batch_size=1)
    objective = EmbeddingsObjective(config, 1, EmbeddingOptions())
    assert objective.config.model.sampled_softmax == 0


@pytest.mark.seconds
def test_sampled_softmax_is_of_train_steps_alone(corpus) -> None:
    plain = PretrainingObjective(make_run_config(corpus, **CAUSAL))
    sampled = PretrainingObjective(make_run_config(corpus, **CAUSAL, model__sampled_softmax=127))
    batch = PretrainingData(corpus, plain.options).batch(0)
    params = jax.jit(plain.init_params)(jax.random.key(0))

    @functools.partial(jax.jit, static_argnums=0)
    def loss(objective: PretrainingObjective, key: Any) -> Any:
        sums = objective.train_sums(params, batch, key, {}, jnp.float32(0))
        return sums["mlm_loss"][0] / sums["mlm_loss"][1]

    keys = jax.random.split(jax.random.key(1), 2)
    first, second = (float(loss(sampled, key)) for key in keys)
    assert first == float(loss(sampled, keys[0])) != second
    assert abs(first - float(loss(plain, keys[0]))) < 0.3
    outputs = jax.jit(sampled.apply, static_argnums=2)(params, batch, None, {})
    assert outputs["mlm_logits"].shape[-1] == 128  # of an evaluation
    assert sampled.step_flops() < 1.01 * plain.step_flops() < 1.02 * sampled.step_flops()
    with pytest.raises(InputError, match="sampled_softmax=8: only a CLM predicts so many tokens"):
        PretrainingObjective(make_run_config(corpus, model__sampled_softmax=8))


@pytest.mark.parametrize("objective", ["clm", "clm_reverse"])
def test_no_layer_mix_sees_the_tokens_that_are_predicted(corpus, objective: str) -> None:
    direction = {"clm": "left_to_right", "clm_reverse": "right_to_left"}[objective]
    fields = {"data__objective": objective, "model__direction": direction, "model__bilstm": 8}
    fields["data__max_predictions_per_seq"] = None
    with pytest.raises(InputError, match=r"^model.bilstm=8: "):
        PretrainingObjective(make_run_config(corpus, **fields))
