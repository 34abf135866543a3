"""Export of a model as ONNX, which onnxruntime and other programs run."""

from etils import epath

from bertjax.formats import huggingface
from bertjax.inference.export.program import Signature, load_source
from bertjax.mesh.sharding import named_leaves
from bertjax.workdir.draft import new_directory
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes

_MODEL_FILE = "model.onnx"
_MAX_PARAM_BYTES = 2_000_000_000  # a message of protobuf has at most 2 GiB


def write_onnx(
    checkpoint: epath.PathLike, output: epath.PathLike, task: str | None = None
) -> Signature:
    """Write a model as model.onnx with tokenizer files and config.json.

    It takes int64 arrays of any batch size and any length up to `max_position_embeddings`, and
    computes in float32.

    Args:
      checkpoint: model directory of any format.
      output: new or empty directory.
      task: task of the user that a published model was trained for.

    Raises:
      InputError: the checkpoint is not a model, ONNX cannot express it, or the directory is not
        empty.
    """
    from bertjax.inference.export.onnx_graph import make_onnx_model  # onnx is optional

    with new_directory(epath.Path(output), "--output") as directory:
        source = load_source(checkpoint, task)
        size = sum(leaf.nbytes for _, leaf in named_leaves(source.model.params))
        if size > _MAX_PARAM_BYTES:
            raise InputError(
                f"{checkpoint}: the parameters take {size:,} bytes, and a file of ONNX has at most "
                "2 GiB. Use --to savedmodel."
            )
        proto, signature = make_onnx_model(source)
        atomic_write_bytes(directory / _MODEL_FILE, proto.SerializeToString())
        huggingface.write_config(source.model, directory)
    return signature
