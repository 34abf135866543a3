"""Models as NumPy arrays, the common form of all formats; `parameter_names.py` maps their names."""

import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.formats.inference_settings import InferenceSettings
from bertjax.formats.parameter_names import parameter_mappings
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS, Head, check_modules_known
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

Tree = Mapping[str, Any]

# `BertForPreTraining` has an MLM head, too.
_NSP_HEAD = dataclasses.replace(
    HEADS["nsp"],
    architecture="BertForNextSentencePrediction",
    pipeline_tag="next-sentence-prediction",
    auto_class="AutoModelForNextSentencePrediction",
)
# By decoder, or by mask of the attention. The MLM head predicts the next token in a decoder or a
# left-to-right encoder. No class of `transformers` has the mask "prefix".
_MLM_HEADS = {
    **dict.fromkeys(("bidirectional", "right_to_left"), HEADS["mlm"]),
    "left_to_right": dataclasses.replace(
        HEADS["mlm"],
        architecture="BertLMHeadModel",
        pipeline_tag="text-generation",
        auto_class="AutoModelForCausalLM",
    ),
    **dict.fromkeys(
        ("prefix", "masked_prefix"),
        dataclasses.replace(HEADS["mlm"], pipeline_tag="text-generation"),
    ),
    "cross_attention": dataclasses.replace(
        HEADS["mlm"],
        architecture="EncoderDecoderModel",
        pipeline_tag="text2text-generation",
        auto_class="AutoModelForSeq2SeqLM",
    ),
}


class PoolingConfig(NamedTuple):
    """Settings of a model of sentence-transformers.

    Attributes:
      model: directory of the encoder.
      pooling: see `bertjax.model.pooling`.
      normalize: whether embeddings are scaled to length 1.
      max_seq_length: largest number of tokens of a text; None if unspecified.
      do_lower_case: whether texts are lower-cased before they are tokenized.
      prompt: text before each text; its tokens are pooled too.
      query_prompt: text before each query of a retrieval.
      document_prompt: text before each document.
      projection_size: components that a linear layer computes of a pooled vector; 0 without one.
    """

    model: epath.Path
    pooling: str
    normalize: bool
    max_seq_length: int | None
    do_lower_case: bool = False
    prompt: str = ""
    query_prompt: str = ""
    document_prompt: str = ""
    projection_size: int = 0


@dataclasses.dataclass(frozen=True)
class NumpyModel:
    """A BERT model as NumPy arrays, independent of its format.

    Attributes:
      config: architecture.
      params: nested dictionary of float32 arrays: "encoder", "decoder", "pooler" and heads.
        Parameters of blocks are stacked over layers on axis 0.
      tokenizer: None for a model without a vocabulary.
      unexpected_keys: names of arrays that were not read, of heads that bertjax lacks.
      labels: label names of the classification head in the order of their ids; empty without
        such a head, or for regression.
      problem_type: `single_label_classification`, `multi_label_classification` or `regression`.
      max_seq_length: tokens of a text, special ones included, at which training cut it; None if
        unknown.
      pooling: how an encoder of sentence-transformers, or of a run of embeddings, embeds texts;
        None for another model.
      history: what made the parameters, as far as it is known: a line for each run and each change,
        the oldest first.
      inference: settings of its run that change answers; None if unknown.
    """

    config: BertConfig
    params: Tree
    tokenizer: Tokenizer | None
    unexpected_keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    problem_type: str = "single_label_classification"
    max_seq_length: int | None = None
    pooling: PoolingConfig | None = None
    history: tuple[str, ...] = ()
    inference: InferenceSettings | None = None

    @property
    def max_text_length(self) -> int:
        """Tokens at which a text is cut, at most `max_position_embeddings`."""
        positions = self.config.max_position_embeddings
        return min(self.max_seq_length or positions, positions)

    @property
    def head(self) -> Head | None:
        """The head whose class an export names, the last registered one; None without heads."""
        name = next((name for name in reversed(HEADS) if name in self.params), "")
        if name == "mlm":
            return _MLM_HEADS[self.config.decoder or self.config.mask_kind]
        return _NSP_HEAD if name == "nsp" and "mlm" not in self.params else HEADS.get(name)

    @property
    def labeled_head(self) -> str | None:
        """Name of the head whose outputs have labels; None without one."""
        return next(
            (name for name in self.params if name in HEADS and HEADS[name].has_label_names), None
        )

    def named_arrays(self, format_name: str) -> dict[str, np.ndarray]:
        """Return the arrays by their names in the format "hf" or "tf1".

        Raises:
          InputError: a head is unknown and would be lost, two heads have an array of the same
            name, or only bertjax has such a model.
        """
        check_modules_known(self.params, "the model")
        if name := self.config.unpublished_field:
            raise InputError(
                f"model.{name}={getattr(self.config, name)!r}: only the bertjax format supports "
                "it. Keep the model in that format."
            )
        if self.config.mask_kind == "prefix":
            for module in self.params:
                if module in HEADS and module != "mlm":
                    raise InputError(
                        f"model.decoder={self.config.decoder!r}: the attention of other formats is "
                        f"bidirectional, and the {HEADS[module].display_name} reads it. Keep the "
                        "model in the bertjax format."
                    )
        arrays: dict[str, np.ndarray] = {}
        for mapping in parameter_mappings(self.config.num_hidden_layers, self.params):
            name = mapping.name(format_name)
            if name in arrays:
                raise InputError(
                    f"{format_name} name {name!r}: two heads have it. Give one another name in "
                    "its `module_names`."
                )
            leaf = np.asarray(functools.reduce(operator.getitem, mapping.path, self.params))
            array = leaf if mapping.layer is None else leaf[mapping.layer]
            arrays[name] = mapping.convert_layout(array, format_name)
        return arrays


