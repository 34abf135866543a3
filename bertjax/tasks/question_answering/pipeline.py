"""Pipeline that answers questions about passages."""

import itertools
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bertjax.tasks.input_lines import InputLines, numbered_lines
from bertjax.tasks.pipeline import (
    Content,
    FormField,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    pair_arguments,
    text_block,
    truncation_mark,
)
from bertjax.tasks.question_answering.evaluation import THRESHOLD, QuestionAnsweringEvalSet
from bertjax.tasks.question_answering.objective import QuestionAnsweringObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.layouts import ID_FIELDS
from data_pipelines.finetuning.question_answering.squad import (
    Question,
    QuestionAnsweringDataset,
    check_passage,
    parse_squad,
)
from data_pipelines.parsing import parse_json

_log = logging.getLogger("bertjax")


class QuestionAnsweringPipeline(Pipeline[QuestionAnsweringEvalSet]):
    """Best span of a passage for a question."""

    method = "answer"
    description = "answers questions about passages"
    max_batch_inputs = 512
    objective: QuestionAnsweringObjective

    @staticmethod
    def parse_arguments(question: str | Iterable[str], context: str | Iterable[str]) -> Any:
        """Return the answer to a question: {"id", "answer", "start", "end", "logit"}.

        `start` and `end` are characters of the passage. `logit` is the sum of the start and end
        logits. A model of SQuAD 2.0 adds "null_odds": how much higher "no answer" scores. Above
        the calibrated threshold the answer is "". With `return_all_scores`, `candidates` has the
        best spans of different texts, best first.

        Args:
          question: a question, or several.
          context: a passage for all questions, or one for each.

        Raises:
          InputError: the model has another head, or there are not as many passages as questions.
        """
        if isinstance(question, str):
            return {"question": question, "context": context}
        questions = list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else context
        return pair_arguments(question=questions, context=contexts)

    @staticmethod
    def parse_lines(lines: Iterable[str], file_name: str = "") -> Iterable[PredictInput]:
        """Return the questions in JSON lines, or those of a whole file.

        Args:
          lines: JSON objects with "question" and "context", or the lines of a file in a layout of
            `data_pipelines.finetuning.question_answering.layouts`.
          file_name: unused.

        Raises:
          InputError: the file has another layout.
        """
        lines = iter(lines)
        start: list[str] = []
        for line in lines:
            start.append(line)
            if line.strip():
                break
        begin = start[-1].lstrip("\ufeff \t") if start else ""
        if not begin.startswith(("{", "[")) or "question" in _parse_object(start[-1]):
            return InputLines(
                numbered_lines(itertools.chain(start, lines)),
                lambda location, line: PredictInput(location, _parse_object(line)),
            )
        # Blank lines keep the line numbers of parse errors.
        text = "\n" * (len(start) - 1) + start[-1] + "".join(lines)
        data = parse_squad("the input", text)
        return [
            PredictInput(
                f"question {question.id!r}",
                {"id": question.id, "question": question.text, "context": question.passage},
            )
            for question in data.questions
        ]

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of the question, its passage and its id."""
        return {"question", "context", *ID_FIELDS}

    def preprocess(
        self, inputs: Sequence[PredictInput]
    ) -> tuple[Iterator[HostBatch], QuestionAnsweringEvalSet]:
        """Return packed windows of the passages."""
        data = QuestionAnsweringDataset([to_question(item) for item in inputs], 1)
        eval_set = QuestionAnsweringEvalSet("input", data, self.tokenizer, self.objective)
        return eval_set.batches(), eval_set

    def postprocess(
        self, context: QuestionAnsweringEvalSet, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the best span for each question."""
        threshold = None
        if self.objective.version == 2:
            threshold = self.calibration.get(THRESHOLD, 0.0)
            if THRESHOLD not in self.calibration:
                _log.warning(
                    "the checkpoint has no null_score_diff_threshold, because no evaluation on one "
                    "eval set preceded it. Questions have no answer if that scores highest (0)."
                )
        truncated = set(context.truncated)
        for number, prediction in enumerate(context.predictions(outputs)):
            best = prediction.answer(threshold)
            answer = {
                "id": prediction.question.id,
                "answer": best.text,
                "start": best.start,
                "end": best.end,
                "logit": round(best.score, 4),
            }
            if threshold is not None:
                answer["null_odds"] = round(prediction.null_odds, 4)
            if return_all_scores:
                answer["candidates"] = [
                    {
                        "answer": candidate.text,
                        "start": candidate.start,
                        "end": candidate.end,
                        "logit": round(candidate.score, 4),
                    }
                    for candidate in prediction.candidates
                ]
            yield answer | truncation_mark(number in truncated)

    def sample_input(
        self, text: str = "Oslo lies in Norway.", word: str = "Where is Oslo?"
    ) -> Content:
        """Return a question with its passage."""
        return {"question": word, "context": text}

    def form_fields(self) -> Sequence[FormField]:
        """Return boxes for the question and the passage."""
        question, context = super().form_fields()
        return [question._replace(num_lines=1), context._replace(label="Passage", num_lines=9)]

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the answer, and the passage with the answer marked."""
        assert not isinstance(content, str)
        if not answer["answer"]:
            return [text_block("The passage has no answer.", muted=True)]
        span = (answer["start"], answer["end"], "")
        return [text_block(answer["answer"]), text_block(content["context"], [span])]


def _parse_object(line: str) -> dict[str, Any]:
    """Return the object of a JSON line; an empty one if it is none."""
    try:
        content = parse_json(line)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def to_question(item: PredictInput) -> Question:
    """Return the question of an input; without an id it is the number of its location.

    Raises:
      InputError: the input is no question.
    """
    location, content = item.location, {} if isinstance(item.content, str) else item.content
    text, passage = content.get("question"), content.get("context")
    if not isinstance(text, str) or not isinstance(passage, str):
        raise InputError(
            f'{location}: this is no {{"question": "...", "context": "..."}}. '
            "Write such a JSON object."
        )
    check_passage(location, passage)
    number = re.split("[ :]", location)[-1]
    id_ = next((content[name] for name in ID_FIELDS if name in content), number)
    return Question(str(id_), text, passage)
