"""What a model tagged, as one HTML page: scores of each type of entity, and its errors."""

import collections
from collections.abc import Iterator, Mapping
from html import escape
from typing import NamedTuple

from etils import epath

from bertjax.html.page import page, section, table
from bertjax.html.plots import STYLE, confusion_matrix, reliability_diagram
from bertjax.html.tables import eval_set_table
from bertjax.tasks.saved_evaluation import ERROR_TABLE_STYLE, PredictionEntry, read_evaluation
from bertjax.tasks.token_classification.metrics import count_entities, find_entities
from data_pipelines.finetuning.tag_schemes import Entity, entities, label_scheme

MAX_ERRORS_SHOWN = 30  # of the surest errors
CONTEXT_WORDS = 12  # words of a sentence that are shown on either side of an entity
NONE = "none"
TITLES = {"f1": "F1", "precision": "Precision", "recall": "Recall", "accuracy": "Accuracy of words"}
# In the order of the page.
ERROR_KINDS = {
    "type": "The right words, another type",
    "boundary": "Other boundaries",
    "missed": "Missed",
    "invented": "No entity",
}


class EntityError(NamedTuple):
    """An entity that is not right.

    Attributes:
      said, gold: None where there is none.
      sure: the probability of the least sure word of what was said.
    """

    kind: str
    predicted: Entity | None
    gold: Entity | None
    probability: float
    entry: PredictionEntry


def render(name: str, directory: epath.Path, sets: Mapping[str, int]) -> str:
    """The page of an evaluation.

    Args:
      directory: where `bertjax evaluate` wrote it.
      sets: sentences of each data set, by its name.
    Raises:
      InputError: the files are not those of an evaluation of these sentences.
    """
    evaluation = read_evaluation(directory, sets)
    entries = evaluation.predictions
    both = [e["gold"] for e in entries], [e["tags"] for e in entries]
    strict = ""
    if evaluation.run_info["config"]["data"]["strict"]:
        strict = label_scheme({tag for side in both for tags in side for tag in tags})
    counts = count_entities(*both, strict)
    types = [
        (kind, f"{count.gold:,}", *(f"{rate:.3f}" for rate in count.scores().values()))
        for kind, count in sorted(counts.items(), key=lambda item: item[1].scores()["f1"])
    ]
    errors = [error for entry in entries for error in find_errors(entry, strict)]
    of_kinds = collections.Counter(error.kind for error in errors)
    predicted = [
        (_entity_probability(entry, each), each in find_entities(entry["gold"], strict))
        for entry in entries
        for each in find_entities(entry["tags"], strict)
    ]
    curve = reliability_diagram(*map(list, zip(*predicted, strict=True))) if predicted else ""
    of_sets = eval_set_table(evaluation.scores, TITLES)
    parts = [
        f"<style>{STYLE}{ERROR_TABLE_STYLE}</style>\n",
        evaluation.render_header(name, TITLES, "Sentences"),
        section("Data sets", table(*of_sets) if of_sets.rows else ""),
        section("Types", table(("Type", "Entities", "Precision", "Recall", "F1"), types)),
        section("How sure, how right", f'<div class="pair">{curve}</div>' if curve else ""),
        section("Taken for one another", _confusions(entries)),
        section("What went wrong", table(("Kind", "Entities"), _kind_table(of_kinds))),
        section("Surest errors", _render_errors(errors)),
    ]
    return page(name, parts)


def find_errors(entry: PredictionEntry, strict: str = "") -> Iterator[EntityError]:
    """What is wrong in a sentence: each entity that was said and is none of the gold ones, and each
    gold one that nothing that was said has a word of; see `find_entities`.
    """
    gold, predicted = find_entities(entry["gold"], strict), find_entities(entry["tags"], strict)
    for each in predicted:
        if each in gold:
            continue
        near = next((g for g in gold if g.first <= each.last and each.first <= g.last), None)
        kind = "invented"
        if near:
            kind = "type" if near[1:] == each[1:] else "boundary"
        yield EntityError(kind, each, near, _entity_probability(entry, each), entry)
    for each in gold:
        if not any(s.first <= each.last and each.first <= s.last for s in predicted):
            yield EntityError("missed", None, each, _entity_probability(entry, each), entry)


def _entity_probability(entry: PredictionEntry, entity: Entity) -> float:
    return float(min(entry["probabilities"][entity.first : entity.last + 1]))


def _confusions(entries: list[PredictionEntry]) -> str:
    """The type of each word that is of an entity, in either."""
    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    for entry in entries:
        types = []
        for key in ("gold", "tags"):
            own = [NONE] * len(entry["words"])
            for each in entities(entry[key]):
                own[each.first : each.last + 1] = [each.type] * (each.last - each.first + 1)
            types.append(own)
        pairs.update(pair for pair in zip(*types, strict=True) if pair != (NONE, NONE))
    names = [*sorted({name for pair in pairs for name in pair} - {NONE}), NONE]
    return confusion_matrix(
        "WordExamples, by type", names, [[pairs[a, b] for b in names] for a in names]
    )


def _kind_table(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(title, f"{counts.get(kind, 0):,}") for kind, title in ERROR_KINDS.items()]


def _render_errors(errors: list[EntityError]) -> str:
    if not errors:
        return ""
    rows = [
        (
            f"{error.probability:.0%}",
            error.predicted.type if error.predicted else "-",
            error.gold.type if error.gold else "-",
            _text(error),
        )
        for error in sorted(errors, key=lambda error: -error.probability)[:MAX_ERRORS_SHOWN]
    ]
    note = (
        f'<p class="aside">{len(errors):,} errors in all; the surest first. What was said is in '
        f"{escape('>> <<')}, what is gold in [ ].</p>\n"
    )
    return note + table(("Sure", "Said", "Gold", "Text"), rows, "errors")


def _text(error: EntityError) -> str:
    """The words around an error, marked."""
    words = list(error.entry["words"])
    for entity, (before, after) in ((error.gold, ("[", "]")), (error.predicted, (">>", "<<"))):
        if entity:
            words[entity.first] = before + words[entity.first]
            words[entity.last] += after
    at = error.predicted or error.gold
    assert at is not None
    first = max(0, at.first - CONTEXT_WORDS)
    shown = " ".join(words[first : at.last + 1 + CONTEXT_WORDS])
    return f"{'... ' if first else ''}{shown}{' ...' if at.last + 1 + CONTEXT_WORDS < len(words) else ''}"