def params_from_arrays(
    arrays: Mapping[str, np.ndarray],
    config: BertConfig,
    format_name: str,
    path: epath.PathLike,
    architecture: str = "",
) -> tuple[Tree, tuple[str, ...]]:
    """Return the parameters of a model in another format.

    `bertjax.formats.loading.read_model` compares their shapes with the configuration.

    Args:
      arrays: arrays by their names in the format.
      config: architecture of the model.
      format_name: "hf" or "tf1".
      path: directory of the model, for errors.
      architecture: class of the model; see `_select_heads`.

    Returns:
      The parameters as in `NumpyModel`, and the names of the arrays that belong to none of them.

    Raises:
      InputError: an array is missing, layers have arrays of different shapes, or the encoder has an
        array that BERT lacks.
    """
    backbone = ("encoder", "decoder") if config.has_cross_attention else ("encoder",)
    modules = (*backbone, "pooler", *HEADS)  # in their order in a file
    mappings = {m: parameter_mappings(config.num_hidden_layers, [m]) for m in modules}
    names = {
        module: {mapping.name(format_name) for mapping in mappings[module]} for module in mappings
    }
    present = [module for module in mappings if module in backbone or names[module] & arrays.keys()]
    present = _select_heads(present, names, architecture)
    expected = [mapping for module in present for mapping in mappings[module]]
    missing = [name for mapping in expected if (name := mapping.name(format_name)) not in arrays]
    if missing:
        others = sorted(arrays.keys() - {name for group in names.values() for name in group})
        found = f" and has {_abbreviate(others)}" if others else ""
        raise InputError(
            f"{path}: lacks {_abbreviate(missing)}{found}. Give a complete checkpoint of BERT."
        )
    unexpected_keys = sorted(arrays.keys() - {mapping.name(format_name) for mapping in expected})
    foreign = [name for name in unexpected_keys if name.startswith(("bert", "decoder."))]
    if foreign:
        raise InputError(
            f"{path}: has {_abbreviate(foreign)}, which BERT lacks. Give a BERT model."
        )
    params: dict[str, Any] = {}
    stacks: dict[tuple[str, ...], list[np.ndarray]] = {}
    for mapping in expected:
        array = np.asarray(arrays[mapping.name(format_name)], np.float32)
        array = mapping.convert_layout(array, format_name)
        if mapping.layer is None:
            _put(params, mapping.path, array)
        else:
            stacks.setdefault(mapping.path, []).append(array)
    for keys, layers in stacks.items():
        shapes = {array.shape for array in layers}
        if len(shapes) > 1:
            raise InputError(
                f"{path}: {'/'.join(keys)} has the shapes {', '.join(map(str, sorted(shapes)))} in "
                "different layers. Give a model whose layers have one shape."
            )
        _put(params, keys, np.stack(layers))
    return params, tuple(unexpected_keys)


def _select_heads(
    present: list[str], names: Mapping[str, set[str]], architecture: str
) -> list[str]:
    """Keep one of the heads that share array names.

    It is that of the model's class `architecture`, or else the one that was registered first.

    Args:
      present: modules with an array in the model.
      names: names of the arrays of each module.
      architecture: class of the model; "" if unknown.
    """
    selected = present
    for head in [module for module in present if module in HEADS]:
        sharing = [module for module in selected if names[head] & names[module]]
        matching = [module for module in sharing if HEADS[module].architecture == architecture]
        dropped = set(sharing) - set((matching or sharing)[:1])
        selected = [module for module in selected if module not in dropped]
    return selected


def _put(params: dict[str, Any], path: tuple[str, ...], array: np.ndarray) -> None:
    *parents, last = path
    for name in parents:
        params = params.setdefault(name, {})
    params[last] = array


def _abbreviate(names: list[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
