"""Table of parameter names in bertjax, Hugging Face and google-research/bert (TF1)."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from bertjax.model.heads import HEADS

# Modules of the encoder and the pooler: bertjax, Hugging Face, TF1, kind. `bertjax.model.heads`
# lists those of heads. {} is the index of a layer.
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
"""  # noqa: E501 (one row a line)
# A decoder has those of an encoder, and these after "decoder/blocks/cross_attention" and
# "decoder.bert.encoder.layer.{}.crossattention". TF1 has no such model.
_CROSS_ATTENTION = (
    *((f"/{name}", f".self.{name}", "dense") for name in ("query", "key", "value")),
    ("/output", ".output.dense", "dense"),
    ("_norm", ".output.LayerNorm", "norm"),
)

# Arrays of each kind of module: suffixes in the three formats, and the formats that transpose it.
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
    """An array and its names.

    Attributes:
      path: path of the parameter in bertjax; a parameter of a block is stacked over layers.
      layer: index into that stack; None outside the blocks.
      hf: name in Hugging Face's format.
      tf1: name in TF1's format.
      transposed_formats: formats that store the transposed array.
    """

    path: tuple[str, ...]
    layer: int | None
    hf: str
    tf1: str
    transposed_formats: tuple[str, ...]

    def name(self, format_name: str) -> str:
        """Return the name in the format "hf" or "tf1"."""
        return self.hf if format_name == "hf" else self.tf1

    def convert_layout(self, array: np.ndarray, format_name: str) -> np.ndarray:
        """Return the array in the layout of a format, or convert it back from there.

        It is contiguous: safetensors writes the memory of an array and ignores its strides.
        """
        is_transposed = format_name in self.transposed_formats
        return np.ascontiguousarray(array.T if is_transposed else array)


def parameter_mappings(
    num_hidden_layers: int, selected_modules: Iterable[str]
) -> list[ParameterMapping]:
    """Return the arrays of some modules; those of the blocks layer by layer."""
    selected_modules = set(selected_modules)
    modules = [line.split() for line in _MODULES.strip().splitlines()]
    modules += [
        [ours.replace("encoder", "decoder", 1), f"decoder.{hf}", f"decoder/{tf1}", kind]
        for ours, hf, tf1, kind in modules
        if ours.startswith("encoder/")
    ]
    cross_attention = "decoder.bert.encoder.layer.{}.crossattention"
    modules += [
        [f"decoder/blocks/cross_attention{ours}", f"{cross_attention}{hf}", "", kind]
        for ours, hf, kind in _CROSS_ATTENTION
    ]
    modules += [list(names) for head in HEADS.values() for names in head.module_names]
    mappings = []
    for ours, hf, tf1, kind in modules:
        for end, hf_end, tf1_end, transposed_formats in _ARRAYS[kind]:
            path = tuple((ours + end).split("/"))
            if path[0] in selected_modules:
                for layer in range(num_hidden_layers) if "{}" in hf else (None,):
                    names = (hf + hf_end).format(layer), (tf1 + tf1_end).format(layer)
                    # The TF1 classifier has no variable scope.
                    names = names[0], names[1].removeprefix("/")
                    mappings.append(
                        ParameterMapping(path, layer, *names, tuple(transposed_formats.split()))
                    )
    return mappings
