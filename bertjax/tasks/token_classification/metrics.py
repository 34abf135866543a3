"""What tags are worth: entities that are found whole, as conlleval counts them (Tjong Kim Sang and
De Meulder 2003). Where there is nothing to divide by, a score is 0.
"""

import collections
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from data_pipelines.finetuning.tag_schemes import Entity, entities, strict_entities


class Count(NamedTuple):
    """Entities: those that are gold, that were said, and that are both, of one type or of all."""

    gold: int = 0
    said: int = 0
    right: int = 0

    def plus(self, other: "Count") -> "Count":
        """The sums."""
        return Count(*(a + b for a, b in zip(self, other, strict=True)))

    def scores(self) -> dict[str, float]:
        """`precision`, `recall` and `f1`, from 0 to 1."""
        return {
            "precision": _ratio(self.right, self.said),
            "recall": _ratio(self.right, self.gold),
            "f1": _ratio(2 * self.right, self.gold + self.said),
        }


def find(tags: Sequence[str], strict: str = "") -> list[Entity]:
    """The entities of a sentence: with `strict`, a scheme, only those that are written as it has
    them (as seqeval's strict mode), else as conlleval.
    """
    return strict_entities(tags, strict) if strict else entities(tags)


def count_entities(
    gold: Iterable[Sequence[str]], said: Iterable[Sequence[str]], strict: str = ""
) -> dict[str, Count]:
    """The counts of each type, from the tags of sentences; see `find`."""
    counts: dict[str, Count] = collections.defaultdict(Count)
    for tags, others in zip(gold, said, strict=True):
        right = set(find(tags, strict))
        mine = find(others, strict)
        for each in right:
            counts[each.type] = counts[each.type].plus(Count(gold=1))
        for each in mine:
            counts[each.type] = counts[each.type].plus(Count(0, 1, each in right))
    return dict(sorted(counts.items()))


def total(counts: Iterable[Count]) -> Count:
    """Those of all types."""
    found = Count()
    for each in counts:
        found = found.plus(each)
    return found


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
