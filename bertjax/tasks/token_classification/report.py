"""Report of a token classification evaluation: scores of entity types, and errors."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from etils import epath

from bertjax.html.page import Section
from bertjax.html.plots import ConfusionMatrix, reliability_diagram
from bertjax.html.tables import TextTable
from bertjax.tasks.saved_evaluation import PREDICTIONS, PredictionEntry, read_evaluation
from bertjax.tasks.token_classification.metrics import count_entities, find_entities
from data_pipelines.errors import InputError
from data_pipelines.finetuning.tag_schemes import (
    Entity,
    entities,
    is_tag,
    join_tag,
    label_scheme,
)

MAX_ERRORS_SHOWN = 30  # errors with the highest probabilities
CONTEXT_WORDS = 12  # words of a sentence shown on either side of an entity
NONE = "none"
TITLES = {"f1": "F1", "precision": "Precision", "recall": "Recall", "accuracy": "Word accuracy"}
_ENTRY = {"words": [str], "gold": [str], "tags": [str], "scores": [float]}
_TYPE_HEADER = ("Type", "Entities", "Precision", "Recall", "F1")
# Titles of the errors, in the order of the page.
ERROR_KINDS = {
    "type": "Correct words, other type",
    "boundary": "Other boundaries",
    "missed": "Missed",
    "spurious": "No gold entity",
}


class EntityError(NamedTuple):
    """An error.

    Attributes:
      kind: a key of `ERROR_KINDS`.
      predicted: predicted entity; None for a missed one.
      gold: gold entity; None for a spurious one.
      probability: lowest probability of the predicted tags of its words.
      entry: the sentence.
    """

    kind: str
    predicted: Entity | None
    gold: Entity | None
    probability: float
    entry: PredictionEntry


def render(name: str, directory: epath.Path, sets: Mapping[str, int]) -> str:
    """Return the page of an evaluation.

    Args:
      name: title of the page.
      directory: the output of `bertjax evaluate`.
      sets: name of each eval set -> number of sentences.

    Raises:
      InputError: the directory is not a complete evaluation of these sentences.
    """
    evaluation = read_evaluation(directory, list(sets), {PREDICTIONS: [_ENTRY]})
    has_word_tags = "f1" not in evaluation.scores
    entries = [
        {**entry, **{key: _to_entity_tags(entry[key], has_word_tags) for key in ("gold", "tags")}}
        for entry in evaluation.predictions(list(sets.values()))
    ]
    if any(len({len(entry[key]) for key in _ENTRY}) > 1 for entry in entries):
        raise InputError(f"{directory}: a sentence has not one tag a word. Evaluate again.")
    gold, predicted = ([entry[key] for entry in entries] for key in ("gold", "tags"))
    strict = ""
    if evaluation.run_info["config"]["data"]["strict"]:
        strict = label_scheme({tag for tags in (*gold, *predicted) for tag in tags})
    counts = count_entities(gold, predicted, strict)
    types = [
        (kind, f"{count.gold:,}", *(f"{score:.3f}" for score in count.scores().values()))
        for kind, count in sorted(counts.items(), key=lambda item: item[1].scores()["f1"])
    ]
    errors = [error for entry in entries for error in find_errors(entry, strict)]
    kinds = collections.Counter(error.kind for error in errors)
    probabilities, correct = [], []
    for entry in entries:
        gold_entities = find_entities(entry["gold"], strict)
        for entity in find_entities(entry["tags"], strict):
            probabilities.append(_entity_probability(entry, entity))
            correct.append(entity in gold_entities)
    error_counts = [(title, f"{kinds[kind]:,}") for kind, title in ERROR_KINDS.items()]
    diagrams = [reliability_diagram(probabilities, correct)] if correct else []
    note = (
        f"{len(errors):,} errors, highest probability first. "
        "Predictions are in >> <<, gold entities in [ ]."
    )
    sections = [
        Section("Types", table=TextTable(_TYPE_HEADER, types)),
        Section("Calibration", charts=diagrams),
        Section("Confusion matrix", matrix=_confusion_matrix(entries)),
        Section("Errors by kind", table=TextTable(("Kind", "Entities"), error_counts)),
        Section("Most confident errors", note, table=_error_table(errors), table_class="errors"),
    ]
    return evaluation.render(name, TITLES, ("Sentences", len(entries)), sections)


def _to_entity_tags(labels: Sequence[str], has_word_tags: bool) -> list[str]:
    """Return the tags of labels: those without a prefix are types of entities or of words."""
    if has_word_tags:
        return [join_tag("B", label) for label in labels]
    return [label if is_tag(label) else join_tag("I", label) for label in labels]


def find_errors(entry: PredictionEntry, strict: str = "") -> Iterator[EntityError]:
    """Yield predicted entities that are not gold, and gold entities without a predicted word.

    Args:
      entry: a sentence with its gold and predicted tags.
      strict: tagging scheme of strict evaluation; see `find_entities`.
    """
    gold, predicted = find_entities(entry["gold"], strict), find_entities(entry["tags"], strict)
    for entity in predicted:
        if entity in gold:
            continue
        overlapping = next((other for other in gold if _overlap(entity, other)), None)
        kind = "spurious"
        if overlapping:
            kind = "type" if overlapping[1:] == entity[1:] else "boundary"
        yield EntityError(kind, entity, overlapping, _entity_probability(entry, entity), entry)
    for entity in gold:
        if not any(_overlap(entity, other) for other in predicted):
            yield EntityError("missed", None, entity, _entity_probability(entry, entity), entry)


def _overlap(entity: Entity, other: Entity) -> bool:
    return entity.first <= other.last and other.first <= entity.last


def _entity_probability(entry: PredictionEntry, entity: Entity) -> float:
    return float(min(entry["scores"][entity.first : entity.last + 1]))


def _confusion_matrix(entries: Sequence[PredictionEntry]) -> ConfusionMatrix:
    """Count words by gold and predicted entity type, except words outside of both."""
    pairs: collections.Counter[tuple[str, str]] = collections.Counter()
    for entry in entries:
        gold, predicted = (_word_types(entry[key]) for key in ("gold", "tags"))
        pairs.update(zip(gold, predicted, strict=True))
    del pairs[NONE, NONE]
    names = [*sorted({name for pair in pairs for name in pair} - {NONE}), NONE]
    counts = [[pairs[gold, predicted] for predicted in names] for gold in names]
    return ConfusionMatrix("Words by type", names, counts)


def _word_types(tags: Sequence[str]) -> list[str]:
    types = [NONE] * len(tags)
    for entity in entities(tags):
        types[entity.first : entity.last + 1] = [entity.type] * (entity.last - entity.first + 1)
    return types


def _error_table(errors: Sequence[EntityError]) -> TextTable:
    rows = [
        (
            f"{error.probability:.0%}",
            error.predicted.type if error.predicted else "-",
            error.gold.type if error.gold else "-",
            _mark_error(error),
        )
        for error in sorted(errors, key=lambda error: -error.probability)[:MAX_ERRORS_SHOWN]
    ]
    return TextTable(("Probability", "Predicted", "Gold", "Text"), rows)


def _mark_error(error: EntityError) -> str:
    """Return the words around an error, with marks at both entities."""
    words = list(error.entry["words"])
    for entity, (before, after) in ((error.gold, ("[", "]")), (error.predicted, (">>", "<<"))):
        if entity:
            words[entity.first] = before + words[entity.first]
            words[entity.last] += after
    shown = error.predicted or error.gold
    assert shown is not None
    first, last = max(0, shown.first - CONTEXT_WORDS), shown.last + 1 + CONTEXT_WORDS
    start, end = "... " if first else "", " ..." if last < len(words) else ""
    return f"{start}{' '.join(words[first:last])}{end}"
