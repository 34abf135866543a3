"""Export of a model as ONNX, which onnxruntime and other programs run."""

import json
import logging

from etils import epath

from bertjax.formats import huggingface
from bertjax.formats.detection import ONNX_FILE
from bertjax.formats.sentence_transformers import (
    find_pooling_config,
    read_projection,
    write_modules,
)
from bertjax.formats.tensors import PoolingConfig
from bertjax.inference.export.program import Signature, load_source
from bertjax.inference.export.quantization import Int8Gate, quantize
from bertjax.mesh.sharding import named_leaves
from bertjax.model.heads import PROJECTION
from bertjax.workdir.draft import new_directory
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes, atomic_write_text

_log = logging.getLogger("bertjax")
_QUANTIZATION_FILE = "quantization.json"
_MAX_PARAM_BYTES = 2_000_000_000  # a message of protobuf has at most 2 GiB


def write_onnx(
    checkpoint: epath.PathLike,
    output: epath.PathLike,
    task: str | None = None,
    int8: Int8Gate | None = None,
) -> Signature:
    """Write a model as model.onnx with tokenizer files and config.json.

    An encoder of sentence-transformers, or of the task `embeddings`, keeps its pooling: `bertjax`
    reads it, while the graph returns the vectors of tokens.

    It takes int64 arrays of any batch size and any length up to `max_position_embeddings`, and
    computes in float32.

    Args:
      checkpoint: model directory of any format.
      output: new or empty directory.
      task: task of the user that a published model was trained for.
      int8: examples whose answers may hardly change with int8 weights; None to write float32
        ones. What changed is written to quantization.json.

    Raises:
      InputError: the checkpoint is not a model, ONNX cannot express it, the directory is not
        empty, an example is invalid, or int8 changes too many answers.
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
        content = proto.SerializeToString()
        _check_graph(checkpoint, content)
        if int8 is not None:
            content = quantize(content)
        atomic_write_bytes(directory / ONNX_FILE, content)
        huggingface.write_config(source.model, directory)
        if not source.heads and (pooling := _find_pooling(checkpoint)):
            length = pooling.max_seq_length or source.model.max_text_length
            size = source.model.config.output_size
            projection = source.model.params.get(PROJECTION) or read_projection(checkpoint)
            pooling = pooling._replace(max_seq_length=length)
            write_modules(directory, pooling, size, projection)
        if int8 is not None:
            comparison = int8.check(checkpoint, directory, bool(source.heads))
            text = json.dumps({"weights": "int8", **comparison._asdict()}, indent=2)
            atomic_write_text(directory / _QUANTIZATION_FILE, f"{text}\n")
    return signature


def _check_graph(checkpoint: epath.PathLike, content: bytes) -> None:
    """Raise InputError if no runtime can read a graph, such as one of the user's functions."""
    import onnx

    try:
        onnx.checker.check_model(content, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise InputError(
            f"{checkpoint}: ONNX cannot express its functions ({error}). Use --to savedmodel."
        ) from None


def _find_pooling(checkpoint: epath.PathLike) -> PoolingConfig | None:
    try:
        return find_pooling_config(checkpoint)
    except InputError as error:
        _log.warning("%s The export does not state its pooling.", error)
        return None
