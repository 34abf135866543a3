"""A model that is opened once and asked from Python."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from etils import epath
from jax import Array

from bertjax.formats.loading import find_tokenizer
from bertjax.inference.feature_extraction import Features, recipe_of
from bertjax.inference.predictor import Predictor, make_inputs
from bertjax.mesh.sharding import make_mesh
from bertjax.model.encoder import Encoder
from bertjax.model.heads import HEADS
from bertjax.tasks import registry
from bertjax.tasks.embeddings import EmbeddingOptions
from bertjax.tasks.task import next_power_of_two
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset

METHODS = {  # of the models of each task
    "pretraining": "fill_mask",
    "question_answering": "answer",
    "sequence_classification": "classify",
    "multiple_choice": "choose",
    "token_classification": "tag",
}
_MIN_SEQ_LENGTH = 16  # pieces of a row, at least


class Model:
    """A model on all devices of this process.

    Each method takes one input, and gives one answer, or many, and gives a list of them in their
    order. An answer is a dictionary of plain values, the same as a line of `bertjax predict`. Its
    first call compiles; later ones of like size do not.

    Args:
      directory: a workdir or checkpoint of ours, or a directory of Hugging Face, of TF1 or of
        sentence-transformers.

    Attributes:
      path: of what was opened.
      config: the shape of the encoder.
      params: all parameters, float32 on the devices: "encoder" and the heads that there are.
      tokenizer: with `encode`, from a text to the numbers of its pieces, and `decode`.
      labels: names of the outputs of a classifier or tagger; empty without one.

    Raises:
      InputError: there is no such model, or it has no vocabulary.
    """

    def __init__(self, directory: epath.PathLike) -> None:
        self._directory = directory
        self._pretrained = start = PretrainedModel(recipe_of(directory)[0])
        self.path, self.config, self.labels = start.path, start.model, start.labels
        self.tokenizer = start.tokenizer or find_tokenizer(start.path)
        self.params = start.load_all(make_mesh(-1, 1, 1))
        self._embedders: dict[EmbeddingOptions, Features] = {}

    def fill_mask(self, texts: str | Iterable[str]) -> Any:
        """The likeliest pieces for each "[MASK]" of a text: {"text", "filled", "masks"}, in `masks`
        for each mask five of {"piece", "probability"}, the likeliest first.

        Raises:
          InputError: the model has another head, or a text has no mask or is too long.
        """
        return self._predict_for_task("pretraining", texts)

    def answer(self, question: str | Iterable[str], context: str | Iterable[str]) -> Any:
        """The answer to a question as it stands in a passage: {"id", "text", "start", "end",
        "score"}, `start` and `end` being characters of the passage. A model that knows questions
        without an answer gives "null_odds" too, and "" where these are above its threshold.

        Args:
          context: the passage, or one for each question.
        Raises:
          InputError: the model has another head, or there are not as many passages as questions.
        """
        return self._predict_for_task(
            "question_answering", _pair_inputs(question, context, "question", "context")
        )

    def classify(
        self,
        texts: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
        return_all_scores: bool = False,
    ) -> Any:
        """What is said of a text: the text and "label" with its "probability", "labels", or
        "number".

        Args:
          texts: each a text, or the columns that were trained by their names; of a published model
            of pairs {"text", "text_pair"}.
          everything: gives also the "probabilities" of all labels.
        Raises:
          InputError: the model has another head, or a text is empty.
        """
        return self._predict_for_task("sequence_classification", texts, return_all_scores)

    def tag(
        self,
        texts: str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]],
        return_all_scores: bool = False,
    ) -> Any:
        """The entities of a text: {"text", "entities"}, each of these {"text", "type", "start",
        "end", "probability"}. Of {"words": [...]} the tag of each word: {"words", "tags"}.

        Args:
          everything: gives also the "probabilities" of all tags of each word.
        Raises:
          InputError: the model has another head, or a text is empty.
        """
        return self._predict_for_task("token_classification", texts, return_all_scores)

    def choose(
        self,
        context: str | Iterable[str],
        choices: Iterable[str] | Iterable[Iterable[str]],
        return_all_scores: bool = False,
    ) -> Any:
        """The likeliest of some answers: {"context", "label", "answer", "probability"}, `label`
        being its number.

        Args:
          choices: of the context, or of each of the contexts.
          everything: gives also the "probabilities" of all answers.
        Raises:
          InputError: the model has another head, there are not as many lists of choices as
            contexts, or fewer than two choices.
        """
        if isinstance(context, str):
            asked: Any = {"context": context, "choices": _as_list(choices)}
        else:
            asked = _pair_inputs(context, map(_as_list, choices), "context", "choices")
        return self._predict_for_task("multiple_choice", asked, return_all_scores)

    def predict(self, inputs: Any, return_all_scores: bool = False) -> Any:
        """What the model answers, whatever its task is, also one of your own.

        Args:
          inputs: each a text or a dictionary, what a line of `bertjax predict --input` is.
          everything: gives also what the answer was chosen from.
        Raises:
          InputError: an input is not what its task takes.
        """
        return self._predict_with(self._predictor, inputs, return_all_scores)

    def encode_texts(
        self,
        texts: str | Iterable[str],
        layers: Sequence[int] = (-1,),
        pool: str | None = None,
        normalize: bool = False,
    ) -> np.ndarray:
        """The vector of a text, float32 [H], or of several, [N, H].

        Texts that are too long for the model are cut, and a warning says how many.

        Args:
          layers: whose mean is taken: -1 is the last, 0 the embeddings.
          pool: "mean", "cls" or "max" of a text's pieces; by default what a model of
            sentence-transformers says, else the mean.
          normalize: makes it one of length 1.
        Raises:
          InputError: there is no such layer, or no such way to pool.
        """
        _, wanted = recipe_of(self._directory, layers, "text", pool, normalize)
        if wanted not in self._embedders:
            self._embedders[wanted] = Features(self._pretrained, wanted)
        features, given = self._embedders[wanted], _as_texts(texts)
        if not given:
            return np.zeros((0, self.config.hidden_size), np.float32)
        found = features.encode(given)
        features.warn_truncated(found.num_truncated, len(given))
        return found.embeddings[0] if isinstance(texts, str) else found.embeddings

    def batch(
        self, texts: Iterable[str], pairs: Iterable[str] | None = None
    ) -> dict[str, np.ndarray]:
        """What `apply` takes: int32 `input_ids`, `token_type_ids`, `example_ids` and `positions` [B, T].

        T is a power of two, so that few shapes are compiled; `example_ids` is 1 where there are
        pieces and 0 behind them.

        Args:
          pairs: second texts.
        Raises:
          InputError: there are no texts, not as many pairs, or one that has more pieces than the
            model takes.
        """
        first, second = _as_texts(texts), None if pairs is None else _as_texts(pairs)
        if not first or (second is not None and len(first) != len(second)):
            raise InputError(
                f"{len(first)} texts and {len(second or ())} pairs make no batch: give some texts, "
                "and a pair for each or none."
            )
        most = self.config.max_position_embeddings
        examples, _, num_truncated = encode_texts(
            SequenceClassificationDataset("", [], first, second), self.tokenizer, most, "head"
        )
        if num_truncated:
            raise InputError(
                f"{num_truncated} of {len(first)} texts have more than the {most} pieces that the model "
                "takes: shorten them."
            )
        size = min(max(_MIN_SEQ_LENGTH, next_power_of_two(int(examples.lengths.max()))), most)
        column = np.arange(size)
        there = column < examples.lengths[:, None]
        ids = np.zeros(there.shape, np.int32)
        ids[there] = examples.ids
        second_part = there & (column >= examples.prefix_lengths[:, None])
        return {
            "input_ids": ids,
            "token_type_ids": second_part.astype(np.int32),
            "example_ids": there.astype(np.int32),
            "position_ids": np.where(there, column, 0).astype(np.int32),
        }

    def apply(
        self,
        params: Any,
        batch: Mapping[str, Any],
        key: Array | None = None,
        layers: Sequence[int] | None = None,
    ) -> Array:
        """The encoder as a pure function, to be compiled and differentiated.

        Args:
          params: `Model.params` or others of their shapes, of which "encoder" is read.
          batch: see `batch`; several texts may share a row, each with a number of its own in
            `example_ids` and positions that count from 0.
          key: turns dropout on.
          layers: see `encode`; the last one by default.
        Returns:
          The vectors of the pieces, [B, T, H], or of each layer [len(layers), B, T, H], in the
          dtype of the computation, `config.dtype`.
        """
        inputs = (
            batch[name] for name in ("input_ids", "token_type_ids", "example_ids", "position_ids")
        )
        found: Array = Encoder(self.config).apply(  # type: ignore[assignment]
            {"params": params["encoder"]},
            *inputs,
            deterministic=key is None,
            layers=layers,
            rngs=None if key is None else {"dropout": key},
        )
        return found

    @functools.cached_property
    def _predictor(self) -> Predictor:
        if not any(part in HEADS for part in self._pretrained.parts):
            raise InputError(f"{self.path} has no head, and gives vectors alone: call encode.")
        return Predictor(self._pretrained)

    def _predict_for_task(self, task: str, inputs: Any, return_all_scores: bool = False) -> Any:
        predictor = self._predictor
        if predictor.config.task != task:
            wanted = registry.find(task).description
            own = METHODS.get(predictor.config.task, "predict")
            raise InputError(
                f"{self.path} {predictor.description}: call {own}, or encode for vectors, or load a "
                f"model that {wanted}."
            )
        return self._predict_with(predictor, inputs, return_all_scores)

    def _predict_with(self, predictor: Predictor, inputs: Any, return_all_scores: bool) -> Any:
        asked, alone = make_inputs(inputs)
        found = list(predictor.answers(asked, return_all_scores=return_all_scores))
        return found[0] if alone else found


def _as_texts(texts: str | Iterable[str]) -> list[str]:
    given = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"input {number} is {text!r}: give a text.")
    return given


def _as_list(choices: Any) -> list[Any]:
    if isinstance(choices, str):
        raise InputError(f"{choices!r} is one text where a list of choices is to be: write a list.")
    return list(choices)


def _pair_inputs(first: Any, second: Any, *names: str) -> Any:
    """A dictionary of two strings, or one for each two; a second string goes with each first."""
    if isinstance(first, str):
        return dict(zip(names, (first, second), strict=True))
    firsts = list(first)
    seconds = [second] * len(firsts) if isinstance(second, str) else list(second)
    if len(firsts) != len(seconds):
        raise InputError(
            f"{len(firsts)} inputs of {names[0]} and {len(seconds)} of {names[1]} do not go "
            "together: give as many of each."
        )
    return [dict(zip(names, pair, strict=True)) for pair in zip(firsts, seconds, strict=True)]
