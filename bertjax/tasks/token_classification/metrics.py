"""What tags are worth: entities that are found whole, as conlleval counts them (Tjong Kim Sang and
De Meulder 2003). Where there is nothing to divide by, a score is 0.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from data_pipelines.finetuning.tag_schemes import Entity, entities, strict_entities


class EntityCounts(NamedTuple):
    """Entities: those that are gold, that were said, and that are both, of one type or of all."""

    gold: int = 0
    predicted: int = 0
    correct: int = 0

    def add(self, other: "EntityCounts") -> "EntityCounts":
        """The sums."""
        return EntityCounts(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """`precision`, `recall` and `f1`, from 0 to 1."""
        return {
            "precision": _ratio(self.correct, self.predicted),
            "recall": _ratio(self.correct, self.gold),
            "f1": _ratio(2 * self.correct, self.gold + self.predicted),
        }


def find_entities(tags: Sequence[str], strict: str = "") -> list[Entity]:
    """The entities of a sentence: with `strict`, a scheme, only those that are written as it has
    them (as seqeval's strict mode), else as conlleval.
    """
    return strict_entities(tags, strict) if strict else entities(tags)


def count_entities(
    gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], strict: str = ""
) -> dict[str, EntityCounts]:
    """The counts of each type, from the tags of sentences; see `find_entities`."""
    counts: dict[str, EntityCounts] = collections.defaultdict(EntityCounts)
    for tags, others in zip(gold, predicted, strict=True):
        correct = set(find_entities(tags, strict))
        mine = find_entities(others, strict)
        for each in correct:
            counts[each.type] = counts[each.type].add(EntityCounts(gold=1))
        for each in mine:
            counts[each.type] = counts[each.type].add(EntityCounts(0, 1, each in correct))
    return dict(sorted(counts.items()))


def sum_counts(counts: Iterable[EntityCounts]) -> EntityCounts:
    """Those of all types."""
    found = EntityCounts()
    for each in counts:
        found = found.add(each)
    return found


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
