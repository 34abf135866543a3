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
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig, hidden_state_indices
from bertjax.model.encoder import Encoder
from bertjax.tasks import finetuning
from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.task import HostBatch, next_power_of_two
from data_pipelines.errors import InputError
from data_pipelines.finetuning.encoding import encode_texts
from data_pipelines.finetuning.examples import Examples, Target
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset
from data_pipelines.vocabulary.tokenization import Tokenizer

LEVELS = ("text", "words", "pieces")
_MIN_SEQ_LENGTH = 64  # pieces of a row, at least
_MIN_TOKENS_PER_EXAMPLE = 8  # of a text, at least, by which a row has places for texts
_MAX_BATCH_TOKENS = 1024  # pieces that a device computes at once, at most


@dataclasses.dataclass(frozen=True)
class EmbeddingOptions:
    """Which vectors.

    Attributes:
      layers: see `bertjax.model.bert_config.hidden_state_indices`; of texts their mean is taken.
      of: "text", or the "words" or "pieces" of it.
      pool: how a text's is made of those of its pieces; see `pooling`.
      normalize: whether a text's has length 1.
      max_seq_length: pieces of a text, at most; longer ones are cut.
    """

    layers: tuple[int, ...] = (-1,)
    level: str = "text"
    pool: str = "mean"
    normalize: bool = False
    max_seq_length: int = 512

    def __post_init__(self) -> None:
        for name, known in (("level", LEVELS), ("pool", pooling.POOLING_MODES)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"--{name} {getattr(self, name)} is unknown: use {', '.join(known)}."
                )
        if not self.layers:
            raise InputError("--layers names none: give some, such as -1,-2.")
        if self.normalize and self.level != "text":
            raise InputError(
                f"--normalize is for --level text and not for {self.level}: leave it out."
            )
        if self.max_seq_length < 3:
            raise InputError(
                f"max_seq_length={self.max_seq_length} leaves no room for text: raise it."
            )


