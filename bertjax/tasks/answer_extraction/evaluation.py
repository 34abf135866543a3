"""Evaluation of answer extraction: how many gold answers are among the best spans."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.tasks.answer_extraction.decoding import ScoredSpan, best_spans
from bertjax.tasks.answer_extraction.objective import AnswerExtractionObjective
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import Outputs
from bertjax.tasks.task import NUM_EXAMPLES_SHOWN, Evaluation
from data_pipelines.finetuning.question_answering.answer_spans import (
    MAX_ANSWER_LENGTH,
    Passage,
    SpanWindows,
    make_span_windows,
)
from data_pipelines.finetuning.question_answering.windows import PassageCache
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("bertjax")

RECALLS = {f"recall_at_{count}": count for count in (1, 5, 10)}  # score -> spans of a passage


class AnswerExtractionEvalSet(PackedEvalSet):
    """Passages as packed windows, with the evaluation of their span logits.

    Args:
      name: name of the data set, for messages and files.
      passages: the passages.
      tokenizer: the model's tokenizer.
      objective: objective of the model.
      packing: the last arguments of `PackedEvalSet`.
    """

    score_names = (*RECALLS,)

    def __init__(
        self,
        name: str,
        passages: Sequence[Passage],
        tokenizer: Tokenizer,
        objective: AnswerExtractionObjective,
        *packing: Any,
    ) -> None:
        self.name, self.passages = name, passages
        self._cache = PassageCache(tokenizer)
        self._windows = build_windows(name, passages, tokenizer, objective, self._cache)
        (self._logits_name,) = objective.eval_outputs
        super().__init__(self._windows, objective.sequence_shape, *packing)

    def best_spans(
        self, outputs: Iterable[Outputs], counts: Sequence[int]
    ) -> Iterator[list[ScoredSpan]]:
        """Yield the best spans of each passage, at most as many as its count, best first."""
        logits = self.unpack_outputs(outputs, self._logits_name, "token")
        return best_spans(self.passages, self._windows, self._cache, logits, counts)

    def evaluation(self, means: Mapping[str, float], outputs: Sequence[Outputs]) -> Evaluation:
        """Return the share of distinct gold texts of a passage that are among its best spans.

        The characters must be equal. The file `predictions` has the best spans of each passage.
        """
        largest = max(RECALLS.values())
        spans = list(self.best_spans(outputs, [largest] * len(self.passages)))
        golds = [[*dict.fromkeys(answer.text for answer in p.answers)] for p in self.passages]
        total = sum(map(len, golds))
        scores = {}
        for name, count in RECALLS.items():
            pairs = zip(golds, spans, strict=True)
            found = sum(len({*gold} & {span.text for span in best[:count]}) for gold, best in pairs)
            scores[name] = found / max(total, 1)
        predictions = [
            passage_answer(passage.text, best)
            for passage, best in zip(self.passages, spans, strict=True)
        ]
        examples = [
            f"{'; '.join(span.text for span in best[:3])} ({'; '.join(gold) or '-'})"
            for gold, best in zip(golds[:NUM_EXAMPLES_SHOWN], spans, strict=False)
        ]
        return Evaluation(scores, {"predictions": predictions}, examples=examples)


def passage_answer(text: str, spans: Iterable[ScoredSpan]) -> dict[str, Any]:
    """Return a passage and its spans as JSON values."""
    answers = [
        {"text": span.text, "start": span.start, "end": span.end, "score": round(span.score, 6)}
        for span in spans
    ]
    return {"context": text, "answers": answers}


def build_windows(
    name: str,
    passages: Sequence[Passage],
    tokenizer: Tokenizer,
    objective: AnswerExtractionObjective,
    cache: PassageCache,
) -> SpanWindows:
    """Return the windows of passages; log the answers that are too long."""
    config = objective.config
    windows = make_span_windows(
        passages, tokenizer, config.max_seq_length, config.data["doc_stride"], cache
    )
    if windows.num_long:
        _log.warning(
            "%s: %d of %d answers have more than %d tokens. No span is as long: they are not "
            "trained, and an evaluation counts them as missed.",
            name,
            windows.num_long,
            sum(len(passage.answers) for passage in passages),
            MAX_ANSWER_LENGTH,
        )
    return windows
