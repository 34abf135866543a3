"""Computation of a pipeline's batches by onnxruntime."""

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from etils import epath

from bertjax.mesh.finite import check_finite
from bertjax.model.decoder.options import Decoding
from bertjax.model.heads import HEADS
from bertjax.tasks.pipeline import HostBatch
from data_pipelines.errors import InputError
from data_pipelines.parallel import usable_cores

if TYPE_CHECKING:
    import onnxruntime

_INPUTS = ("input_ids", "token_type_ids", "attention_mask", "masked_lm_positions")
_LENGTH_MULTIPLE = 8  # tokens; texts of similar length are computed together


class _Texts(NamedTuple):
    """The texts of a batch, several of which may share a sequence; each array is int64 [N].

    Attributes:
      rows: sequence of each text.
      columns: its first position there.
      lengths: its number of tokens.
      slots: its place among the texts of its sequence, from 0.
    """

    rows: np.ndarray
    columns: np.ndarray
    lengths: np.ndarray
    slots: np.ndarray


class TextGroup(NamedTuple):
    """Texts of similar length, each a row of its own, with their outputs.

    Attributes:
      texts: where they are in the batch.
      is_token: bool [N, L], False at padding.
      positions: int64 [N, L], position of each token in its sequence of the batch.
      masks: int64 [N, M], prediction slots of each text, -1 after its last; None without any.
      outputs: by name, [N, L, ...] of tokens, [N, M, ...] of prediction slots, [N, ...] of texts.
    """

    texts: _Texts
    is_token: np.ndarray
    positions: np.ndarray
    masks: np.ndarray | None
    outputs: dict[str, np.ndarray]


class OnnxRunner:
    """A model that `bertjax export --to onnx` wrote, as the run function of its pipeline.

    Args:
      content: the graph.
      path: its file, for errors.

    Attributes:
      output_sizes: size of the last axis of each output by its name.

    Raises:
      InputError: onnxruntime cannot read the graph, or the graph has other inputs than an export.
    """

    def __init__(self, content: bytes, path: epath.PathLike) -> None:
        import onnxruntime  # optional

        try:
            self._session = onnxruntime.InferenceSession(content, _session_options())
        except Exception as error:  # its classes of errors share no other base
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"{path}: onnxruntime cannot read it: {reason}. Export it again."
            ) from error
        self._inputs = tuple(array.name for array in self._session.get_inputs())
        if others := [name for name in self._inputs if name not in _INPUTS]:
            raise InputError(
                f"{path}: reads {others[0]!r}, which no export of bertjax does. Give the model "
                "from which it was exported."
            )
        outputs = self._session.get_outputs()
        self.output_sizes = {array.name: array.shape[-1] for array in outputs}

    def __call__(
        self, batches: Iterable[HostBatch], decoding: Decoding | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the outputs of each batch, as the objective's `apply` returns them; 0 at padding.

        Raises:
          InputError: a target is to be generated.
          CommandError: an output is not finite.
        """
        if decoding is not None:
            raise InputError("an ONNX model generates no targets. Predict with bertjax.")
        for batch in batches:
            outputs: dict[str, np.ndarray] = {}
            for group in self.run_groups(batch):
                _add_outputs(outputs, batch, group)
            for name, array in outputs.items():
                check_finite(array, name)
            yield outputs

    def run_groups(self, batch: HostBatch) -> Iterator[TextGroup]:
        """Yield the texts of a batch in groups of similar length, with their outputs."""
        texts = _find_texts(batch["example_ids"])
        padded = -(-texts.lengths // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE
        for length in sorted(set(padded.tolist())):
            chosen = np.flatnonzero(padded == length)
            yield self._run_group(batch, _Texts(*(array[chosen] for array in texts)))

    def _run_group(self, batch: HostBatch, texts: _Texts) -> TextGroup:
        offsets = np.arange(texts.lengths.max())
        is_token = offsets < texts.lengths[:, None]
        positions = np.where(is_token, texts.columns[:, None] + offsets, 0)
        rows = texts.rows[:, None]
        arrays = {
            name: np.where(is_token, batch[name][rows, positions], 0)
            for name in ("input_ids", "token_type_ids")
        }
        arrays["attention_mask"] = is_token
        masks = _find_masks(batch, texts) if "masked_lm_positions" in self._inputs else None
        if masks is not None:
            masked = batch["masked_lm_positions"][rows, masks] - texts.columns[:, None]
            arrays["masked_lm_positions"] = np.where(masks >= 0, masked, 0)
        feed = {name: arrays[name].astype(np.int64) for name in self._inputs}
        results = self._session.run(None, feed)
        outputs = dict(zip(self.output_sizes, results, strict=True))
        return TextGroup(texts, is_token, positions, masks, outputs)


def _add_outputs(outputs: dict[str, np.ndarray], batch: HostBatch, group: TextGroup) -> None:
    """Put the outputs of some texts where they are in the batch."""
    texts, masks = group.texts, group.masks
    for name, result in group.outputs.items():
        head = HEADS.get(name.removesuffix("_logits"))
        if head is not None and head.pooled:
            sizes, index = batch["cls_positions"].shape, (texts.rows, texts.slots)
        elif head is not None and head.positions_key:
            assert masks is not None
            used = np.nonzero(masks >= 0)
            sizes = batch["masked_lm_positions"].shape
            index, result = (texts.rows[used[0]], masks[used]), result[used]
        else:
            used = np.nonzero(group.is_token)
            sizes = batch["input_ids"].shape
            index, result = (texts.rows[used[0]], group.positions[used]), result[used]
        shape = *sizes, *result.shape[1:]
        outputs.setdefault(name, np.zeros(shape, result.dtype))[index] = result


def _session_options() -> "onnxruntime.SessionOptions":
    """Return options with a thread for each core that this process is limited to.

    By default onnxruntime starts a thread for each physical core of the machine, and these threads
    wait actively, for each other if they share a core.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    if (cores := usable_cores()) < (os.cpu_count() or 1):
        options.intra_op_num_threads = cores
    return options


def _find_texts(example_ids: np.ndarray) -> _Texts:
    """Return the texts of int [B, T]: runs of a positive number in a row."""
    rows, columns = np.nonzero(example_ids > 0)
    ids = example_ids[rows, columns]
    is_first = np.ones(len(rows), bool)
    is_first[1:] = (rows[1:] != rows[:-1]) | (ids[1:] != ids[:-1])
    starts = np.flatnonzero(is_first)
    lengths = np.append(starts[1:], len(rows)) - starts
    return _Texts(rows[starts], columns[starts], lengths, ids[starts] - 1)


def _find_masks(batch: HostBatch, texts: _Texts) -> np.ndarray:
    """Return the prediction slots of each text, int [N, M], with -1 after the last."""
    positions = batch["masked_lm_positions"][texts.rows]
    ends = texts.columns + texts.lengths
    is_own = (positions >= texts.columns[:, None]) & (positions < ends[:, None])
    width = max(1, int(is_own.sum(axis=1).max()))
    # A stable sort moves the slots of the text, in their order, to the front.
    order = np.argsort(~is_own, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(is_own, order, axis=1), order, -1)
