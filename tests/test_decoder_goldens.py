"""Targets of a cross-attention model equal those of `transformers.generate`."""

import functools
import json
import pathlib
from typing import Any

import jax
import numpy as np
import pytest
from goldens import make_encoder_decoder as recipe
from safetensors.numpy import save_file

from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.model.decoder.generation import generate
from bertjax.model.decoder.options import DecodingOptions
from bertjax.tasks.generation.sources import SourceBatches

MAX_SEQ_LENGTH = recipe.BERT["max_position_embeddings"]


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(recipe.PATH) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def model(golden, tmp_path_factory) -> NumpyModel:
    path: pathlib.Path = tmp_path_factory.mktemp("model")
    shapes = json.loads(str(golden["shapes"]))
    arrays = {name: recipe.generating_weight(name, shape) for name, shape in shapes.items()}
    save_file(arrays, path / "model.safetensors")
    (path / "config.json").write_text(str(golden["config"]))
    return read_model(path)


def decode(model: NumpyModel, **fields: Any) -> list[list[tuple[list[int], float]]]:
    """Return tokens and scores of the targets of each source."""
    options = DecodingOptions(max_new_tokens=recipe.MAX_NEW_TOKENS, **fields)
    sources = [np.array(source, np.int32) for source in recipe.draw_sources()]
    limits = [options.max_new_tokens] * len(sources)
    batches = SourceBatches(sources, limits, MAX_SEQ_LENGTH, [options] * len(sources))
    decoding = batches.decoding(recipe.BERT["vocab_size"], recipe.SEP)
    program = jax.jit(functools.partial(generate, model.config, decoding=decoding))
    results: list[Any] = [None] * len(sources)
    numbers = iter(batches.order)
    for batch in batches:
        outputs = jax.device_get(program(model.params, batch))
        arrays = (outputs[f"target_{name}"] for name in ("ids", "lengths", "scores"))
        for rows in zip(*arrays, strict=True):
            results[next(numbers)] = [
                (ids[:length].tolist(), float(score))
                for ids, length, score in zip(*rows, strict=True)
            ]
    return results


def until_sep(tokens: np.ndarray) -> list[int]:
    """Return tokens up to their first [SEP], with it."""
    ids: list[int] = tokens.tolist()
    return ids[: ids.index(recipe.SEP) + 1] if recipe.SEP in ids else ids


@pytest.mark.seconds
@pytest.mark.parametrize("search", recipe.SEARCHES)
def test_targets_and_scores_equal_golden(search: str, golden, model) -> None:
    tokens, scores = golden[f"{search}/tokens"], golden[f"{search}/scores"]
    found = decode(model, **recipe.SEARCHES[search])
    assert len(found) == recipe.NUM_SOURCES
    for number, row in enumerate(found):
        assert [ids for ids, _ in row] == [until_sep(ids) for ids in tokens[number]], number
    found_scores = np.array([[score for _, score in row] for row in found])
    # Steep attention amplifies rounding: of float32 PyTorch itself, scores differ by up to 1.8e-4
    # of their size from these of float64, with a median of 1.4e-5 in absolute terms.
    np.testing.assert_allclose(found_scores, scores, rtol=2e-4)
    assert np.median(np.abs(found_scores - scores)) < 2e-5


def test_golden_targets_have_many_lengths_and_differ(golden) -> None:
    targets = [until_sep(ids) for ids in golden["beams/tokens"].reshape(-1, recipe.MAX_NEW_TOKENS)]
    assert {len(ids) for ids in targets} == {*range(1, recipe.MAX_NEW_TOKENS + 1)}
    assert len({*map(tuple, targets)}) > len(targets) / 2