class Objective(finetuning.Objective):
    """The encoder, and what becomes of its layers on the devices: `embeddings` [B, K, H] of texts, or
    [B, T, L, H] of pieces.
    """

    heads = ()
    eval_outputs = ("embeddings",)

    def __init__(self, config: Config, batch_size_multiple: int, wanted: EmbeddingOptions) -> None:
        own = {name: getattr(BertConfig, name) for name in LAYER_MIX_FIELDS}
        model = dataclasses.replace(config.model, **own)
        super().__init__(dataclasses.replace(config, model=model), batch_size_multiple)
        hidden_state_indices(wanted.layers, model.num_hidden_layers)
        self.wanted = wanted

    @property
    def row(self) -> PackedShape:
        return PackedShape(
            self.wanted.max_seq_length,
            max(1, self.wanted.max_seq_length // _MIN_TOKENS_PER_EXAMPLE),
        )

    def targets(self) -> Mapping[str, Target]:
        return {"text": Target("example", np.zeros(0, np.int32))}

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        wanted = self.wanted
        names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
        layers = cast(
            Array,
            Encoder(self.config.model).apply(
                {"params": params["encoder"]},
                *(batch[name] for name in names),
                deterministic=True,
                layers=wanted.layers,
            ),
        )
        if wanted.level != "text":
            return {"embeddings": jnp.moveaxis(layers, 0, 2).astype(jnp.float32)}
        mean = jnp.mean(layers.astype(jnp.float32), axis=0)
        count = batch["cls_positions"].shape[1]
        found = pooling.pool(mean, batch["example_ids"], count, wanted.pool)
        return {"embeddings": pooling.normalize(found) if wanted.normalize else found}


class BatchRunner(Protocol):
    """What computes vectors: see `bertjax.inference.predictor.Predictor`."""

    def run(self, batches: Iterable[HostBatch]) -> Iterator[dict[str, np.ndarray]]: ...


class TextEmbeddings(NamedTuple):
    """The vectors of some texts.

    Attributes:
      vectors: float32 [N, H] of texts, or [P, L, H] of the pieces or words of all of them.
      names: the pieces or words of each text; None of texts.
      cut: texts of which pieces were left out.
    """

    embeddings: np.ndarray
    names: list[list[str]] | None
    num_truncated: int


def embed_texts(
    texts: Sequence[str], encoder: BatchRunner, tokenizer: Tokenizer, objective: Objective
) -> TextEmbeddings:
    """The vectors of texts, in their order, whatever the length of each.

    Texts of like length share rows, which are no longer than they need be. Batches of many texts
    have one shape for each length, so that memory does not grow with the programs compiled.
    """
    wanted = objective.wanted
    encoded = encode_texts(
        SequenceClassificationDataset("input", [], list(texts)),
        tokenizer,
        wanted.max_seq_length,
        "head",
    )
    examples = encoded.examples
    sizes = np.array(
        [max(_MIN_SEQ_LENGTH, next_power_of_two(int(size))) for size in examples.lengths]
    )
    together = min(_MAX_BATCH_TOKENS, next_power_of_two(int(examples.lengths.sum())))
    found: list[Any] = [None] * len(texts)
    for size in np.unique(sizes):
        numbers = np.flatnonzero(sizes == size)
        row = objective.row._replace(tokens=min(int(size), wanted.max_seq_length))
        row = row._replace(examples=max(1, row.tokens // _MIN_TOKENS_PER_EXAMPLE))
        rows = objective.batch_size_multiple * max(1, together // row.tokens)
        laid = PackedEvalSet(_select_examples(examples, numbers), row, rows)
        outputs = [each["embeddings"] for each in encoder.run(laid.batches())]
        part = laid.unpack_outputs(outputs, "example" if wanted.level == "text" else "token")
        for number, embeddings in zip(numbers, part, strict=True):
            found[number] = embeddings
    if wanted.level == "text":
        return TextEmbeddings(np.stack(found), None, encoded.num_truncated)
    ids = np.split(examples.ids, examples.starts[1:])
    names = [[tokenizer.tokens[i] for i in own] for own in ids]
    if wanted.level == "words":
        pairs = [
            _pool_words(text, own, embeddings, tokenizer)
            for text, own, embeddings in zip(texts, ids, found, strict=True)
        ]
        names, found = [own for own, _ in pairs], [embeddings for _, embeddings in pairs]
    return TextEmbeddings(np.concatenate(found), names, encoded.num_truncated)


def _select_examples(examples: Examples, numbers: np.ndarray) -> Examples:
    """Some of the examples, with the target that says that there is something in a slot."""
    parts = [
        examples.ids[examples.starts[i] : examples.starts[i] + examples.lengths[i]] for i in numbers
    ]
    lengths = examples.lengths[numbers]
    target = Target("example", np.zeros(len(numbers), np.int32))
    return Examples(
        np.concatenate(parts), lengths, examples.prefix_lengths[numbers], {"text": target}
    )


def _pool_words(
    text: str, ids: np.ndarray, embeddings: np.ndarray, tokenizer: Tokenizer
) -> tuple[list[str], np.ndarray]:
    """The words of a text, as they stand in it, and the mean vector of each one's pieces."""
    ids, embeddings = ids[1:-1], embeddings[1:-1]
    starts = np.flatnonzero(~tokenizer.is_continuation[ids])
    if len(ids) and (not len(starts) or starts[0]):
        starts = np.concatenate([[0], starts])
    if not len(starts):
        return [], embeddings
    counts = np.diff([*starts, len(ids)])
    means = np.add.reduceat(embeddings, starts) / counts[:, None, None].astype(np.float32)
    _, spans = tokenizer.encode_with_offsets(text)
    ends = [*starts[1:], len(ids)]
    words = [text[spans[a][0] : spans[b - 1][1]] for a, b in zip(starts, ends, strict=True)]
    return words, means
