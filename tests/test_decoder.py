"""Decoding equals naive loops over the whole model; its constraints and options."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.model.bert import BertWithHeads, init_params
from bertjax.model.bert_config import BertConfig
from bertjax.model.decoder.generation import generate
from bertjax.model.decoder.options import (
    SOURCE_DTYPES,
    Decoding,
    DecodingOptions,
    SourceOptions,
)
from bertjax.model.decoder.sampling import truncate
from bertjax.tasks.generation.sources import SourceBatches, program_options
from data_pipelines.errors import InputError

VOCAB, PADDED_VOCAB, SEP, MASK, MAX_NEW = 30, 32, 3, 1, 9
CONFIG = BertConfig(
    vocab_size=PADDED_VOCAB,
    num_hidden_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    max_position_embeddings=40,
    initializer_range=0.6,  # so that hypotheses differ
)
CONFIGS = {
    "prefix": dataclasses.replace(CONFIG, decoder="prefix"),
    "masked_prefix": dataclasses.replace(CONFIG, decoder="masked_prefix"),
    "causal": dataclasses.replace(CONFIG, direction="left_to_right"),
    "cross_attention": dataclasses.replace(CONFIG, decoder="cross_attention"),
}


@functools.cache
def params_of(kind: str) -> Any:
    params = init_params(CONFIGS[kind], ("mlm",), jax.random.key(7))
    # A likely [SEP], so that some hypotheses end early.
    params["mlm"]["bias"] = params["mlm"]["bias"].at[SEP].set(1.5)
    return params


@functools.cache
def forward(kind: str) -> Any:
    model = BertWithHeads(CONFIGS[kind], ("mlm",))

    def log_probs(params: Any, batch: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch, deterministic=True)["mlm_logits"]
        return jax.nn.log_softmax(logits[0, :, :VOCAB])

    return functools.partial(jax.jit(log_probs), params_of(kind))


def log_probs_after(kind: str, source: Sequence[int], target: Sequence[int]) -> np.ndarray:
    """Return the log-probabilities of the next token, by the whole model on one padded sequence."""
    ids, length = [*source, *target], 40
    if kind == "masked_prefix":
        ids.append(MASK)
    tokens = np.arange(length) < len(ids)
    batch = {
        "input_ids": np.pad(np.array(ids, np.int32), (0, length - len(ids)))[None],
        "token_type_ids": (tokens & (np.arange(length) >= len(source)))[None].astype(np.int32),
        "example_ids": tokens[None].astype(np.int32),
        "position_ids": np.where(tokens, np.arange(length), 0)[None].astype(np.int32),
        "masked_lm_positions": np.zeros((1, MAX_NEW), np.int32),
    }
    num_slots = len(target) + 1  # to the last token
    batch["masked_lm_positions"][0, :num_slots] = np.arange(len(ids) - num_slots, len(ids))
    if kind == "causal":
        batch["token_type_ids"] = np.zeros_like(batch["token_type_ids"])
    return np.asarray(forward(kind)(batch)[len(target)], np.float64)


def forbid(options: DecodingOptions, scores: np.ndarray, target: Sequence[int]) -> np.ndarray:
    """Return the scores with -inf for tokens that the options exclude."""
    scores, n = scores.copy(), options.no_repeat_ngram_size
    if len(target) < options.min_new_tokens:
        scores[SEP] = -np.inf
    ngrams = {tuple(target[i : i + n]) for i in range(len(target) - n + 1)} if n else set()
    for token in range(VOCAB):
        if n and (*target[len(target) - n + 1 :], token) in ngrams and len(target) >= n - 1:
            scores[token] = -np.inf
    return scores


def naive_greedy(kind: str, source: Sequence[int], options: DecodingOptions) -> tuple[Any, float]:
    target: list[int] = []
    total = 0.0
    while len(target) < options.max_new_tokens and target[-1:] != [SEP]:
        scores = log_probs_after(kind, source, target)
        target.append(int(forbid(options, scores, target).argmax()))
        total += scores[target[-1]]
    return target, total


def naive_beam_search(
    kind: str, source: Sequence[int], options: DecodingOptions
) -> list[tuple[list[int], float]]:
    """Return the complete hypotheses, best first, by plain lists."""
    beams, penalty, limit = options.num_beams, options.length_penalty, options.max_new_tokens
    running: list[tuple[list[int], float]] = [([], 0.0)]
    complete: list[tuple[list[int], float]] = []
    for length in range(1, limit + 1):
        candidates = []
        for target, total in running:
            scores = forbid(options, log_probs_after(kind, source, target), target)
            best = np.argsort(-scores)[: 2 * beams]
            candidates += [([*target, int(i)], total + scores[i]) for i in best]
        candidates.sort(key=lambda pair: -pair[1])
        candidates = candidates[: 2 * beams]
        is_over = [target[-1] == SEP or length == limit for target, _ in candidates]
        is_closed = options.early_stopping is True and len(complete) == beams
        for (target, total), over in zip(candidates[:beams], is_over, strict=False):
            if over and not is_closed:
                complete.append((target, total / length**penalty))
        complete = sorted(complete, key=lambda pair: -pair[1])[:beams]
        running = [pair for pair, over in zip(candidates, is_over, strict=True) if not over][:beams]
        if len(complete) == beams and running:
            longest = limit if options.early_stopping == "never" and penalty > 0 else length
            hope = running[0][1] / longest**penalty
            if options.early_stopping is True or hope <= complete[-1][1]:
                break
    return complete


def draw_sources(seed: int, count: int, longest: int = 20) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [
        random.integers(4, VOCAB, random.integers(2, longest)).astype(np.int32)
        for _ in range(count)
    ]


@functools.cache
def program(kind: str, decoding: Decoding) -> Any:
    jitted = jax.jit(lambda params, batch: generate(CONFIGS[kind], params, batch, decoding))
    return functools.partial(jitted, params_of(kind))


def decode(kind: str, sources: Sequence[np.ndarray], **options: Any) -> list[list[Any]]:
    """Return tokens and score of the targets of each source."""
    chosen = DecodingOptions(**{"max_new_tokens": MAX_NEW} | options)
    limits = [chosen.max_new_tokens] * len(sources)
    batches = SourceBatches(sources, limits, 32, [chosen] * len(sources))
    results: list[Any] = [None] * len(sources)
    numbers = iter(batches.order)
    for batch in batches:
        outputs = program(kind, batches.decoding(VOCAB, SEP, MASK))(batch)
        ids, lengths, scores = (
            np.asarray(outputs[f"target_{name}"]) for name in ("ids", "lengths", "scores")
        )
        for rows in zip(ids, lengths, scores, strict=True):
            results[next(numbers)] = [
                (row[:length].tolist(), float(score))
                for row, length, score in zip(*rows, strict=True)
            ]
    return results


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose(
        [score for _, score in found], [score for _, score in expected], rtol=1e-5, atol=1e-5
    )


@pytest.mark.seconds
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("options", [{}, {"min_new_tokens": 5, "no_repeat_ngram_size": 1}])
def test_greedy_decoding_equals_a_loop_over_the_model(kind: str, options: dict[str, Any]) -> None:
    sources = draw_sources(0, 6)
    for source, found in zip(sources, decode(kind, sources, **options), strict=True):
        chosen = DecodingOptions(max_new_tokens=MAX_NEW, **options)
        assert_same(found, [naive_greedy(kind, source.tolist(), chosen)])


@pytest.mark.seconds
@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4},
        {"num_beams": 8, "length_penalty": 0.0, "early_stopping": "never"},
        {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
        {"num_beams": 4, "early_stopping": True},
        {"num_beams": 3, "no_repeat_ngram_size": 2, "min_new_tokens": 3, "length_penalty": -1.0},
        {"num_beams": 2, "length_penalty": -8.0},
    ],
)
def test_beam_search_equals_a_loop_over_the_model(kind: str, options: dict[str, Any]) -> None:
    sources, num_beams = draw_sources(1, 4), options["num_beams"]
    all_found = decode(kind, sources, num_return_sequences=num_beams, **options)
    chosen = DecodingOptions(max_new_tokens=MAX_NEW, **options)
    for source, found in zip(sources, all_found, strict=True):
        assert_same([x for x in found if x[0]], naive_beam_search(kind, source.tolist(), chosen))


@pytest.mark.seconds
def test_some_hypotheses_of_the_cases_end_early() -> None:
    targets = [
        tokens for row in decode("prefix", draw_sources(1, 4), num_beams=4) for tokens, _ in row
    ]
    assert any(tokens[-1] == SEP for tokens in targets)


@pytest.mark.seconds
@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"do_sample": True, "seed": 5}])
def test_packed_sources_have_the_targets_of_single_ones(options: dict[str, Any]) -> None:
    sources = draw_sources(2, 5, longest=9)
    together = decode("prefix", sources, **options)
    for source, found in zip(sources, together, strict=True):
        assert_same(found, decode("prefix", [source], **options)[0])


def test_source_batches_have_a_sequence_for_each_source_of_a_bucket() -> None:
    sources = [np.arange(4, 4 + n, dtype=np.int32) for n in (9, 17, 20, 7, 8)]
    options = DecodingOptions(max_new_tokens=4)
    batches = SourceBatches(sources, [4] * 5, 32, [options] * 5)
    assert batches.order == [2, 1, 0, 4, 3]
    shapes = [(*batch["input_ids"].shape, *batch["source_tokens"].shape) for batch in batches]
    assert shapes == [(2, 32, 2, 32), (3, 16, 3, 16)]
    numbers = iter(batches.order)
    for batch in batches:
        for tokens, length in zip(batch["source_tokens"], batch["source_lengths"], strict=True):
            source = sources[next(numbers)]
            assert batch["input_ids"].ravel()[tokens[:length]].tolist() == source.tolist()


@pytest.mark.parametrize(
    ("backend", "num_devices", "sizes"),
    [("cpu", 1, [32] * 9), ("cpu", 8, [256, 32]), ("tpu", 2, [128, 128, 32])],
)
def test_source_batches_fill_every_device(
    monkeypatch, backend: str, num_devices: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    sources = [np.arange(4, 124, dtype=np.int32)] * 288
    options = DecodingOptions(max_new_tokens=64)
    batches = SourceBatches(sources, [64] * 288, 128, [options] * 288, num_devices)
    assert [len(batch["input_ids"]) for batch in batches] == sizes


@pytest.mark.seconds
def test_samples_depend_on_seed_and_source_alone() -> None:
    sources = draw_sources(3, 4)
    first = decode("causal", sources, do_sample=True, num_return_sequences=3)
    turned = decode("causal", sources[::-1], do_sample=True, num_return_sequences=3)[::-1]
    fewer = decode("causal", sources, do_sample=True, num_return_sequences=2)
    for row, other, pair in zip(first, turned, fewer, strict=True):
        assert_same(other, row)
        assert_same(pair, row[:2])
    assert decode("causal", sources, do_sample=True, seed=1, num_return_sequences=3) != first
    assert len({tuple(tokens) for row in first for tokens, _ in row}) > 6


@pytest.mark.seconds
def test_samples_follow_the_distribution_of_the_model() -> None:
    source = draw_sources(4, 1)[0]
    rows = [
        decode(
            "prefix",
            [source],
            do_sample=True,
            seed=seed,
            max_new_tokens=1,
            num_return_sequences=250,
            temperature=0.5,
        )[0]
        for seed in range(8)
    ]
    counts = np.bincount([tokens[0] for row in rows for tokens, _ in row], minlength=VOCAB)
    probabilities = np.exp(log_probs_after("prefix", source.tolist(), []) / 0.5)
    expected = 2000 * probabilities / probabilities.sum()
    deviations = (counts - expected) / np.sqrt(expected + 1)
    assert np.abs(deviations).max() < 4.5


@pytest.mark.seconds
@given(
    st.lists(st.integers(-40, 40), min_size=2, max_size=12, unique=True),
    st.integers(0, 13),
    st.floats(0.05, 1),
)
@settings(max_examples=40)
def test_truncate_keeps_the_most_probable_tokens(values, top_k: int, top_p: float) -> None:
    logits = np.array(values, np.float32) / 10
    options = DecodingOptions(do_sample=True, max_new_tokens=1, top_k=top_k, top_p=top_p)
    arrays = {
        name: np.array([getattr(options, name, 1)], dtype) for name, dtype in SOURCE_DTYPES.items()
    }
    of_sources = SourceOptions(**arrays)
    truncated = truncate(logits[None, None], of_sources, program_options(options))
    kept = np.flatnonzero(np.isfinite(truncated[0, 0]))
    order = np.argsort(-logits)
    assert set(kept) == set(order[: len(kept)])  # no token is kept before a more probable one
    allowed = order[: top_k or len(values)]
    probabilities = np.exp(logits[allowed]) / np.exp(logits[allowed]).sum()
    sums = np.cumsum(probabilities)
    if np.abs(sums - top_p).min() > 1e-5 and top_p < 1:
        assert len(kept) == min(int((sums < top_p).sum()) + 1, len(allowed))


@pytest.mark.seconds
def test_limits_end_targets_without_sep() -> None:
    sources = draw_sources(1, 3)
    options = DecodingOptions(max_new_tokens=MAX_NEW, min_new_tokens=8)
    for chosen in (options, dataclasses.replace(options, num_beams=4)):
        batches = SourceBatches(sources, [2, 5, 9], 32, [chosen] * 3)
        for batch in batches:
            outputs = program("prefix", batches.decoding(VOCAB, SEP))(batch)
            assert outputs["target_lengths"][:, 0].tolist() == batch["source_limits"].tolist()


def test_seeds_share_a_program() -> None:
    def batches(seed: int) -> SourceBatches:
        options = DecodingOptions(max_new_tokens=4, do_sample=True, seed=seed)
        return SourceBatches([np.array([5, 6], np.int32)], [4], 32, [options])

    assert batches(0).decoding(VOCAB, SEP) == batches(1).decoding(VOCAB, SEP)
    assert batches(0).decoding(VOCAB, SEP) != batches(0).decoding(VOCAB, SEP + 1)
    digests = {int(next(iter(batches(seed)))["source_digests"][0]) for seed in range(9)}
    assert len(digests) == 9


@pytest.mark.seconds
@pytest.mark.parametrize(
    "fields",
    [
        {"min_new_tokens": (1, 4, 8)},
        {"num_beams": (4, 4, 4), "length_penalty": (0.5, 1.0, 2.0), "max_new_tokens": (3, 9, 16)},
        {"num_beams": (3, 3, 3), "length_penalty": (0.0, -1.0, -2.0)},
        {
            "do_sample": (True, True, True),
            "temperature": (0.3, 1.0, 3.0),
            "top_k": (5, 6, 8),
            "top_p": (0.1, 0.5, 0.9),
            "seed": (0, 7, 1),
        },
    ],
)
def test_sources_with_other_numbers_share_a_program_and_a_batch(fields: dict[str, Any]) -> None:
    sources = draw_sources(5, 3, longest=9)
    all_options = [
        DecodingOptions(**{"max_new_tokens": MAX_NEW} | dict(zip(fields, values, strict=True)))
        for values in zip(*fields.values(), strict=True)
    ]
    assert len({program_options(options) for options in all_options}) == 1
    limits = [options.max_new_tokens for options in all_options]
    batches = SourceBatches(sources, limits, 32, all_options)
    (batch,) = batches
    outputs = program("prefix", batches.decoding(VOCAB, SEP, MASK))(batch)
    for row, number in enumerate(batches.order):
        options = dataclasses.asdict(all_options[number])
        ((tokens, score), *_) = decode("prefix", [sources[number]], **options)[0]
        length = int(outputs["target_lengths"][row, 0])
        assert outputs["target_ids"][row, 0, :length].tolist() == tokens
        assert float(outputs["target_scores"][row, 0]) == pytest.approx(score, rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_beams": 0}, "num_beams=0: not an integer from 1"),
        ({"num_beams": 1000}, "num_beams=1000: too many. Use at most 256"),
        ({"num_beams": True}, "num_beams=True: not an integer"),
        ({"num_return_sequences": 2}, "num_return_sequences=2: more than num_beams=1"),
        ({"min_new_tokens": 5, "max_new_tokens": 5}, "min_new_tokens=5: leaves no space"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1: not an integer from 0"),
        ({"length_penalty": 0.5}, "length_penalty=0.5: has no effect without num_beams"),
        ({"early_stopping": True}, "early_stopping=True: has no effect without num_beams"),
        ({"num_beams": 2, "early_stopping": "soon"}, "early_stopping='soon': unknown"),
        ({"num_beams": 2, "length_penalty": float("nan")}, "length_penalty=nan: not in"),
        ({"num_beams": 2, "length_penalty": -10.5}, "length_penalty=-10.5: not in"),
        ({"temperature": 0.5}, "temperature=0.5: has no effect without do_sample=True"),
        ({"do_sample": True, "temperature": 0.0}, "temperature=0.0: not in"),
        ({"do_sample": True, "top_p": 0.0}, "top_p=0.0: not in"),
        ({"do_sample": True, "temperature": 1e39}, "temperature=1e\\+39: not in"),
        ({"do_sample": True, "top_k": 5 * 10**9}, "top_k=5000000000: above 16777216"),
        ({"do_sample": True, "num_beams": 2}, "num_beams=2: samples have no beams"),
        ({"do_sample": True, "seed": 1 << 32}, "seed=4294967296: not in"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size=-1: not an integer from 0"),
    ],
)
def test_options_reject_what_has_no_meaning(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        DecodingOptions(**fields)
