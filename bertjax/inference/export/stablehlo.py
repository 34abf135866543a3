"""Export of a model as a StableHLO program, which runs with JAX and without bertjax."""

import functools
import json

import jax
from etils import epath
from jax import export

from bertjax.inference.export.program import (
    PLATFORMS,
    Signature,
    load_source,
    make_program,
    program_outputs,
)
from bertjax.version import __version__
from data_pipelines.paths import atomic_write_bytes, atomic_write_text


def write_stablehlo(
    checkpoint: epath.PathLike, output: epath.PathLike, task: str | None = None
) -> Signature:
    """Write a model with its parameters as a serialized `jax.export.Exported`.

    The program takes int32 arrays [b, t] with any batch size b and any length t up to
    `max_position_embeddings`, and runs on CPUs, GPUs and TPUs. A file with the suffix ".json"
    describes it.

    Args:
      checkpoint: model directory of any format.
      output: file of the program.
      task: task of the user that a published model was trained for.

    Raises:
      InputError: the checkpoint is not a model, or the model reads other arrays.
    """
    source = load_source(checkpoint, task)
    model, program = source.model, make_program(source, checkpoint)
    run = jax.jit(functools.partial(program.run, model.params))
    exported = export.export(run, platforms=PLATFORMS)(*program.arguments)
    signature = Signature(program.inputs, program_outputs(exported))
    label_sets = {
        f"{head}_logits": names for head, names in model.config.split_labels(model.labels).items()
    }
    metadata = {
        "format": "jax.export",
        "versions": {"bertjax": __version__, "jax": jax.__version__},
        "platforms": list(exported.platforms),
        "inputs": [
            {"name": x.name, "shape": x.shape, "dtype": "int32", "description": x.description}
            for x in signature.inputs
        ],
        "outputs": [
            {"name": x.name, "shape": x.shape, "dtype": aval.dtype.name}
            for x, aval in zip(signature.outputs, exported.out_avals, strict=True)
        ],
        "max_position_embeddings": model.config.max_position_embeddings,
        "max_seq_length": model.max_text_length,
        "labels": label_sets or model.labels,
    }
    if (tokenizer := model.tokenizer) is not None:
        metadata["special_tokens"] = {
            "[CLS]": tokenizer.cls_id,
            "[SEP]": tokenizer.sep_id,
            "[MASK]": tokenizer.mask_id,
        }
    output = epath.Path(output)
    atomic_write_bytes(output, bytes(exported.serialize()))
    text = json.dumps(metadata, indent=1, ensure_ascii=False)
    atomic_write_text(f"{output}.json", f"{text}\n")
    return signature
