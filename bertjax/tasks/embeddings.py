"""Vectors of texts, of their words and of their pieces: what an encoder alone gives.

Nothing is learned here, and so this is no task of the registry.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import jax.numpy as jnp
import numpy as np
from jax import Array

from bertjax.config.config import Config
from bertjax.mesh.feed import Batch
from bertjax.model import pooling
from bertjax.model.encoder import BETWEEN, BertConfig, Encoder, depths_of
from bertjax.tasks import finetuning
from bertjax.tasks.finetuning import Laid
from bertjax.tasks.task import HostBatch, bucket
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import encode
from data_pipelines.finetuning.packed_examples import Examples, Shape, Target
from data_pipelines.finetuning.sequence_classification import Sentences
from data_pipelines.vocabulary.tokenization import Tokenizer

OF = ("text", "words", "pieces")
_SHORTEST = 64  # pieces of a row, at least
_PIECES = 8  # of a text, at least, by which a row has places for texts
_TOGETHER = 1024  # pieces that a device computes at once, at most


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which vectors.

    Attributes:
      layers: see `bertjax.model.encoder.depths_of`; of texts their mean is taken.
      of: "text", or the "words" or "pieces" of it.
      pool: how a text's is made of those of its pieces; see `pooling`.
      normalize: whether a text's has length 1.
      seq_len: pieces of a text, at most; longer ones are cut.
    """

    layers: tuple[int, ...] = (-1,)
    of: str = "text"
    pool: str = "mean"
    normalize: bool = False
    seq_len: int = 512

    def __post_init__(self) -> None:
        for name, known in (("of", OF), ("pool", pooling.POOLS)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"--{name} {getattr(self, name)} is unknown: use {', '.join(known)}."
                )
        if not self.layers:
            raise InputError("--layers names none: give some, such as -1,-2.")
        if self.normalize and self.of != "text":
            raise InputError(f"--normalize is for --of text and not for {self.of}: leave it out.")
        if self.seq_len < 3:
            raise InputError(f"seq_len={self.seq_len} leaves no room for text: raise it.")


class Objective(finetuning.Objective):
    """The encoder, and what becomes of its layers on the devices: `vectors` [B, K, H] of texts, or
    [B, T, L, H] of pieces.
    """

    heads = ()
    outputs = ("vectors",)

    def __init__(self, config: Config, multiple: int, wanted: Wanted) -> None:
        own = {name: getattr(BertConfig, name) for name in BETWEEN}
        model = dataclasses.replace(config.model, **own)
        super().__init__(dataclasses.replace(config, model=model), multiple)
        depths_of(wanted.layers, model.num_layers)
        self.wanted = wanted

    @property
    def row(self) -> Shape:
        return Shape(self.wanted.seq_len, max(1, self.wanted.seq_len // _PIECES))

    def targets(self) -> Mapping[str, Target]:
        return {"text": Target("example", np.zeros(0, np.int32))}

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        wanted = self.wanted
        names = ("token_ids", "type_ids", "pack_ids", "positions")
        layers = cast(
            Array,
            Encoder(self.config.model).apply(
                {"params": params["encoder"]},
                *(batch[name] for name in names),
                deterministic=True,
                layers=wanted.layers,
            ),
        )
        if wanted.of != "text":
            return {"vectors": jnp.moveaxis(layers, 0, 2).astype(jnp.float32)}
        mean = jnp.mean(layers.astype(jnp.float32), axis=0)
        count = batch["cls_positions"].shape[1]
        found = pooling.pool(mean, batch["pack_ids"], count, wanted.pool)
        return {"vectors": pooling.normalize(found) if wanted.normalize else found}


class Encodes(Protocol):
    """What computes vectors: see `bertjax.inference.predictor.Predictor`."""

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]: ...


class Found(NamedTuple):
    """The vectors of some texts.

    Attributes:
      vectors: float32 [N, H] of texts, or [P, L, H] of the pieces or words of all of them.
      names: the pieces or words of each text; None of texts.
      cut: texts of which pieces were left out.
    """

    vectors: np.ndarray
    names: list[list[str]] | None
    cut: int


def vectors_of(
    texts: Sequence[str], encoder: Encodes, tokenizer: Tokenizer, objective: Objective
) -> Found:
    """The vectors of texts, in their order, whatever the length of each.

    Texts of like length share rows, which are no longer than they need be. Batches of many texts
    have one shape for each length, so that memory does not grow with the programs compiled.
    """
    wanted = objective.wanted
    encoded = encode(Sentences("input", [], list(texts)), tokenizer, wanted.seq_len, "head")
    examples = encoded.examples
    sizes = np.array([max(_SHORTEST, bucket(int(size))) for size in examples.lengths])
    together = min(_TOGETHER, bucket(int(examples.lengths.sum())))
    found: list[Any] = [None] * len(texts)
    for size in np.unique(sizes):
        numbers = np.flatnonzero(sizes == size)
        row = objective.row._replace(pieces=min(int(size), wanted.seq_len))
        row = row._replace(examples=max(1, row.pieces // _PIECES))
        rows = objective.multiple * max(1, together // row.pieces)
        laid = Laid(_some(examples, numbers), row, rows)
        outputs = [each["vectors"] for each in encoder.run(laid.batches())]
        part = laid.split(outputs, "example" if wanted.of == "text" else "pieces")
        for number, vectors in zip(numbers, part, strict=True):
            found[number] = vectors
    if wanted.of == "text":
        return Found(np.stack(found), None, encoded.cut)
    ids = np.split(examples.ids, examples.starts[1:])
    names = [[tokenizer.pieces[i] for i in own] for own in ids]
    if wanted.of == "words":
        pairs = [
            _words(text, own, vectors, tokenizer)
            for text, own, vectors in zip(texts, ids, found, strict=True)
        ]
        names, found = [own for own, _ in pairs], [vectors for _, vectors in pairs]
    return Found(np.concatenate(found), names, encoded.cut)


def _some(examples: Examples, numbers: np.ndarray) -> Examples:
    """Some of the examples, with the target that says that there is something in a slot."""
    parts = [
        examples.ids[examples.starts[i] : examples.starts[i] + examples.lengths[i]] for i in numbers
    ]
    lengths = examples.lengths[numbers]
    target = Target("example", np.zeros(len(numbers), np.int32))
    return Examples(np.concatenate(parts), lengths, examples.prefix[numbers], {"text": target})


def _words(
    text: str, ids: np.ndarray, vectors: np.ndarray, tokenizer: Tokenizer
) -> tuple[list[str], np.ndarray]:
    """The words of a text, as they stand in it, and the mean vector of each one's pieces."""
    ids, vectors = ids[1:-1], vectors[1:-1]
    starts = np.flatnonzero(~tokenizer.continues[ids])
    if len(ids) and (not len(starts) or starts[0]):
        starts = np.concatenate([[0], starts])
    if not len(starts):
        return [], vectors
    counts = np.diff([*starts, len(ids)])
    means = np.add.reduceat(vectors, starts) / counts[:, None, None].astype(np.float32)
    _, spans = tokenizer.encode_with_spans(text)
    ends = [*starts[1:], len(ids)]
    words = [text[spans[a][0] : spans[b - 1][1]] for a, b in zip(starts, ends, strict=True)]
    return words, means
