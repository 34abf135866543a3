"""One table of names: a parameter here, at Hugging Face and in the original TF1 code."""

import dataclasses
from collections.abc import Iterable

import numpy as np

# Modules: here, at Hugging Face, in TF1, and of which kind. {} is the number of a layer.
_MODULES = """
encoder/embeddings/word         bert.embeddings.word_embeddings                  bert/embeddings/word_embeddings                  table
encoder/embeddings/type         bert.embeddings.token_type_embeddings            bert/embeddings/token_type_embeddings            table
encoder/embeddings/position     bert.embeddings.position_embeddings              bert/embeddings/position_embeddings              table
encoder/embeddings/norm         bert.embeddings.LayerNorm                        bert/embeddings/LayerNorm                        norm
encoder/blocks/attention/query  bert.encoder.layer.{}.attention.self.query       bert/encoder/layer_{}/attention/self/query       dense
encoder/blocks/attention/key    bert.encoder.layer.{}.attention.self.key         bert/encoder/layer_{}/attention/self/key         dense
encoder/blocks/attention/value  bert.encoder.layer.{}.attention.self.value       bert/encoder/layer_{}/attention/self/value       dense
encoder/blocks/attention/output bert.encoder.layer.{}.attention.output.dense     bert/encoder/layer_{}/attention/output/dense     dense
encoder/blocks/attention_norm   bert.encoder.layer.{}.attention.output.LayerNorm bert/encoder/layer_{}/attention/output/LayerNorm norm
encoder/blocks/feed_forward/up  bert.encoder.layer.{}.intermediate.dense         bert/encoder/layer_{}/intermediate/dense         dense
encoder/blocks/feed_forward/down bert.encoder.layer.{}.output.dense              bert/encoder/layer_{}/output/dense               dense
encoder/blocks/feed_forward_norm bert.encoder.layer.{}.output.LayerNorm          bert/encoder/layer_{}/output/LayerNorm           norm
pooler/transform                bert.pooler.dense                                bert/pooler/dense                                dense
mlm/transform                   cls.predictions.transform.dense                  cls/predictions/transform/dense                  dense
mlm/norm                        cls.predictions.transform.LayerNorm              cls/predictions/transform/LayerNorm              norm
mlm                             cls.predictions                                  cls/predictions                                  bias
nsp                             cls.seq_relationship                             cls/seq_relationship                             output
span                            qa_outputs                                       cls/squad                                        output
"""  # noqa: E501

# Arrays of a kind of module: their suffixes in the same three, and where they are transposed.
_ARRAYS: dict[str, list[tuple[str, str, str, str]]] = {
    "table": [("", ".weight", "", "")],
    "norm": [("/scale", ".weight", "/gamma", ""), ("/bias", ".bias", "/beta", "")],
    "dense": [("/kernel", ".weight", "/kernel", "hf"), ("/bias", ".bias", "/bias", "")],
    "output": [
        ("/kernel", ".weight", "/output_weights", "hf tf1"),
        ("/bias", ".bias", "/output_bias", ""),
    ],
    "bias": [("/bias", ".bias", "/output_bias", "")],
}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """An array of the table.

    Attributes:
      path: of the parameter here; that of a block holds the arrays of all layers.
      layer: its number there; None outside the blocks.
    """

    path: tuple[str, ...]
    layer: int | None
    hf: str
    tf1: str
    transposed: tuple[str, ...]

    def name(self, style: str) -> str:
        """Its name in a style, "hf" or "tf1"."""
        return self.hf if style == "hf" else self.tf1

    def turned(self, array: np.ndarray, style: str) -> np.ndarray:
        """The array as a style has it, from the one here, or the other way round."""
        return np.ascontiguousarray(array.T) if style in self.transposed else array


def _read_table() -> list[tuple[str, str, str, tuple[str, ...]]]:
    rows = []
    for line in _MODULES.strip().splitlines():
        ours, hf, tf1, kind = line.split()
        for end, hf_end, tf1_end, transposed in _ARRAYS[kind]:
            rows.append((ours + end, hf + hf_end, tf1 + tf1_end, tuple(transposed.split())))
    return rows


_TABLE = _read_table()
PARTS = tuple(dict.fromkeys(ours.partition("/")[0] for ours, *_ in _TABLE))
"""The encoder, and every head that has a name elsewhere."""


def tensors(num_layers: int, parts: Iterable[str]) -> list[Tensor]:
    """The arrays of some of `PARTS`, those of the blocks layer by layer."""
    wanted, found = set(parts), []
    for ours, hf, tf1, transposed in _TABLE:
        path = tuple(ours.split("/"))
        if path[0] in wanted:
            for layer in range(num_layers) if "{}" in hf else (None,):
                names = hf.format(layer), tf1.format(layer)
                found.append(Tensor(path, layer, *names, transposed))
    return found
