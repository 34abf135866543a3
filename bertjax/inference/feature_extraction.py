"""From a file of texts to a file of vectors."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence

import jax
import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.formats.loading import find_tokenizer
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.embedding_files import TEXTS_KEY, PartFiles, texts_to_bytes
from bertjax.inference.predictor import Runner
from bertjax.tasks.embeddings import EmbeddingOptions, Objective, TextEmbeddings, embed_texts
from bertjax.training.initialization import PretrainedModel
from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import parse_object

_log = logging.getLogger("bertjax")

LINES_PER_PART = {"text": 4096, "words": 256, "pieces": 256}  # lines of a part


def recipe_of(
    directory: epath.PathLike,
    layers: Sequence[int] = (-1,),
    level: str = "text",
    pool: str | None = None,
    normalize: bool = False,
) -> tuple[epath.Path, EmbeddingOptions]:
    """The model in a directory, and which of its vectors are wanted.

    What is not said, how pieces are pooled and how long a text may be, is what a directory of
    sentence-transformers says, and the mean elsewhere.

    Raises:
      InputError: there are no such vectors, or it pools in a way that bertjax has not.
    """
    recipe = find_pooling_config(directory)
    if recipe is None:
        return epath.Path(directory), EmbeddingOptions(
            tuple(layers), level, pool or "mean", normalize
        )
    if not pool and level == "text":
        pool, normalize = recipe.pooling, recipe.normalize or normalize
        said = ", made one of length 1" if normalize else ""
        _log.info("%s: a text's vector is the %s of its pieces%s.", recipe.model, pool, said)
    fields = {"max_seq_length": recipe.max_seq_length} if recipe.max_seq_length else {}
    return recipe.model, EmbeddingOptions(tuple(layers), level, pool or "mean", normalize, **fields)


class Features:
    """An encoder on all devices of this process.

    Args:
      checkpoint: a checkpoint, a workdir, or a model of Hugging Face or TF1; or one that is open
        already.
      wanted: which vectors.

    Raises:
      InputError: there is no such model, or it has not these layers.
    """

    def __init__(
        self, checkpoint: epath.PathLike | PretrainedModel, wanted: EmbeddingOptions
    ) -> None:
        start = (
            checkpoint if isinstance(checkpoint, PretrainedModel) else PretrainedModel(checkpoint)
        )
        self._pretrained = start
        max_seq_length = min(wanted.max_seq_length, start.model.max_position_embeddings)
        self.wanted = dataclasses.replace(wanted, max_seq_length=max_seq_length)
        self._tokenizer = start.tokenizer or find_tokenizer(start.path)
        config = Config(model=start.model, max_seq_length=max_seq_length, batch_size=1)
        self._objective = Objective(config, jax.device_count(), self.wanted)
        self._runner = Runner(start, self._objective)

    def encode(self, texts: Sequence[str]) -> TextEmbeddings:
        """The vectors of some texts."""
        return embed_texts(texts, self._runner, self._tokenizer, self._objective)

    def warn_truncated(self, num_truncated: int, count: int) -> None:
        """Warns where so many of the texts were cut."""
        if num_truncated:
            _log.warning(
                "%d of %d texts are longer than %d pieces and were cut.",
                num_truncated,
                count,
                self.wanted.max_seq_length,
            )

    def write(self, lines: Iterable[str], output: epath.PathLike) -> int:
        """Writes those of every line, which is text or a JSON object with "text"; goes on where it
        was stopped. Returns how many lines there are.

        Raises:
          InputError: a line is neither, there are none, or see `PartFiles`.
        """
        parts = PartFiles(
            epath.Path(output), {"model": self._pretrained.digest, **vars(self.wanted)}
        )
        lines, number, count, num_truncated = iter(lines), 0, 0, 0
        while some := list(
            itertools.islice(_iter_texts(lines, count), LINES_PER_PART[self.wanted.level])
        ):
            digest = hashlib.sha256("\n".join(some).encode("utf-8", "surrogatepass")).hexdigest()
            if not parts.has(number, digest):
                embeddings = self.encode(some)
                parts.write(number, digest, _make_part(some, embeddings))
                num_truncated += embeddings.num_truncated
            number, count = number + 1, count + len(some)
        if not count:
            raise InputError("the input has no lines: give some text.")
        self.warn_truncated(num_truncated, count)
        parts.finish(number)
        return count


def _iter_texts(lines: Iterator[str], before: int) -> Iterator[str]:
    for number, line in enumerate(lines, before + 1):
        text = line.strip()
        if text.startswith("{"):
            location = f"line {number}"
            said = parse_object(location, text).values.get("text")
            if not isinstance(said, str):
                raise InputError(f'{location} has no "text": write {{"text": "..."}}, or text.')
            text = said
        yield text


def _make_part(texts: Sequence[str], embeddings: TextEmbeddings) -> dict[str, np.ndarray]:
    part = {TEXTS_KEY: texts_to_bytes(texts), "embeddings": embeddings.embeddings}
    if embeddings.names is not None:
        part["counts"] = np.array([len(names) for names in embeddings.names], np.int64)
        part["tokens"] = np.array([name for names in embeddings.names for name in names])
    return part
