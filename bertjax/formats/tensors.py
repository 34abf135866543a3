"""BERT as others write it down: Hugging Face and TF1 directories, read and written.

Arrays are NumPy's here, and their names those that `names.py` lists side by side.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertjax.formats.parameter_names import ParameterMapping, parts, tensors
from bertjax.model.bert_config import LAYER_MIX_FIELDS, BertConfig
from bertjax.model.heads import HEADS, Head, check_modules_known
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

Tree = Mapping[str, Any]

# What tells masked pieces tells the next one where an encoder sees nothing behind it.
CAUSAL_LM_HEAD = dataclasses.replace(
    HEADS["mlm"],
    architecture="BertLMHeadModel",
    pipeline_tag="text-generation",
    auto_class="AutoModelForCausalLM",
)


@dataclasses.dataclass(frozen=True)
class NumpyModel:
    """A BERT on its way from one format to another.

    Attributes:
      params: nested dictionary of float32 NumPy arrays: "encoder" and the heads there are.
      tokenizer: None where it came without a vocabulary.
      unexpected_keys: names of what was not read: heads that bertjax does not have.
      labels: names of the outputs of a classifier or tagger, in the order of their numbers; empty
        without one, or where it gives a number.
      problem_type: `single_label_classification`, `multi_label_classification` or `regression`.
    """

    config: BertConfig
    params: Tree
    tokenizer: Tokenizer | None
    unexpected_keys: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    problem_type: str = "single_label_classification"

    @property
    def head(self) -> Head | None:
        """The head that says of what class the model is; None for the encoder alone."""
        found = next((HEADS[name] for name in reversed(HEADS) if name in self.params), None)
        return CAUSAL_LM_HEAD if self.config.causal and found == HEADS["mlm"] else found

    @property
    def labeled(self) -> str | None:
        """The name of the head whose outputs have labels; None without one."""
        return next(
            (name for name in self.params if name in HEADS and HEADS[name].has_labels), None
        )

    def tensors(self, format_name: str) -> dict[str, np.ndarray]:
        """The arrays under their names in a style, "hf" or "tf1".

        Raises:
          InputError: a head is not known, and would be lost.
        """
        check_modules_known(self.params, "the model")
        between = [n for n in LAYER_MIX_FIELDS if getattr(self.config, n) != getattr(BertConfig, n)]
        if between:
            raise InputError(
                f"the model has model.{between[0]}={getattr(self.config, between[0])!r}, which no "
                "other format has: leave it in bertjax's own."
            )
        return {
            tensor.name(format_name): tensor.convert_layout(_get(self.params, tensor), format_name)
            for tensor in tensors(self.config.num_hidden_layers, self.params)
        }


def params_from_arrays(
    found: Mapping[str, np.ndarray], config: BertConfig, format_name: str, architecture: str = ""
) -> tuple[Tree, tuple[str, ...]]:
    """Parameters from arrays of one style, and the names of those that are left out.

    Args:
      architecture: the class that it is of, which tells heads apart whose arrays have one name;
        without it they are those of the head that was registered first.
    Raises:
      InputError: one is missing or of another shape than the configuration says, or one is left
        over that belongs to the encoder.
    """
    known = {part: tensors(config.num_hidden_layers, [part]) for part in parts()}
    present = [
        part
        for part, each in known.items()
        if part == "encoder" or any(tensor.name(format_name) in found for tensor in each)
    ]
    for one in [part for part in present if part in HEADS]:
        names = {tensor.name(format_name) for tensor in known[one]}
        rivals = [part for part in present if names & {t.name(format_name) for t in known[part]}]
        named = [part for part in rivals if HEADS[part].architecture == architecture]
        present = [part for part in present if part not in rivals or part == (named or rivals)[0]]
    wanted = [tensor for part in present for tensor in known[part]]
    missing = [
        tensor.name(format_name) for tensor in wanted if tensor.name(format_name) not in found
    ]
    if missing:
        raise InputError(f"it lacks {_listed(missing)}: give a whole checkpoint of BERT.")
    unexpected_keys = sorted(found.keys() - {tensor.name(format_name) for tensor in wanted})
    strange = [name for name in unexpected_keys if name.startswith("bert")]
    if strange:
        raise InputError(
            f"its encoder has {_listed(strange)}, which BERT's has not: it is another model."
        )
    params: dict[str, Any] = {}
    stacks: dict[tuple[str, ...], list[np.ndarray]] = {}
    for tensor in wanted:
        array = tensor.convert_layout(
            np.asarray(found[tensor.name(format_name)], np.float32), format_name
        )
        if tensor.layer is None:
            _put(params, tensor.path, array)
        else:
            stacks.setdefault(tensor.path, []).append(array)
    for path, arrays in stacks.items():
        _put(params, path, np.stack(arrays))
    return params, tuple(unexpected_keys)


def _get(params: Tree, tensor: ParameterMapping) -> np.ndarray:
    node: Any = params
    for name in tensor.path:
        node = node[name]
    return np.asarray(node if tensor.layer is None else node[tensor.layer])


def _put(params: dict[str, Any], path: tuple[str, ...], array: np.ndarray) -> None:
    *parents, last = path
    for name in parents:
        params = params.setdefault(name, {})
    params[last] = array


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
