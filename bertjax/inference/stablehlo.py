"""A model as one program in StableHLO, which runs wherever JAX is, without bertjax."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from etils import epath
from jax import Array, export

from bertjax.mesh.sharding import make_mesh
from bertjax.model.encoder import Encoder
from bertjax.model.heads import HEADS
from bertjax.tasks import registry
from bertjax.training.initialization import PretrainedModel
from bertjax.version import __version__
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
# What a program takes: name, sizes, meaning; those after the third for pre-trained models alone.
_INPUTS = (
    ("input_ids", "b, t", "numbers of the pieces, 0 behind a text"),
    ("token_type_ids", "b, t", "0 in the first text and 1 in the second"),
    ("attention_mask", "b, t", "1 where there is a piece and 0 behind them"),
    ("masked_lm_positions", "b, m", "pieces that are asked for, such as those that are [MASK]"),
)

Apply = Callable[[dict[str, Array]], dict[str, Array]]


class _ExportedFunction(NamedTuple):
    """What is computed: from a batch to its outputs, and whether of pieces that are asked for."""

    apply: Apply
    reads_mlm_positions: bool


def write_stablehlo(checkpoint: epath.PathLike, output: epath.PathLike) -> dict[str, Any]:
    """Writes the program of a model with its parameters, and what it takes and gives beside it.

    The program takes int32 arrays of any number of rows b, a text or a pair each, and any length t
    up to `max_position_embeddings`. It is a `jax.export.Exported` for CPUs, GPUs and TPUs, serialized; the
    file beside it has the same name with ".json" after it, and holds what is returned.

    Raises:
      InputError: there is no such model, or it reads more than these arrays.
    """
    start = PretrainedModel(checkpoint)
    network = _load_function(start)
    inputs = _INPUTS if network.reads_mlm_positions else _INPUTS[:3]
    scope = export.SymbolicScope([f"t <= {start.model.max_position_embeddings}"])
    arguments = [
        jax.ShapeDtypeStruct(export.symbolic_shape(sizes, scope=scope), jnp.int32)
        for _, sizes, _ in inputs
    ]

    def program(*arrays: Array) -> dict[str, Array]:
        batch = dict(zip((name for name, _, _ in inputs), arrays, strict=True))
        places = jnp.arange(batch["input_ids"].shape[1], dtype=jnp.int32)
        batch["position_ids"] = jnp.broadcast_to(places, batch["input_ids"].shape)
        batch["example_ids"] = batch.pop("attention_mask")
        batch["cls_positions"] = jnp.zeros((batch["input_ids"].shape[0], 1), jnp.int32)
        return network.apply(batch)

    found = export.export(jax.jit(program), platforms=PLATFORMS)(*arguments)
    outputs = jax.tree.unflatten(found.out_tree, found.out_avals)
    about = {
        "format": "jax.export",
        "training_config": {"bertjax": __version__, "jax": jax.__version__},
        "platforms": list(found.platforms),
        "inputs": [
            {"name": name, "shape": sizes.split(", "), "dtype": "int32", "meaning": meaning}
            for name, sizes, meaning in inputs
        ],
        "outputs": [
            {
                "name": name,
                "shape": [n if isinstance(n, int) else str(n) for n in aval.shape],
                "dtype": aval.dtype.name,
            }
            for name, aval in outputs.items()
        ],
        "max_position_embeddings": start.model.max_position_embeddings,
        "labels": list(start.labels),
    }
    if start.tokenizer is not None:
        own = start.tokenizer
        about["special_tokens"] = {"[CLS]": own.cls_id, "[SEP]": own.sep_id, "[MASK]": own.mask_id}
    output = epath.Path(output)
    with atomic_write(output) as draft:
        draft.write_bytes(found.serialize())
    with atomic_write(epath.Path(f"{output}.json")) as draft:
        draft.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n")
    return about


def _load_function(start: PretrainedModel) -> _ExportedFunction:
    params = start.load_all(make_mesh(1, 1, 1, jax.devices()[:1]))
    if not any(part in HEADS for part in start.parts):
        encoder = Encoder(start.model)

        def embeddings(batch: dict[str, Array]) -> dict[str, Array]:
            names = ("input_ids", "token_type_ids", "example_ids", "position_ids")
            inputs = (batch[name] for name in names)
            own = {"params": params["encoder"]}
            return {"embeddings": cast(Array, encoder.apply(own, *inputs, deterministic=True))}

        return _ExportedFunction(embeddings, False)
    objective = registry.objective(start.config())
    start.check_complete(start.model, jax.eval_shape(objective.init_params, jax.random.key(0)))
    constants = objective.constants()

    def logits(batch: dict[str, Array]) -> dict[str, Array]:
        try:
            found = objective.apply(params, batch, None, constants)
        except KeyError as error:
            if error.args[0] not in objective.batch_shapes(1):
                raise  # of ours
            raise InputError(
                f"{start.path} reads {error} of its batches, which only its task knows: export "
                "models of bertjax's own tasks."
            ) from error
        # A row is one example, so that the axis of those that share it says nothing.
        pooled = {f"{head}_logits" for head in objective.heads if HEADS[head].pooled}
        return {name: each[:, 0] if name in pooled else each for name, each in found.items()}

    return _ExportedFunction(logits, "mlm" in objective.heads)
