"""What a model answered to questions on passages, as one HTML page: scores, and its errors."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from etils import epath

from bertjax.html.page import definition_list, page, section, table, tiles
from bertjax.html.tables import eval_set_table
from bertjax.tasks.question_answering.metrics import f1, score_per_question
from bertjax.tasks.task import EVALUATION_FILE
from data_pipelines.errors import InputError
from data_pipelines.finetuning.squad import Question, QuestionAnsweringDataset
from data_pipelines.finetuning.windows import nearest_answer

MAX_ERRORS_SHOWN = 12  # errors of a kind
CONTEXT_CHARS = 400  # characters of a passage that are shown on either side of what is marked

RIGHT = "right"
# In the order of the page.
ERROR_KINDS = {
    "missed": "No answer given where there is one",
    "invented": "An answer given where there is none",
    "boundary": "The right place, other boundaries",
    "place": "The wrong place",
}
QUESTION_WORDS = ("what", "who", "when", "where", "which", "how", "why")

Span = tuple[int, int]  # characters [first, last) of a passage


@dataclasses.dataclass(frozen=True)
class ScoredAnswer:
    """A question, what was answered, and what that is worth.

    Attributes:
      exact, f1: 0 to 1.
      said: where the answer stands in the passage; None for no answer.
      gold: where the gold answer stands that is most like it; None where there is none, or where
        the passage does not have it.
      probability: of the answer among the best ones.
    """

    question: Question
    text: str
    exact: float
    f1: float
    said: Span | None
    gold_span: Span | None
    probability: float

    @property
    def kind(self) -> str:
        """`RIGHT`, or one of `ERROR_KINDS`."""
        if self.exact:
            return RIGHT
        if self.said is None or not self.question.answers:
            return "missed" if self.question.answers else "invented"
        overlap = (
            self.gold_span and self.said[0] < self.gold_span[1] and self.gold_span[0] < self.said[1]
        )
        return "boundary" if overlap else "place"


def score_answers(
    data: QuestionAnsweringDataset,
    predictions: Mapping[str, str],
    nbest: Mapping[str, Sequence[Mapping]],
) -> list[ScoredAnswer]:
    """Every question of a data set with its prediction, which counts as "" where it is missing.

    Args:
      nbest: as `bertjax evaluate` writes it, from which place and probability are taken.
    """
    scores = score_per_question(data, predictions)
    found = []
    for question in data.questions:
        text = predictions.get(question.id, "")
        entries = [entry for entry in nbest.get(question.id, ()) if entry["text"] == text]
        said = gold_span = None
        if text:
            start = entries[0]["start"] if entries else question.passage.find(text)
            said = start, start + len(text)
        if question.answers:
            best = max(question.answers, key=lambda answer: f1(text, answer.text, data.version))
            placed = nearest_answer(question.passage, best)
            gold_span = (placed.start, placed.start + len(placed.text)) if placed else None
        probability = float(entries[0]["probability"]) if entries else 0.0
        found.append(
            ScoredAnswer(question, text, *scores[question.id], said, gold_span, probability)
        )
    return found


def render(
    name: str, directory: epath.Path, sets: Sequence[tuple[str, QuestionAnsweringDataset]]
) -> str:
    """The page of an evaluation.

    Args:
      directory: where `bertjax evaluate` wrote it.
      sets: name and questions of each data set.
    Raises:
      InputError: the files are not those of an evaluation.
    """
    judged: list[ScoredAnswer] = []
    try:
        run_info = json.loads((directory / EVALUATION_FILE).read_text())
        scores = json.loads((directory / "scores.json").read_text())
        for set_name, data in sets:
            prefix = f"{set_name}." if len(sets) > 1 else ""
            predictions, nbest = (
                json.loads((directory / f"{prefix}{file}.json").read_text())
                for file in ("predictions", "nbest_predictions")
            )
            judged += score_answers(data, predictions, nbest)
        checkpoints = ", ".join(run_info["checkpoints"])
    except (FileNotFoundError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"{directory} is no whole evaluation ({error}): repeat it.") from error
    of_data = " ".join(run_info["config"]["data"][field] for field in ("dir", "eval_file"))
    sets_table = eval_set_table(scores, {"exact": "Exact match", "f1": "F1"})
    body = [
        _header(name, scores, len(judged), [("Model", checkpoints), ("Data", of_data)]),
        section("Data sets", table(*sets_table) if sets_table.rows else ""),
        section("Answers by kind", _kind_table(judged)),
        section("QuestionAnsweringDataset by their word", _words(judged)),
    ]
    body += [section(title, _render_errors(judged, kind)) for kind, title in ERROR_KINDS.items()]
    return page(name, [f"<style>{STYLE}</style>\n", *body])


def _header(
    name: str, scores: Mapping[str, float], total: int, run_info: Iterable[tuple[str, str]]
) -> str:
    titles = {"exact": "Exact match", "f1": "F1"} | {
        f"{prefix}_{metric}": f"{title}, {label}"
        for prefix, label in (("HasAns", "with an answer"), ("NoAns", "without"))
        for metric, title in (("exact", "exact match"), ("f1", "F1"))
    }
    shown = [(titles[key], f"{scores[key]:.1f}") for key in titles if key in scores]
    null_score_diff_threshold = scores.get("null_score_diff_threshold")
    odds = (
        ""
        if null_score_diff_threshold is None
        else f"where no answer scores {null_score_diff_threshold:.2f} above the best"
    )
    return (
        f"<header><h1>{escape(name)}</h1>\n{tiles([*shown, ('Questions', f'{total:,}')])}"
        f"{definition_list([*run_info, ('No answer', odds)])}</header>\n"
    )


def _kind_table(judged: Sequence[ScoredAnswer]) -> str:
    return _grouped(judged, "Kind", {RIGHT: "Right"} | ERROR_KINDS, lambda each: each.kind)


def _words(judged: Sequence[ScoredAnswer]) -> str:
    def word(each: ScoredAnswer) -> str:
        said = each.question.text.lower().split()
        return next((word for word in said if word in QUESTION_WORDS), "other")

    titles = {word: word.capitalize() for word in (*QUESTION_WORDS, "other")}
    return _grouped(judged, "Word", titles, word)


def _grouped(
    judged: Sequence[ScoredAnswer],
    title: str,
    titles: Mapping[str, str],
    key: Callable[[ScoredAnswer], str],
) -> str:
    """A row for each group of questions that is not empty."""
    counts = Counter(map(key, judged))
    rows = []
    for group, label in titles.items():
        own = [each for each in judged if key(each) == group]
        if own:
            exact, mean = (
                100 * sum(values) / len(own)
                for values in ([each.exact for each in own], [each.f1 for each in own])
            )
            share = f"{counts[group] / len(judged):.1%}"
            rows.append((label, f"{counts[group]:,}", share, f"{exact:.1f}", f"{mean:.1f}"))
    return table((title, "QuestionAnsweringDataset", "Share", "Exact match", "F1"), rows)


def _render_errors(judged: Sequence[ScoredAnswer], kind: str) -> str:
    """The errors of a kind that the model was surest of, for how much they cost."""
    own = [each for each in judged if each.kind == kind]
    own.sort(key=lambda each: (each.f1 - 1) * each.probability)
    note = (
        f'<p class="aside">{len(own):,} in all; the surest and costliest first. Shaded: the gold '
        "answer; underlined: what was answered.</p>\n"
    )
    return note + "".join(map(_error, own[:MAX_ERRORS_SHOWN])) if own else ""


def _error(each: ScoredAnswer) -> str:
    golds = " / ".join(dict.fromkeys(answer.text for answer in each.question.answers))
    described = definition_list(
        [
            ("Answer", f"{each.text or 'none'} ({each.probability:.0%})"),
            ("Gold", golds or "none"),
            ("F1", f"{each.f1:.2f}"),
        ]
    )
    passage = mark_spans(each.question.passage, each.said, each.gold_span)
    return (
        f'<article id="{escape(each.question.id)}"><h3>{escape(each.question.text)}</h3>\n'
        f"{described}<p>{passage}</p></article>\n"
    )


def mark_spans(passage: str, said: Span | None, gold_span: Span | None) -> str:
    """The passage as HTML, what was said and the gold answer marked, and far parts left out."""
    spans = {"said": said, "gold_span": gold_span}
    ends = sorted({0, len(passage), *(end for span in spans.values() if span for end in span)})
    parts = []
    for first, last in itertools.pairwise(ends):
        kinds = [kind for kind, span in spans.items() if span and span[0] <= first < span[1]]
        text = passage[first:last]
        if kinds:
            parts.append(f'<mark class="{" ".join(kinds)}">{escape(text)}</mark>')
            continue
        before, after = CONTEXT_CHARS * (first > 0), CONTEXT_CHARS * (last < len(passage))
        if not (before or after):
            before = 2 * CONTEXT_CHARS
        if len(text) > before + after:
            text = _whole_words(text[:before], text[len(text) - after :])
        parts.append(escape(text))
    return "".join(parts)


def _whole_words(before: str, after: str) -> str:
    """What is kept on both sides of a gap, without the words that it cuts."""
    kept = [before.rpartition(" ")[0] or before, "…", after.partition(" ")[2] or after]
    return " ".join(filter(None, kept))


STYLE = """
article { border-top: 1px solid var(--line); padding: 18px 0 6px; max-width: 820px; }
article h3 { font-size: 16px; font-weight: 600; margin: 0; }
article dl { border: 0; margin: 8px 0 0; padding: 0; font-size: 14px; gap: 2px 24px; }
article p { margin: 12px 0; overflow-wrap: anywhere; }
mark { color: inherit; background: none; border-radius: 2px; padding: 1px 0; }
mark.gold { background: color-mix(in srgb, var(--good) 28%, transparent); }
mark.said { box-shadow: inset 0 -2px var(--bad); }
"""
