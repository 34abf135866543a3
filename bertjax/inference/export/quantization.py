"""Weights of an ONNX graph as int8, and a check of what that changes."""

import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.inference.feature_extraction import Embedder, find_embedding_options
from bertjax.inference.onnx_directory import OnnxModel
from bertjax.inference.predictor import Predictor
from bertjax.tasks.pipeline import Pipeline, PredictInput, require_text
from data_pipelines.errors import InputError

ReadInputs = Callable[[Pipeline[Any] | type[Pipeline[Any]]], Iterable[PredictInput]]


class Comparison(NamedTuple):
    """Differences between the answers of int8 weights and those of float32.

    The weights answer all inputs together, and each alone. Their activations have one scale for a
    batch, so that an answer depends on the other inputs.

    Attributes:
      num_examples: number of inputs.
      agreement: share of inputs with the same answer, whatever its scores; of an encoder without
        heads the mean cosine of the embeddings. The smaller share of the two.
      largest_difference: of two scores in answers that are else equal, or of two components of
        embeddings of length 1.
      first_change: the first input whose answer changed; "" if there is none.
    """

    num_examples: int
    agreement: float
    largest_difference: float
    first_change: str = ""


def quantize(model: bytes) -> bytes:
    """Return an ONNX graph whose matrices and embedding tables are int8.

    Each column of a matrix has its scale, and activations are quantized while the model runs. The
    weights have 7 bits: processors without VNNI add two products in 16 bits, which would overflow.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    graph = onnx.load_from_string(model)
    add_pre_process_metadata(graph)  # there is nothing to fuse before, as a warning would ask for
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory, "model.onnx")
        quantize_dynamic(
            graph,
            output,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            # A product of two activations has no weights.
            extra_options={"MatMulConstBOnly": True},
        )
        return output.read_bytes()


class Int8Gate(NamedTuple):
    """Examples that decide whether int8 weights are good enough.

    Attributes:
      read: reads the examples for a pipeline.
      min_agreement: smallest `Comparison.agreement`, in [0, 1].
    """

    read: ReadInputs
    min_agreement: float

    def check(
        self, checkpoint: epath.PathLike, graph: epath.PathLike, has_head: bool
    ) -> Comparison:
        """Return how the answers of a graph differ from those of the model.

        Args:
          checkpoint: the model.
          graph: directory of its quantized graph.
          has_head: whether it answers; of other models the embeddings are compared.

        Raises:
          InputError: an example is invalid, there are none, or too many answers differ.
        """
        compare = _compare_answers if has_head else _compare_embeddings
        comparison = compare(checkpoint, graph, self.read)
        if comparison.agreement < self.min_agreement:
            change = comparison.first_change
            example = f", first that of {change}" if change else ""
            raise InputError(
                f"--min-agreement={self.min_agreement}: with int8 weights "
                f"{'the answers' if has_head else 'the embeddings'} of "
                f"{comparison.num_examples:,} examples agree to {comparison.agreement:.4f}"
                f"{example}. Export float32, or accept less."
            )
        return comparison


def _read(read: ReadInputs, pipeline: Pipeline[Any] | type[Pipeline[Any]]) -> list[PredictInput]:
    inputs = list(read(pipeline))
    if not inputs:
        raise InputError("--int8: the file has no inputs. Give some.")
    return inputs


def _compare_answers(
    checkpoint: epath.PathLike, graph: epath.PathLike, read: ReadInputs
) -> Comparison:
    predictor = Predictor(checkpoint)
    # The pipeline of the model: answers may differ by the weights alone.
    pipeline = predictor.pipeline
    inputs, run = _read(read, pipeline), OnnxModel(graph).run_function(pipeline.objective)
    expected = list(predictor.predict(inputs))
    is_regression = getattr(pipeline.objective, "problem_type", "") == "regression"

    def compare(batch_size: int) -> Comparison:
        starts = range(0, len(inputs), batch_size)
        found = itertools.chain.from_iterable(
            pipeline.predict(run, inputs[start : start + batch_size]) for start in starts
        )
        return _compare(inputs, expected, found, is_regression)

    return _worst(compare(pipeline.max_batch_inputs), compare(1))


def _worst(*comparisons: Comparison) -> Comparison:
    """Return the comparison of least agreement, with the largest difference of all."""
    largest = max(comparison.largest_difference for comparison in comparisons)
    return min(comparisons, key=lambda x: x.agreement)._replace(largest_difference=largest)


def _compare(
    inputs: Sequence[PredictInput],
    expected: Sequence[dict[str, Any]],
    found: Iterable[dict[str, Any]],
    is_regression: bool,
) -> Comparison:
    changed, largest, scores = [], 0.0, list[tuple[float, float]]()
    for item, answer, other in zip(inputs, expected, found, strict=True):
        differences = list(_differences(answer, other))
        if None in differences:
            changed.append(item.location)
        else:
            largest = max([largest, *(x for x in differences if x is not None)])
        if is_regression:
            scores.append((answer["score"], other["score"]))
    agreement = 1 - len(changed) / len(inputs)
    if is_regression:
        agreement = min(agreement, _explained_variance(*zip(*scores, strict=True)))
    return Comparison(len(inputs), agreement, largest, changed[0] if changed else "")


def _explained_variance(expected: Sequence[float], found: Sequence[float]) -> float:
    """Return the share of the variance of scores that other scores explain (R^2), at least 0."""
    deviations = np.subtract(expected, np.mean(expected))
    if not np.any(deviations):
        raise InputError("--int8: all inputs have one score. Give inputs with different scores.")
    errors = np.subtract(expected, found)
    return max(0.0, 1 - float(np.sum(errors**2) / np.sum(deviations**2)))


def _compare_embeddings(
    checkpoint: epath.PathLike, graph: epath.PathLike, read: ReadInputs
) -> Comparison:
    """Compare the embeddings of `bertjax embed`, scaled to length 1."""
    model, options = find_embedding_options(checkpoint)
    options = dataclasses.replace(options, normalize=True)
    inputs = _read(read, Pipeline)
    texts = [require_text(item) for item in inputs]
    expected, embedder = Embedder(model, options).encode(texts).embeddings, Embedder(graph, options)
    alone = [embedder.encode([text]).embeddings for text in texts]
    comparisons = []
    for found in (embedder.encode(texts).embeddings, np.concatenate(alone)):
        cosines = np.sum(expected * found, axis=-1)
        largest = np.abs(expected - found).max()
        comparisons.append(Comparison(len(inputs), float(cosines.mean()), float(largest)))
    return _worst(*comparisons)


def _differences(answer: Any, other: Any) -> Iterator[float | None]:
    """Yield the difference of each score of two answers, and None where they differ otherwise."""
    if isinstance(answer, float) and isinstance(other, float):
        yield abs(answer - other)
    elif isinstance(answer, dict) and isinstance(other, dict) and answer.keys() == other.keys():
        for name, value in answer.items():
            yield from _differences(value, other[name])
    elif isinstance(answer, list) and isinstance(other, list) and len(answer) == len(other):
        for value, other_value in zip(answer, other, strict=True):
            yield from _differences(value, other_value)
    elif answer != other:
        yield None
