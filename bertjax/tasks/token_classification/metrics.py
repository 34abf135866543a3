"""Entity scores, as conlleval counts (Tjong Kim Sang and De Meulder 2003).

An entity is correct if its type and its words are. A score with denominator 0 is 0.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from data_pipelines.finetuning.tag_schemes import Entity, entities, strict_entities


class EntityCounts(NamedTuple):
    """Numbers of gold, predicted and correct entities."""

    gold: int = 0
    predicted: int = 0
    correct: int = 0

    def scores(self) -> dict[str, float]:
        """Return `precision`, `recall` and `f1`, in [0, 1]."""
        return {
            "precision": _ratio(self.correct, self.predicted),
            "recall": _ratio(self.correct, self.gold),
            "f1": _ratio(2 * self.correct, self.gold + self.predicted),
        }


def find_entities(tags: Sequence[str], strict: str = "") -> list[Entity]:
    """Return the entities of a sentence, as conlleval finds them.

    Args:
      tags: the tags of its words.
      strict: a tagging scheme: return only entities written in it, as seqeval's strict mode does.
    """
    return strict_entities(tags, strict) if strict else entities(tags)


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], strict: str = ""
) -> dict[str, EntityCounts]:
    """Return the counts by entity type, from the tags of sentences; see `find_entities`."""
    gold_counts, predicted_counts, correct_counts = (collections.Counter[str]() for _ in range(3))
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        gold_entities = set(find_entities(gold_tags, strict))
        predicted_entities = set(find_entities(predicted_tags, strict))
        gold_counts.update(entity.type for entity in gold_entities)
        predicted_counts.update(entity.type for entity in predicted_entities)
        correct_counts.update(entity.type for entity in gold_entities & predicted_entities)
    return {
        kind: EntityCounts(gold_counts[kind], predicted_counts[kind], correct_counts[kind])
        for kind in sorted(gold_counts | predicted_counts)
    }


def sum_counts(counts: Iterable[EntityCounts]) -> EntityCounts:
    """Return the counts of all types together."""
    return EntityCounts(*map(sum, zip(*counts, strict=True)))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
