"""Pairs of a source text and the target text that a model generates from it."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples
from data_pipelines.finetuning.table import TableRow
from data_pipelines.vocabulary.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True)
class GenerationDataset:
    """A data set of sources and their targets."""

    name: str
    sources: list[str]
    targets: list[str]

    @property
    def all_texts(self) -> list[str]:
        """Sources and targets."""
        return [*self.sources, *self.targets]


class EncodedPairs(NamedTuple):
    """Pairs as examples.

    Attributes:
      examples: an example for each pair.
      num_truncated_sources: pairs whose source lost tokens.
      num_truncated_targets: pairs whose target lost tokens.
    """

    examples: Examples
    num_truncated_sources: int
    num_truncated_targets: int


def dataset_from_rows(
    name: str, rows: Sequence[TableRow], source: str, target: str
) -> GenerationDataset:
    """Return the pairs of a table.

    Args:
      name: name of the table.
      rows: its rows.
      source: name of the column of the sources.
      target: name of the column of the targets.

    Raises:
      InputError: a column is missing, or a text is empty or no text.
    """
    for field, column in (("source", source), ("target", target)):
        known = dict.fromkeys(key for row in rows for key in row.values)
        if column not in known:
            raise InputError(
                f"{name}: there is no column {column!r}, but {', '.join(map(repr, known))}. Set "
                f"data.{field}=COLUMN."
            )
    texts = ([row.text((column,)) for row in rows] for column in (source, target))
    return GenerationDataset(name, *texts)


def encode_source(text: str, tokenizer: Tokenizer, max_length: int) -> tuple[list[int], bool]:
    """Return [CLS] source [SEP], and whether the source lost tokens at its end.

    Args:
      text: the source.
      tokenizer: the tokenizer.
      max_length: maximal tokens, with [CLS] and [SEP].
    """
    ids = tokenizer.encode(text)
    kept = ids[: max_length - 2]
    return [tokenizer.cls_id, *kept, tokenizer.sep_id], len(kept) < len(ids)


def encode_pairs(
    data: GenerationDataset, tokenizer: Tokenizer, max_source_length: int, max_target_length: int
) -> EncodedPairs:
    """Return pairs as examples [CLS] source [SEP] target [SEP].

    A target that is too long loses its end with the [SEP], because it does not end there.

    Args:
      data: the pairs.
      tokenizer: the tokenizer.
      max_source_length: maximal tokens of a source with [CLS] and [SEP].
      max_target_length: maximal tokens of a target with [SEP].
    """
    rows, prefix_lengths, num_sources, num_targets = [], [], 0, 0
    for source, target in zip(data.sources, data.targets, strict=True):
        prefix, is_truncated = encode_source(source, tokenizer, max_source_length)
        ids = [*tokenizer.encode(target), tokenizer.sep_id]
        rows.append([*prefix, *ids[:max_target_length]])
        prefix_lengths.append(len(prefix))
        num_sources += is_truncated
        num_targets += len(ids) > max_target_length
    return EncodedPairs(Examples.from_rows(rows, prefix_lengths, {}), num_sources, num_targets)
