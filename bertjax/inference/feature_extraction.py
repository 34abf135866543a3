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
from bertjax.formats.opening import find_tokenizer
from bertjax.formats.sentence_transformers import find_recipe
from bertjax.inference.embedding_files import TEXTS, Parts, keep_texts
from bertjax.inference.predictor import Runner
from bertjax.tasks.embeddings import Found, Objective, Wanted, vectors_of
from bertjax.training.initialization import Start
from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import parse_object

_log = logging.getLogger("bertjax")

TOGETHER = {"text": 4096, "words": 256, "pieces": 256}  # lines of a part


def recipe_of(
    directory: epath.PathLike,
    layers: Sequence[int] = (-1,),
    of: str = "text",
    pool: str | None = None,
    normalize: bool = False,
) -> tuple[epath.Path, Wanted]:
    """The model in a directory, and which of its vectors are wanted.

    What is not said, how pieces are pooled and how long a text may be, is what a directory of
    sentence-transformers says, and the mean elsewhere.

    Raises:
      InputError: there are no such vectors, or it pools in a way that bertjax has not.
    """
    recipe = find_recipe(directory)
    if recipe is None:
        return epath.Path(directory), Wanted(tuple(layers), of, pool or "mean", normalize)
    if not pool and of == "text":
        pool, normalize = recipe.pool, recipe.normalize or normalize
        said = ", made one of length 1" if normalize else ""
        _log.info("%s: a text's vector is the %s of its pieces%s.", recipe.model, pool, said)
    fields = {"seq_len": recipe.seq_len} if recipe.seq_len else {}
    return recipe.model, Wanted(tuple(layers), of, pool or "mean", normalize, **fields)


class Features:
    """An encoder on all devices of this process.

    Args:
      checkpoint: a checkpoint, a workdir, or a model of Hugging Face or TF1; or one that is open
        already.
      wanted: which vectors.

    Raises:
      InputError: there is no such model, or it has not these layers.
    """

    def __init__(self, checkpoint: epath.PathLike | Start, wanted: Wanted) -> None:
        start = checkpoint if isinstance(checkpoint, Start) else Start(checkpoint)
        self._start = start
        seq_len = min(wanted.seq_len, start.model.max_positions)
        self.wanted = dataclasses.replace(wanted, seq_len=seq_len)
        self._tokenizer = start.tokenizer or find_tokenizer(start.path)
        config = Config(model=start.model, seq_len=seq_len, batch_size=1)
        self._objective = Objective(config, jax.device_count(), self.wanted)
        self._runner = Runner(start, self._objective)

    def encode(self, texts: Sequence[str]) -> Found:
        """The vectors of some texts."""
        return vectors_of(texts, self._runner, self._tokenizer, self._objective)

    def tell_of_cuts(self, cut: int, count: int) -> None:
        """Warns where so many of the texts were cut."""
        if cut:
            _log.warning(
                "%d of %d texts are longer than %d pieces and were cut.",
                cut,
                count,
                self.wanted.seq_len,
            )

    def write(self, lines: Iterable[str], output: epath.PathLike) -> int:
        """Writes those of every line, which is text or a JSON object with "text"; goes on where it
        was stopped. Returns how many lines there are.

        Raises:
          InputError: a line is neither, there are none, or see `Parts`.
        """
        parts = Parts(epath.Path(output), {"model": self._start.digest, **vars(self.wanted)})
        lines, number, count, cut = iter(lines), 0, 0, 0
        while some := list(itertools.islice(_texts(lines, count), TOGETHER[self.wanted.of])):
            digest = hashlib.sha256("\n".join(some).encode("utf-8", "surrogatepass")).hexdigest()
            if not parts.has(number, digest):
                found = self.encode(some)
                parts.write(number, digest, _part(some, found))
                cut += found.cut
            number, count = number + 1, count + len(some)
        if not count:
            raise InputError("the input has no lines: give some text.")
        self.tell_of_cuts(cut, count)
        parts.finish(number)
        return count


def _texts(lines: Iterator[str], before: int) -> Iterator[str]:
    for number, line in enumerate(lines, before + 1):
        text = line.strip()
        if text.startswith("{"):
            place = f"line {number}"
            said = parse_object(place, text).values.get("text")
            if not isinstance(said, str):
                raise InputError(f'{place} has no "text": write {{"text": "..."}}, or text.')
            text = said
        yield text


def _part(texts: Sequence[str], found: Found) -> dict[str, np.ndarray]:
    part = {TEXTS: keep_texts(texts), "vectors": found.vectors}
    if found.names is not None:
        part["counts"] = np.array([len(names) for names in found.names], np.int64)
        part["names"] = np.array([name for names in found.names for name in names])
    return part
