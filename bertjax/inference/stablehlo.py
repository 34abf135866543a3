"""Export of a model as a StableHLO program, which runs with JAX and without bertjax."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from etils import epath
from jax import Array, export

from bertjax.mesh.device_mesh import make_mesh
from bertjax.model.heads import HEADS, check_modules_known
from bertjax.tasks import registry
from bertjax.tasks.embeddings import apply_encoder
from bertjax.training.initialization import PretrainedModel
from bertjax.version import __version__
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes, atomic_write_text

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# Inputs of a program: name, shape, description. The last one is for MLM heads only.
_INPUTS = (
    ("input_ids", "b, t", "token ids, 0 for padding"),
    ("token_type_ids", "b, t", "0 for sentence A, 1 for sentence B"),
    ("attention_mask", "b, t", "1 for tokens, 0 for padding"),
    ("masked_lm_positions", "b, m", "positions to predict, such as those of [MASK]"),
)

Apply = Callable[[dict[str, Array]], dict[str, Array]]


def write_stablehlo(checkpoint: epath.PathLike, output: epath.PathLike) -> dict[str, Any]:
    """Write a model with its parameters as a serialized `jax.export.Exported`.

    The program takes int32 arrays [b, t] with any batch size b and any length t up to
    `max_position_embeddings`, and runs on CPUs, GPUs and TPUs. A file with the suffix ".json"
    describes it.

    Args:
      checkpoint: model directory of any format.
      output: file of the program.

    Returns:
      The content of the JSON file.

    Raises:
      InputError: the checkpoint is not a model, or the model reads other arrays.
    """
    pretrained = PretrainedModel(checkpoint)
    apply, reads_mlm_positions = _load_function(pretrained)
    inputs = _INPUTS if reads_mlm_positions else _INPUTS[:3]
    scope = export.SymbolicScope([f"t <= {pretrained.bert_config.max_position_embeddings}"])
    arguments = [
        jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), jnp.int32)
        for _, sizes, _ in inputs
    ]

    def program(*arrays: Array) -> dict[str, Array]:
        batch = dict(zip((name for name, _, _ in inputs), arrays, strict=True))
        positions = jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32)
        batch["position_ids"] = jnp.broadcast_to(positions, batch["input_ids"].shape)
        batch["example_ids"] = batch.pop("attention_mask")
        batch["cls_positions"] = jnp.zeros((batch["input_ids"].shape[0], 1), jnp.int32)
        return apply(batch)

    exported = export.export(jax.jit(program), platforms=PLATFORMS)(*arguments)
    outputs = jax.tree.unflatten(exported.out_tree, exported.out_avals)
    metadata = {
        "format": "jax.export",
        "versions": {"bertjax": __version__, "jax": jax.__version__},
        "platforms": list(exported.platforms),
        "inputs": [
            {"name": name, "shape": sizes.split(", "), "dtype": "int32", "description": text}
            for name, sizes, text in inputs
        ],
        "outputs": [
            {
                "name": name,
                "shape": [n if isinstance(n, int) else str(n) for n in aval.shape],
                "dtype": aval.dtype.name,
            }
            for name, aval in outputs.items()
        ],
        "max_position_embeddings": pretrained.bert_config.max_position_embeddings,
        "labels": list(pretrained.labels),
    }
    if (tokenizer := pretrained.tokenizer) is not None:
        metadata["special_tokens"] = {
            "[CLS]": tokenizer.cls_id,
            "[SEP]": tokenizer.sep_id,
            "[MASK]": tokenizer.mask_id,
        }
    output = epath.Path(output)
    atomic_write_bytes(output, bytes(exported.serialize()))
    text = json.dumps(metadata, indent=1, ensure_ascii=False)
    atomic_write_text(f"{output}.json", f"{text}\n")
    return metadata


def _load_function(pretrained: PretrainedModel) -> tuple[Apply, bool]:
    """Return the function from a batch to its outputs, and whether it predicts tokens."""
    check_modules_known(pretrained.parts, pretrained.path)
    if pretrained.bert_config.encoder == "lstm":
        raise InputError(
            f"{pretrained.path}: an LSTM's loop has a fixed length, and texts of a program have "
            "any. Predict with bertjax."
        )
    params = pretrained.load_all(make_mesh(1, 1, 1, jax.devices()[:1]))
    if not any(part in HEADS for part in pretrained.parts):

        def encode(batch: dict[str, Array]) -> dict[str, Array]:
            return {"last_hidden_state": apply_encoder(pretrained.bert_config, params, batch)}

        return encode, False
    objective = registry.make_objective(pretrained.config())
    shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
    pretrained.check_complete(pretrained.bert_config, shapes)
    constants = objective.constants()

    def logits(batch: dict[str, Array]) -> dict[str, Array]:
        try:
            outputs = objective.apply(params, batch, None, constants)
        except KeyError as error:
            if error.args[0] not in objective.batch_shapes(1):
                raise  # a fault of bertjax
            raise InputError(
                f"{pretrained.path}: its task reads {error} of a batch, which a program cannot. "
                "Export a model of a built-in task."
            ) from error
        # A sequence is one example: drop the axis of examples that share a sequence.
        pooled = {f"{head}_logits" for head in objective.heads if HEADS[head].pooled}
        return {name: x[:, 0] if name in pooled else x for name, x in outputs.items()}

    return logits, "mlm" in objective.heads
