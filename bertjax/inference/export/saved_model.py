"""Export of a model as a SavedModel, which TensorFlow and TensorFlow Serving run."""

from typing import Any

import jax
from etils import epath
from jax import export
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager

from bertjax.formats import huggingface
from bertjax.inference.export.program import (
    PLATFORMS,
    ArraySpec,
    Signature,
    load_source,
    make_program,
    program_outputs,
)
from bertjax.workdir.draft import new_directory
from data_pipelines.errors import InputError

# Of the programs. TensorFlow 2.21 reads up to 1.13.7, earlier ones less. jax.export itself writes a
# version of the last weeks.
_STABLEHLO_VERSION = "1.10.0"
_COMPOSITES_TO_CALLS = "builtin.module(func.func(stablehlo-legalize-composite-to-call))"


def write_saved_model(
    checkpoint: epath.PathLike, output: epath.PathLike, task: str | None = None
) -> Signature:
    """Write a model as a SavedModel with tokenizer files and config.json.

    Its signature "serving_default" takes int32 arrays by name, of any batch size and any length up
    to `max_position_embeddings`. It runs on CPUs, GPUs and TPUs.

    Args:
      checkpoint: model directory of any format.
      output: new or empty directory.
      task: task of the user that a published model was trained for.

    Raises:
      InputError: the checkpoint is not a model, the model reads other arrays, the directory is not
        empty, or tensorflow is too old.
    """
    with new_directory(epath.Path(output), "--output") as directory:
        source = load_source(checkpoint, task)
        program, params = make_program(source, checkpoint), source.model.params
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
        run = jax.jit(program.run)
        exported = export.export(run, platforms=PLATFORMS)(shapes, *program.arguments)
        signature = Signature(program.inputs, program_outputs(exported))
        _save(exported, params, signature, directory)
        huggingface.write_config(source.model, directory)
    return signature


def _save(
    exported: export.Exported, params: Any, signature: Signature, directory: epath.Path
) -> None:
    """Save an exported function of parameters and inputs."""
    import tensorflow as tf  # takes seconds to import
    from tensorflow.compiler.tf2xla.python import xla

    version = exported.calling_convention_version
    if version > (newest := xla.call_module_maximum_supported_version()):
        raise InputError(
            f"tensorflow={tf.__version__}: runs JAX's programs up to calling convention {newest}, "
            f"and this JAX writes {version}. Upgrade tensorflow."
        )
    leaves = jax.tree.leaves(params)
    kept = [i for i in exported.module_kept_var_idx if i < len(leaves)]  # those that are read
    module = tf.Module()
    module.params = [tf.Variable(leaves[i], trainable=False) for i in kept]
    kept_inputs = [i - len(leaves) for i in exported.module_kept_var_idx if i >= len(leaves)]
    program = _serialize(exported)
    dtypes = [tf.as_dtype(x.dtype) for x in exported.out_avals]

    def tf_shape(spec: ArraySpec) -> list[int | None]:
        return [n if isinstance(n, int) else None for n in spec.shape]

    def serve(*arrays: Any) -> dict[str, Any]:
        outputs = xla.call_module(
            [*module.params, *(arrays[i] for i in kept_inputs)],
            version=version,
            module=program,
            Tout=dtypes,
            Sout=[tf_shape(spec) for spec in signature.outputs],
            platforms=[name.upper() for name in exported.platforms],
            has_token_input_output=False,
        )
        names = (spec.name for spec in signature.outputs)
        return dict(zip(names, outputs, strict=True))

    specs = [tf.TensorSpec(tf_shape(x), tf.int32, name=x.name) for x in signature.inputs]
    module.serve = tf.function(serve, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(directory), signatures=module.serve)


def _serialize(exported: export.Exported) -> bytes:
    """Return a program as TensorFlow reads it: of an earlier version, without composites.

    jax.export writes erf, of the activation "gelu", as a composite operation with a function that
    defines it. TensorFlow does not refine shapes within such functions, only in those called.
    """
    example: Any = jax.jit(lambda x: x).lower(0).compiler_ir("stablehlo")  # has all dialects
    stablehlo.register_stablehlo_passes()
    module = ir.Module.parse(exported.mlir_module(), example.context)
    PassManager.parse(_COMPOSITES_TO_CALLS, example.context).run(module.operation)
    return stablehlo.serialize_portable_artifact(module, _STABLEHLO_VERSION)
