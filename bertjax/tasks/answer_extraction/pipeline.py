"""Pipeline that extracts answers from passages."""

import itertools
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.config.extraction_options import ExtractionOptions
from bertjax.tasks.answer_extraction.decoding import ScoredSpan
from bertjax.tasks.answer_extraction.evaluation import AnswerExtractionEvalSet, passage_answer
from bertjax.tasks.answer_extraction.objective import AnswerExtractionObjective
from bertjax.tasks.pipeline import (
    Content,
    FormField,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    add_options,
    input_options,
    option_fields,
    option_names,
    text_block,
)
from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.answer_spans import Passage
from data_pipelines.finetuning.question_answering.layouts import iterate_passages, parse_content
from data_pipelines.finetuning.question_answering.squad import check_passage
from data_pipelines.parsing import parse_json

_CONTEXT = "context"  # key of the passage in an input object
_LAYOUT_KEYS = {"data", "version", "paragraphs", "qas", "header"}  # of SQuAD's layout and MRQA's


class Context(NamedTuple):
    """The inputs of `preprocess`.

    Attributes:
      eval_set: their passages.
      options: options of each passage.
    """

    eval_set: AnswerExtractionEvalSet
    options: list[ExtractionOptions]


class AnswerExtractionPipeline(Pipeline[Context]):
    """The spans of a passage that are most worth asking about, or a sample of them."""

    method = "extract_answers"
    description = "finds spans of a passage that are worth asking about"
    max_batch_inputs = 512
    objective: AnswerExtractionObjective

    @staticmethod
    def parse_arguments(passages: str | Iterable[str], **options: Any) -> Any:
        """Return the answers that a passage suggests: {"context", "answers"}.

        An answer is {"text", "start", "end", "score"}: characters of the passage, and the
        log-probability among all spans of its window.

        Args:
          passages: a passage, or several.
          options: fields of `extraction`, such as num_answers=5; see docs/configuration.md.

        Raises:
          InputError: the model has another head, or a passage or an option is invalid.
        """
        return add_options(passages, options, ExtractionOptions, _CONTEXT)

    @staticmethod
    def parse_lines(lines: Iterable[str], file_name: str = "") -> Iterable[PredictInput]:
        """Return the passages in lines of text or JSON, or those of a whole file.

        Args:
          lines: texts, JSON objects with "context", or the lines of a file in a layout of
            `data_pipelines.finetuning.question_answering.layouts`, whose passages are distinct.
          file_name: name of the file, whose suffix may give the format.

        Raises:
          InputError: the file has another layout.
        """
        lines = iter(lines)
        start: list[str] = []
        for line in lines:
            start.append(line.removeprefix("\ufeff"))
            if start[-1].strip():
                break
        all_lines = itertools.chain(start, lines)
        if not start or not _begins_layout(start[-1]):
            return Pipeline.parse_lines(all_lines, file_name)
        content = parse_content("the input", "\n".join(line.rstrip("\r\n") for line in all_lines))
        items = content if isinstance(content, list) else [content]
        if all(isinstance(item, dict) and not item.keys() & _LAYOUT_KEYS for item in items):
            return [PredictInput(f"input {i}", item) for i, item in enumerate(items, 1)]
        locations: dict[str, str] = {}
        for location, passage in iterate_passages(content):
            locations.setdefault(passage, location)
        if not locations:
            raise InputError("the input: no passages. Give data in SQuAD's layout.")
        return [PredictInput(location, passage) for passage, location in locations.items()]

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the key of the passage, and the options."""
        return {_CONTEXT, *option_names(ExtractionOptions)}

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed windows of the passages."""
        passages = [Passage(_passage_of(item)) for item in inputs]
        options = [input_options(item, self.config.extraction) for item in inputs]
        eval_set = AnswerExtractionEvalSet("input", passages, self.tokenizer, self.objective)
        return eval_set.batches(), Context(eval_set, options)

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the answers of each passage."""
        eval_set, options = context
        counts = [item.n_best_size if item.do_sample else item.num_answers for item in options]
        all_spans = eval_set.best_spans(outputs, counts)
        for passage, spans, item in zip(eval_set.passages, all_spans, options, strict=True):
            chosen = sample_spans(passage.text, spans, item) if item.do_sample else spans
            yield passage_answer(passage.text, chosen)

    def sample_input(self, text: str = "Oslo lies in Norway.", word: str = "") -> Content:
        """Return a passage."""
        return text

    def form_fields(self) -> Sequence[FormField]:
        """Return boxes for the passage and the options."""
        sample, options = self.sample_input(), self.config.extraction
        assert isinstance(sample, str)
        return [
            FormField(_CONTEXT, "Passage", sample, 9),
            *option_fields(options, ("num_answers", "do_sample", "seed")),
        ]

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answers, and the passage with those marked that do not overlap better ones."""
        marked: list[tuple[int, int, str]] = []
        for span in answer["answers"]:
            if all(span["end"] <= start or end <= span["start"] for start, end, _ in marked):
                marked.append((span["start"], span["end"], ""))
        texts = [text_block(span["text"]) for span in answer["answers"]]
        return [*texts, text_block(answer[_CONTEXT], sorted(marked))]


def _begins_layout(line: str) -> bool:
    """Return whether a file that begins with a line is one JSON value or has SQuAD's layout."""
    begin = line.lstrip()
    if not re.match(r"\{|\[\s*(\{|$)", begin):
        return False
    try:
        content = parse_json(begin)
    except ValueError:  # the value ends in a later line
        return True
    return not isinstance(content, dict) or bool(content.keys() & _LAYOUT_KEYS)


def sample_spans(
    text: str, spans: Sequence[ScoredSpan], options: ExtractionOptions
) -> list[ScoredSpan]:
    """Return `num_answers` spans drawn by their probabilities, without replacement, in that order.

    The spans with the largest sums of log-probability and Gumbel noise are such a sample (Vieira
    2014). The noise depends on the seed and the passage alone.

    Args:
      text: the passage.
      spans: its best spans.
      options: number of answers and seed.
    """
    digest = zlib.crc32(text.encode("utf-8", "surrogatepass"), options.seed)
    noise = np.random.default_rng(digest).gumbel(size=len(spans))
    keys = np.array([span.score for span in spans]) + noise
    return [spans[index] for index in np.argsort(-keys)[: options.num_answers]]


def _passage_of(item: PredictInput) -> str:
    """Return the passage of an input.

    Raises:
      InputError: the input has none, or it is empty or too long.
    """
    content = item.content
    text = content if isinstance(content, str) else content.get(_CONTEXT)
    if not isinstance(text, str):
        raise InputError(
            f'{item.location}: this is no text and no {{"context": "..."}}. Write one of them.'
        )
    check_passage(item.location, text)
    return text
