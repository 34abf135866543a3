"""Pre-training: masked language model and next sentence prediction (paper, section 3.1)."""

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath

from bertjax.mesh.hosts import from_first
from bertjax.model import flops, losses
from bertjax.model.heads import PretrainingModel
from bertjax.tasks.contract import Evaluation, check_vocabulary
from bertjax.training.checkpoint import load_on_device
from bertjax.training.config import Config
from bertjax.training.step import Batch, Sums
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.rows import PretrainingOptions, render_row
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

_log = logging.getLogger("bertjax")

_BEST = 5  # pieces reported for each mask
_SHARED = ("seed", "batch_size", "seq_len", "packing")  # fields of the configuration itself
DATA_FIELDS: dict[str, Any] = {"dir": ""} | {
    field.name: field.default
    for field in dataclasses.fields(PretrainingOptions)
    if field.name not in _SHARED
}


class Objective:
    """See `bertjax.training.objective.Objective`."""

    def __init__(self, config: Config, multiple: int = 1) -> None:
        fields = {name: value for name, value in config.data.items() if name != "dir"}
        shared = {name: getattr(config, name) for name in _SHARED}
        self.config = config
        self.options = PretrainingOptions(**shared, **fields)
        self.model = PretrainingModel(
            config.model, next_sentence=self.options.objective == "mlm_nsp"
        )

    def init_params(self, key: jax.Array) -> Any:
        batch = {
            name: jnp.zeros((1, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in self.batch_shapes().items()
        }
        return self.model.init(key, batch, deterministic=True)["params"]

    def logits(self, params: Any, batch: Batch, key: jax.Array | None) -> dict[str, jax.Array]:
        """See `PretrainingModel`; a key turns dropout on."""
        rngs = None if key is None else {"dropout": key}
        return cast(
            dict[str, jax.Array],
            self.model.apply({"params": params}, batch, deterministic=key is None, rngs=rngs),
        )

    def loss(self, params: Any, batch: Batch, key: jax.Array | None) -> Sums:
        logits = self.logits(params, batch, key)
        real = batch["pack_ids"] > 0
        fill = (jnp.sum(real, dtype=jnp.float32), jnp.float32(real.size))
        return losses.pretraining(logits, batch) | {"fill": fill}

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        rows = self.config.batch_size
        return {
            name: jax.ShapeDtypeStruct((rows, *array.shape[1:]), array.dtype)
            for name, array in self.options.empty_rows(1).items()
        }

    def flops_per_step(self) -> float:
        config, row = self.config, self.options.row
        pairs = row.pairs if self.model.next_sentence else 0
        return flops.train_step_flops(config.model, config.batch_size, row.pieces, row.slots, pairs)


class Task(Objective):
    """See `bertjax.tasks.contract.Task`."""

    def __init__(self, config: Config, hosts: int = 1, host: int = 0) -> None:
        super().__init__(config)
        directory = config.data["dir"]
        if not directory:
            raise InputError("data.dir is empty: name a directory that `bertjax prepare` wrote.")
        # The processes of one program share what one of them measures.
        share = from_first if jax.process_count() == hosts else None
        self.data = PretrainingData(directory, self.options, "train", hosts, host, share)
        self.heldout = None
        if self.data.manifest.heldout:
            self.heldout = PretrainingData(directory, self.options, "heldout", hosts, host)
        else:
            _log.warning("%s holds out no text: the run is not evaluated.", directory)
        check_vocabulary(directory, self.data.tokenizer, config.model)
        self.rows_per_epoch, self.eval_rows = self.data.rows_per_epoch, config.batch_size
        self.data_fingerprint = self.data.manifest.digest()

    def train_batches(self, start: int, stop: int) -> Iterable[dict[str, np.ndarray]]:
        return self.data.dataset(start, stop).as_numpy_iterator()

    def eval_batches(self) -> Iterable[dict[str, np.ndarray]]:
        if self.heldout is None:
            return ()
        batches = self.heldout.dataset().as_numpy_iterator()
        return itertools.islice(batches, self.config.eval_batches or None)

    def outputs(self, params: Any, batch: Batch) -> dict[str, Any]:
        return {}

    def evaluation(
        self, means: dict[str, float], outputs: Sequence[Mapping[str, np.ndarray]]
    ) -> Evaluation:
        return Evaluation(means | {"mlm_perplexity": float(np.exp(means["mlm_loss"]))}, {})

    def show(self, batch: dict[str, np.ndarray], row: int) -> str:
        return render_row(batch, row, self.data.tokenizer)

    def save(self, directory: epath.Path, found: Evaluation | None) -> None:
        self.data.tokenizer.save(directory)

    def check_tokenizer(self, tokenizer: Tokenizer | None, path: epath.Path) -> None:
        if tokenizer is None or tokenizer.fingerprint() != self.data.tokenizer.fingerprint():
            raise InputError(
                f"{path} was trained with another vocabulary than that of "
                f"{self.config.data['dir']}: prepare the corpus with the checkpoint's vocabulary."
            )

    @staticmethod
    def predict(config: Config, path: epath.Path, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Fills the `[MASK]`s of each line: text, then per mask its likeliest pieces."""
        tokenizer, objective = load_tokenizer(path), Objective(config)
        shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
        params = load_on_device(path, shapes)

        @jax.jit
        def probabilities(params: Any, batch: Batch) -> jax.Array:
            logits = objective.logits(params, batch, None)["mlm_logits"]
            return jax.nn.softmax(logits[0, :, : len(tokenizer.pieces)])

        for number, line in enumerate(lines, 1):
            text = line.strip()
            batch = _masked_row(text, number, tokenizer, config.model.max_positions)
            masks = np.flatnonzero(batch["mlm_weights"][0])
            likely = np.asarray(probabilities(params, batch))[masks]
            best = np.argsort(-likely, axis=-1, kind="stable")[:, :_BEST]
            ids = batch["token_ids"][0].copy()
            ids[batch["mlm_positions"][0, masks]] = best[:, 0]
            length = int(np.count_nonzero(batch["pack_ids"]))
            yield {
                "text": text,
                "filled": tokenizer.decode(ids[1 : length - 1].tolist()),
                "masks": [
                    [
                        {"piece": tokenizer.pieces[i], "probability": round(float(row[i]), 6)}
                        for i in order
                    ]
                    for row, order in zip(likely, best, strict=True)
                ],
            }

    @staticmethod
    def report(name: str, config: Config, directory: epath.Path) -> str:
        raise InputError(
            f"{directory} is an evaluation of pre-training, which scores.json says all of: give a "
            "workdir."
        )


def _masked_row(
    text: str, number: int, tokenizer: Tokenizer, max_positions: int
) -> dict[str, np.ndarray]:
    """A batch of one row; lengths and slots are powers of two, so that few shapes are compiled."""
    parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
    if len(parts) == 1:
        raise InputError(f"line {number} has no [MASK]: write one where a piece is to be found.")
    ids = [tokenizer.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [tokenizer.mask_id, *part]
    ids.append(tokenizer.sep_id)
    if len(ids) > max_positions:
        raise InputError(
            f"line {number} has {len(ids)} pieces and the model takes {max_positions}: shorten it."
        )
    length = min(max(16, 1 << (len(ids) - 1).bit_length()), max_positions)
    masks = np.flatnonzero(np.array(ids) == tokenizer.mask_id)
    slots = 1 << (len(masks) - 1).bit_length()

    def row(values: Any, size: int, dtype: Any = np.int32) -> np.ndarray:
        return np.pad(np.asarray(values, dtype), (0, size - len(values)))[None]

    return {
        "token_ids": row(ids, length),
        "type_ids": row([], length),
        "pack_ids": row(np.ones(len(ids)), length),
        "positions": row(np.arange(len(ids)), length),
        "mlm_positions": row(masks, slots),
        "mlm_weights": row(np.ones(len(masks)), slots, np.float32),
        "cls_positions": row([0], 1),
    }
