"""One table of names: a parameter here, at Hugging Face and in the original TF1 code."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bertjax.model.heads import HEADS

# Modules of the encoder and the pooler: here, at Hugging Face, in TF1, and of which kind; those of
# heads stand with the heads. {} is the number of a layer.
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
class ParameterMapping:
    """An array of the table.

    Attributes:
      path: of the parameter here; that of a block holds the arrays of all layers.
      layer: its number there; None outside the blocks.
    """

    path: tuple[str, ...]
    layer: int | None
    hf: str
    tf1: str
    transposed_formats: tuple[str, ...]

    def name(self, format_name: str) -> str:
        """Its name in a style, "hf" or "tf1"."""
        return self.hf if format_name == "hf" else self.tf1

    def convert_layout(self, array: np.ndarray, format_name: str) -> np.ndarray:
        """The array as a style has it, from the one here, or the other way round."""
        return np.ascontiguousarray(array.T) if format_name in self.transposed_formats else array


def parts() -> tuple[str, ...]:
    """The encoder, the pooler and every head, as they follow each other in a file."""
    return ("encoder", "pooler", *HEADS)


def tensors(num_hidden_layers: int, selected_modules: Iterable[str]) -> list[ParameterMapping]:
    """The arrays of some of `parts`, those of the blocks layer by layer."""
    selected_modules = set(selected_modules)
    modules = [line.split() for line in _MODULES.strip().splitlines()]
    modules += [list(names) for head in HEADS.values() for names in head.names]
    found = []
    for ours, hf, tf1, kind in modules:
        for end, hf_end, tf1_end, transposed_formats in _ARRAYS[kind]:
            path = tuple((ours + end).split("/"))
            if path[0] in selected_modules:
                for layer in range(num_hidden_layers) if "{}" in hf else (None,):
                    names = (hf + hf_end).format(layer), (tf1 + tf1_end).format(layer)
                    # The original's classifier lies in no scope.
                    names = names[0], names[1].removeprefix("/")
                    found.append(
                        ParameterMapping(path, layer, *names, tuple(transposed_formats.split()))
                    )
    return found
