"""Options of a preparation that determine the content of the corpus."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from data_pipelines.corpus.filters import KEEP_ALL, Filters
from data_pipelines.errors import InputError
from data_pipelines.text.sentence_splitting import SENTENCE_RULES_VERSION
from data_pipelines.text.sources import DEFAULT_READ_OPTIONS, ReadOptions

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """Options of a preparation, on one machine or with Beam.

    Attributes:
      eval_fraction: fraction of the documents for the eval split, chosen by the hash of their text.
      dedup: keep only the first of the documents with equal text.
      num_shards: number of train shards; None chooses a power of two by the size of the corpus.
      filters: filters that drop further documents.
      read_options: options for reading the inputs.
      license: license of the text, shown with models trained on it.

    Raises:
      InputError: a value is out of range.
    """

    eval_fraction: float = 0.01
    dedup: bool = False
    num_shards: int | None = None
    filters: Filters = KEEP_ALL
    read_options: ReadOptions = DEFAULT_READ_OPTIONS
    license: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.eval_fraction < 1:
            raise InputError(
                f"eval_fraction={self.eval_fraction}: not in [0, 1). Use 0 for no eval split, or a "
                "fraction below 1."
            )
        if self.num_shards is not None and self.num_shards < 1:
            raise InputError(f"num_shards={self.num_shards}: below the minimum. Use at least 1.")
        if "+" in self.filters.languages:
            _log.warning(
                "languages=%s: in one corpus, a random next sentence may be in another language, "
                "which reveals its label. Prepare one directory per language, and train on all of "
                'them, joined by "+".',
                self.filters.languages,
            )

    def manifest_entries(self, inputs: Sequence[str]) -> dict[str, Any]:
        """Return the options as the manifest records them, with the inputs."""
        return {
            "inputs": list(inputs),
            **self.read_options.content_options(),
            "sentence_rules": SENTENCE_RULES_VERSION,
            "eval_fraction": self.eval_fraction,
            "dedup": self.dedup,
            "num_shards": self.num_shards,
            **dataclasses.asdict(self.filters),
            "license": self.license,
        }


DEFAULT_CORPUS_OPTIONS = CorpusOptions()
