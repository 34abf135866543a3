"""Span scores and their loss against loops over all spans; examples do not depend on packing."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf, log_softmax

from bertjax.config.config import Config
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry
from bertjax.tasks.answer_extraction.model import span_soft_loss, valid_spans
from bertjax.tasks.answer_extraction.objective import SCORERS, AnswerExtractionObjective
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.packed_examples import PackedShape, build_batch, pack_examples
from data_pipelines.finetuning.question_answering.answer_spans import (
    ENDS_WORD,
    MAX_ANSWER_LENGTH,
    STARTS_WORD,
    span_targets,
)

CONFIG = BertConfig(
    100, num_hidden_layers=1, hidden_size=32, num_attention_heads=2, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, initializer_range=0.3,
)  # fmt: skip
LENGTH = 40


def make_objective(scorer: str, packing: bool = True) -> AnswerExtractionObjective:
    data = {**registry.data_fields()["answer_extraction"], "scorer": scorer, "doc_stride": 8}
    config = Config(
        "answer_extraction", model=CONFIG, batch_size=8, max_seq_length=LENGTH, steps=10,
        packing=packing, data=data,
    ).resolve()  # fmt: skip
    objective = registry.make_objective(config, 8)
    assert isinstance(objective, AnswerExtractionObjective)
    return objective


def draw_windows(count: int, seed: int = 0) -> Examples:
    """Return windows of random tokens, words and answers."""
    random = np.random.default_rng(seed)
    rows, boundaries, answers = [], [], []
    for length in random.integers(3, 20, count).tolist():
        bits = np.zeros(length, np.int32)
        bits[1:-1] = random.integers(0, 4, length - 2)
        gold = np.zeros(length, np.int32)
        for start in np.flatnonzero(bits & STARTS_WORD).tolist():
            ends = np.flatnonzero(bits[start : start + MAX_ANSWER_LENGTH] & ENDS_WORD)
            for end in ends[random.random(len(ends)) < 0.2].tolist():
                gold[start] |= 1 << end
        rows.append(random.integers(5, 100, length).tolist())
        boundaries.append(bits)
        answers.append(gold)
    targets = span_targets(np.concatenate(boundaries), np.concatenate(answers))
    return Examples.from_rows(rows, [len(row) for row in rows], targets)


def batch_of(windows: Examples, indices: np.ndarray, shape: PackedShape) -> dict[str, np.ndarray]:
    layout = pack_examples(windows, indices, shape)
    return build_batch(windows, layout, 8 * math.ceil(layout.num_sequences / 8), shape)


def spans_of(batch: dict[str, np.ndarray]) -> list[tuple[int, list[tuple[int, int, bool]]]]:
    """Return the sequence of each window, and its spans: first, last token, whether it is gold."""
    windows = []
    for row, ids in enumerate(batch["example_ids"]):
        for example in range(1, int(ids.max()) + 1):
            columns = np.flatnonzero(ids == example)
            bits, gold = batch["span_boundaries"][row], batch["answer_lengths"][row]
            spans = [
                (start, end, bool(gold[start] >> (end - start) & 1))
                for start in columns
                for end in columns
                if 0 <= end - start < MAX_ANSWER_LENGTH
                if bits[start] & STARTS_WORD and bits[end] & ENDS_WORD
            ]
            windows.append((row, spans))
    return windows


def naive_scores(scorer: str, params: Any, x: np.ndarray) -> np.ndarray:
    """Return the score of each pair of tokens, [T, T]; `x` are the vectors [T, H]."""
    scores = np.zeros((len(x), len(x)))
    head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params[SCORERS[scorer]])
    if scorer == "independent":
        starts, ends = (x @ head["kernel"] + head["bias"]).T
        return starts[:, None] + ends
    kernel, (norm, output) = head["transform"]["kernel"], head["scorer"].values()
    joined = np.concatenate(np.split(kernel, 2, axis=1))  # [2H, H]
    bias = np.add(*np.split(head["transform"]["bias"], 2))
    for start in range(len(x)):
        for end in range(len(x)):
            hidden = np.concatenate([x[start], x[end]]) @ joined + bias
            hidden = hidden * 0.5 * (1 + erf(hidden / math.sqrt(2)))
            hidden = (hidden - hidden.mean()) / np.sqrt(hidden.var() + CONFIG.layer_norm_eps)
            hidden = hidden * norm["scale"] + norm["bias"]
            scores[start, end] = (hidden @ output["kernel"] + output["bias"])[0]
    return scores


@functools.cache
def params_of(scorer: str) -> Any:
    params = jax.jit(make_objective(scorer).init_params)(jax.random.key(1))
    random = np.random.default_rng(2)  # biases and scales are zeros and ones at first
    noise = {name: random.normal(0, 0.2, x.shape) for name, x in named_leaves(params)}
    return jax.tree.map(
        lambda leaf, delta: jnp.asarray(leaf + delta, jnp.float32),
        params,
        jax.tree.unflatten(jax.tree.structure(params), [*noise.values()]),
    )


@pytest.mark.seconds
@pytest.mark.parametrize("scorer", SCORERS)
def test_scores_and_loss_equal_loops_over_all_spans(scorer: str) -> None:
    objective, params = make_objective(scorer), params_of(scorer)
    batch = batch_of(draw_windows(24), np.arange(24), objective.sequence_shape)
    outputs = jax.jit(
        lambda p, b: objective.model.apply(
            {"params": p}, b, deterministic=True, hidden_layers=[CONFIG.num_hidden_layers]
        )
    )(params, batch)
    logits = np.asarray(outputs[f"{SCORERS[scorer]}_logits"])
    assert logits.shape == (*batch["input_ids"].shape, MAX_ANSWER_LENGTH)
    assert logits.dtype == np.float32
    is_valid = np.asarray(valid_spans({name: jnp.asarray(x) for name, x in batch.items()}))
    sums = objective.sums(outputs, batch)
    loss, weight, num_valid = 0.0, 0, 0
    for row, spans in spans_of(batch):
        assert spans == [] or is_valid[row].any()
        naive = naive_scores(scorer, params, np.asarray(outputs["hidden_states"][0][row]))
        scores = np.array([naive[start, end] for start, end, _ in spans])
        ours = [logits[row, start, end - start] for start, end, _ in spans]
        np.testing.assert_allclose(ours, scores, atol=1e-3)
        is_gold = np.array([gold for *_, gold in spans], bool)
        loss -= log_softmax(scores)[is_gold].sum() if len(scores) else 0.0
        weight, num_valid = weight + is_gold.sum(), num_valid + len(spans)
    assert num_valid == is_valid.sum() and weight > 20
    total, total_weight = sums[f"{SCORERS[scorer]}_loss"]
    assert total_weight == weight
    np.testing.assert_allclose(total, loss, rtol=1e-4)


@pytest.mark.seconds
def test_soft_loss_is_the_divergence_of_each_window() -> None:
    batch = batch_of(draw_windows(24), np.arange(24), make_objective("joint").sequence_shape)
    random, temperature = np.random.default_rng(3), 2.0
    shape = (*batch["input_ids"].shape, MAX_ANSWER_LENGTH)
    student, teacher = random.normal(0, 3, (2, *shape)).astype(np.float32)
    expected = 0.0
    for row, spans in filter(lambda window: window[1], spans_of(batch)):
        log_q, log_p = (
            log_softmax([logits[row, start, end - start] / temperature for start, end, _ in spans])
            for logits in (student, teacher)
        )
        expected += temperature**2 * (np.exp(log_p) * (log_p - log_q)).sum()
    arrays = {name: jnp.asarray(array) for name, array in batch.items()}
    loss, weight = span_soft_loss(student, teacher, arrays, jnp.float32(temperature))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    assert weight == 24 and span_soft_loss(student, student, arrays, jnp.float32(1))[0] == 0


@functools.cache
def gradient_function(scorer: str, packing: bool = True) -> Any:
    """Return a function from parameters and a batch to loss and gradient."""
    objective = make_objective(scorer, packing)

    def loss(params: Any, batch: Any) -> Any:
        sums = objective.train_sums(params, batch, None, {}, jnp.float32(0))
        total, weight = sums[f"{SCORERS[scorer]}_loss"]
        return total / weight

    return jax.jit(jax.value_and_grad(loss))


@pytest.mark.slow
@pytest.mark.parametrize("scorer", SCORERS)
def test_loss_and_gradient_do_not_depend_on_packing(scorer: str) -> None:
    windows, params, results = draw_windows(24), params_of(scorer), []
    for packing in (True, False):
        objective = make_objective(scorer, packing)
        batch = batch_of(windows, np.arange(24), objective.sequence_shape)
        results.append(gradient_function(scorer, packing)(params, batch))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), *results)


@pytest.mark.seconds
@pytest.mark.parametrize("scorer", SCORERS)
def test_gradient_of_a_window_is_the_mean_of_those_of_its_answers(scorer: str) -> None:
    """One forward pass for all answers has the gradient of one pass for each."""
    objective, windows, params = make_objective(scorer), draw_windows(24), params_of(scorer)
    together = batch_of(windows, np.arange(1), objective.sequence_shape)
    cells = np.argwhere(
        together["answer_lengths"][..., None] >> np.arange(MAX_ANSWER_LENGTH) & 1 > 0
    )
    assert len(cells) > 1
    parts = []
    for row, column, extent in cells:
        batch = together | {"answer_lengths": np.zeros_like(together["answer_lengths"])}
        batch["answer_lengths"][row, column] = 1 << extent
        parts.append(gradient_function(scorer)(params, batch))
    mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *parts)
    ours = gradient_function(scorer)(params, together)
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5, rtol=1e-4), ours, mean)


@pytest.mark.seconds
def test_windows_without_valid_spans_or_answers_count_nothing() -> None:
    objective, params = make_objective("joint"), params_of("joint")
    batch = batch_of(draw_windows(6), np.arange(6), objective.sequence_shape)
    for name in ("span_boundaries", "answer_lengths", "answer_lengths_weights"):
        empty = batch | {name: np.zeros_like(batch[name])}
        outputs = jax.jit(lambda p, b: objective.apply(p, b, None, {}))(params, empty)
        (loss, weight) = objective.sums(outputs, empty)["answer_spans_loss"]
        assert float(loss) == float(weight) == 0.0


def test_joint_scorer_counts_its_products() -> None:
    joint, independent = (make_objective(scorer).forward_flops(1) for scorer in SCORERS)
    hidden = CONFIG.hidden_size
    assert joint - independent == 2 * LENGTH * hidden * (2 * hidden + MAX_ANSWER_LENGTH)
