"""What a model tagged, as one HTML page: scores of each type of entity, and its errors."""

import collections
from collections.abc import Iterator, Mapping
from html import escape
from typing import NamedTuple

from etils import epath

from bertjax.html.page import page, section, table
from bertjax.html.plots import STYLE, calibration, matrix
from bertjax.html.tables import by_set
from bertjax.tasks.evaluations import ERRORS, Entry, read_evaluation
from bertjax.tasks.token_classification.metrics import count_entities, find
from data_pipelines.finetuning.tag_schemes import Entity, entities, scheme_of

SHOWN = 30  # of the surest errors
AROUND = 12  # words of a sentence that are shown on either side of an entity
NONE = "none"
TITLES = {"f1": "F1", "precision": "Precision", "recall": "Recall", "accuracy": "Accuracy of words"}
# In the order of the page.
KINDS = {
    "type": "The right words, another type",
    "boundary": "Other boundaries",
    "missed": "Missed",
    "invented": "No entity",
}


class Error(NamedTuple):
    """An entity that is not right.

    Attributes:
      said, gold: None where there is none.
      sure: the probability of the least sure word of what was said.
    """

    kind: str
    said: Entity | None
    gold: Entity | None
    sure: float
    entry: Entry


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
    if evaluation.about["config"]["data"]["strict"]:
        strict = scheme_of({tag for side in both for tags in side for tag in tags})
    counts = count_entities(*both, strict)
    types = [
        (kind, f"{count.gold:,}", *(f"{rate:.3f}" for rate in count.scores().values()))
        for kind, count in sorted(counts.items(), key=lambda item: item[1].scores()["f1"])
    ]
    errors = [error for entry in entries for error in find_errors(entry, strict)]
    of_kinds = collections.Counter(error.kind for error in errors)
    said = [
        (_sure(entry, each), each in find(entry["gold"], strict))
        for entry in entries
        for each in find(entry["tags"], strict)
    ]
    curve = calibration(*map(list, zip(*said, strict=True))) if said else ""
    of_sets = by_set(evaluation.scores, TITLES)
    parts = [
        f"<style>{STYLE}{ERRORS}</style>\n",
        evaluation.header(name, TITLES, "Sentences"),
        section("Data sets", table(*of_sets) if of_sets.rows else ""),
        section("Types", table(("Type", "Entities", "Precision", "Recall", "F1"), types)),
        section("How sure, how right", f'<div class="pair">{curve}</div>' if curve else ""),
        section("Taken for one another", _confusions(entries)),
        section("What went wrong", table(("Kind", "Entities"), _kinds(of_kinds))),
        section("Surest errors", _surest(errors)),
    ]
    return page(name, parts)


def find_errors(entry: Entry, strict: str = "") -> Iterator[Error]:
    """What is wrong in a sentence: each entity that was said and is none of the gold ones, and each
    gold one that nothing that was said has a word of; see `find`.
    """
    gold, said = find(entry["gold"], strict), find(entry["tags"], strict)
    for each in said:
        if each in gold:
            continue
        near = next((g for g in gold if g.first <= each.last and each.first <= g.last), None)
        kind = "invented"
        if near:
            kind = "type" if near[1:] == each[1:] else "boundary"
        yield Error(kind, each, near, _sure(entry, each), entry)
    for each in gold:
        if not any(s.first <= each.last and each.first <= s.last for s in said):
            yield Error("missed", None, each, _sure(entry, each), entry)


def _sure(entry: Entry, entity: Entity) -> float:
    return float(min(entry["probabilities"][entity.first : entity.last + 1]))


def _confusions(entries: list[Entry]) -> str:
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
    return matrix("Words, by type", names, [[pairs[a, b] for b in names] for a in names])


def _kinds(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    return [(title, f"{counts.get(kind, 0):,}") for kind, title in KINDS.items()]


def _surest(errors: list[Error]) -> str:
    if not errors:
        return ""
    rows = [
        (
            f"{error.sure:.0%}",
            error.said.type if error.said else "-",
            error.gold.type if error.gold else "-",
            _text(error),
        )
        for error in sorted(errors, key=lambda error: -error.sure)[:SHOWN]
    ]
    note = (
        f'<p class="aside">{len(errors):,} errors in all; the surest first. What was said is in '
        f"{escape('>> <<')}, what is gold in [ ].</p>\n"
    )
    return note + table(("Sure", "Said", "Gold", "Text"), rows, "errors")


def _text(error: Error) -> str:
    """The words around an error, marked."""
    words = list(error.entry["words"])
    for entity, (before, after) in ((error.gold, ("[", "]")), (error.said, (">>", "<<"))):
        if entity:
            words[entity.first] = before + words[entity.first]
            words[entity.last] += after
    at = error.said or error.gold
    assert at is not None
    first = max(0, at.first - AROUND)
    shown = " ".join(words[first : at.last + 1 + AROUND])
    return f"{'... ' if first else ''}{shown}{' ...' if at.last + 1 + AROUND < len(words) else ''}"
