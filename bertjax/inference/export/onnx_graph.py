"""BERT as a graph of ONNX operators, computed in float32."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from bertjax.formats.tensors import NumpyModel
from bertjax.inference.export.onnx_builder import Graph
from bertjax.inference.export.onnx_heads import add_head
from bertjax.inference.export.program import ArraySpec, Signature, Source, signature_inputs
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS, PROJECTION, LinearHead
from bertjax.steps.objective import Objective
from bertjax.tasks import registry
from bertjax.version import __version__
from data_pipelines.errors import InputError

# The first operator set with Gelu; onnxruntime 1.17 (2024) and later run it. The IR version is the
# one of its release.
OPSET, IR_VERSION = 20, 9
_READ_FIELDS = (  # of BertConfig
    *("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "hidden_act", "layer_norm_eps", "num_labels"),
    "label_counts",
)
_TRAINING_FIELDS = (  # change nothing that a model computes, or its speed and precision alone
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
    *("attention_init", "dtype", "scan_layers", "remat", "sampled_softmax"),
)
_FIX = "Use --to stablehlo or savedmodel."


def make_onnx_model(source: Source) -> tuple[onnx.ModelProto, Signature]:
    """Return the graph of a model and its inputs and outputs.

    Inputs are int64. Tokens attend to the tokens whose `attention_mask` is positive, as in Hugging
    Face's classes.

    Raises:
      InputError: the graph cannot express the model.
    """
    model, heads = source.model, source.heads
    _check_supported(source)
    inputs = signature_inputs(heads)
    graph = Graph(model.params)
    outputs = _add_outputs(graph, model, heads, inputs)
    if unread := sorted(graph.params.keys() - graph.read):
        module = unread[0].rpartition("/")[0]
        # An encoder returns all tokens: its linear layers after them are not in the graph.
        if module.partition("/")[0] not in ("pooler", PROJECTION):
            raise InputError(f"module {module!r}: the ONNX format does not support it. {_FIX}")
    declared_inputs = _declare(inputs, TensorProto.INT64)
    declared_outputs = _declare(outputs, TensorProto.FLOAT)
    proto = helper.make_model(
        helper.make_graph(
            graph.nodes, "bert", declared_inputs, declared_outputs, graph.initializers
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="bertjax",
        producer_version=__version__,
    )
    helper.set_model_props(proto, {"max_seq_length": str(model.max_text_length)})
    return proto, Signature(inputs, outputs)


def _declare(specs: Sequence[ArraySpec], dtype: int) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(spec.name, dtype, spec.shape) for spec in specs]


def _check_supported(source: Source) -> None:
    """Check that the graph computes what a model does, also one with fields of later versions."""
    config = source.model.config
    for field in dataclasses.fields(BertConfig):
        value = getattr(config, field.name)
        known = (*_READ_FIELDS, *_TRAINING_FIELDS)
        if field.name not in known and value != field.default:
            raise InputError(
                f"model.{field.name}={value!r}: the ONNX format does not support it. {_FIX}"
            )
    if source.config is not None and (task := source.config.task) not in registry.TASKS:
        objective = registry.find_task(task).objective_class
        if objective.apply is not Objective.apply:
            raise InputError(
                f"task={task!r}: {objective.__name__}.apply is not that of bertjax, and the ONNX "
                f"format does not support it. {_FIX}"
            )


def _add_outputs(
    graph: Graph, model: NumpyModel, heads: Sequence[str], inputs: Sequence[ArraySpec]
) -> tuple[ArraySpec, ...]:
    config = model.config
    if not heads:
        _add_encoder(graph, config, output="last_hidden_state")
        return (ArraySpec("last_hidden_state", ("b", "t", config.hidden_size)),)
    hidden = _add_encoder(graph, config)
    pooled = ""
    if any(HEADS[name].pooled for name in heads):
        cls = graph.add("Gather", hidden, graph.constant(np.int64(0)), axis=1)
        pooled = graph.add("Tanh", graph.dense(cls, "pooler/transform"))
    outputs = []
    for name in heads:
        output = f"{name}_logits"
        if name == "mlm":
            _add_masked_lm(graph, config, hidden, output)
            outputs.append(ArraySpec(output, ("b", "m", config.vocab_size)))
            continue
        is_pooled = HEADS[name].pooled
        vectors = pooled if is_pooled else hidden
        is_linear = type(HEADS[name].module(config, name=name)) is LinearHead
        if not is_linear or HEADS[name].positions_key:
            outputs.append(add_head(graph, model, name, vectors, inputs, _FIX))
            continue
        graph.dense(vectors, name, output=output)
        size = graph.params[f"{name}/bias"].shape[0]
        outputs.append(ArraySpec(output, ("b", size) if is_pooled else ("b", "t", size)))
    return tuple(outputs)


def _add_encoder(graph: Graph, config: BertConfig, output: str = "") -> str:
    """Add the encoder; return the name of its vectors [b, t, H]."""
    table = "encoder/embeddings"
    length = graph.add("Shape", "input_ids", start=1, end=2)
    start, axis = graph.ints(0), graph.ints(0)
    vectors = [
        graph.add("Gather", graph.param(f"{table}/word"), "input_ids"),
        graph.add("Gather", graph.param(f"{table}/type"), "token_type_ids"),
        graph.add("Slice", graph.param(f"{table}/position"), start, length, axis),
    ]
    x = functools.reduce(functools.partial(graph.add, "Add"), vectors)
    x = graph.layer_norm(x, f"{table}/norm", config.layer_norm_eps)
    mask = _add_mask(graph)
    for layer in range(config.num_hidden_layers):
        update = _add_attention(graph, config, x, mask, layer)
        x = graph.add("Add", x, update)
        x = graph.layer_norm(x, "encoder/blocks/attention_norm", config.layer_norm_eps, layer)
        wide = graph.dense(x, "encoder/blocks/feed_forward/up", layer)
        wide = graph.activation(wide, config.hidden_act)
        x = graph.add("Add", x, graph.dense(wide, "encoder/blocks/feed_forward/down", layer))
        x = graph.layer_norm(x, "encoder/blocks/feed_forward_norm", config.layer_norm_eps, layer)
    return graph.add("Identity", x, output=output) if output else x


def _add_mask(graph: Graph) -> str:
    """Add the mask as a summand of scores; return its name [b, 1, 1, t]."""
    is_token = graph.add("Greater", "attention_mask", graph.constant(np.int64(0)))
    is_token = graph.add("Unsqueeze", is_token, graph.ints(1, 2))
    lowest = graph.constant(np.finfo(np.float32).min)
    return graph.add("Where", is_token, graph.constant(np.float32(0)), lowest)


def _add_attention(graph: Graph, config: BertConfig, x: str, mask: str, layer: int) -> str:
    """Add self-attention of x [b, t, H]; return the name of its output [b, t, H]."""
    module, head_size = "encoder/blocks/attention", config.hidden_size // config.num_attention_heads
    # In a shape 0 copies the size of the input.
    split = graph.ints(0, 0, config.num_attention_heads, head_size)
    merged = graph.ints(0, 0, config.hidden_size)

    def heads(name: str, *axes: int) -> str:
        vectors = graph.add("Reshape", graph.dense(x, f"{module}/{name}", layer), split)
        return graph.add("Transpose", vectors, perm=axes)

    scores = graph.add("MatMul", heads("query", 0, 2, 1, 3), heads("key", 0, 2, 3, 1))
    scores = graph.add("Mul", scores, graph.constant(np.float32(head_size**-0.5)))
    weights = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
    context = graph.add("MatMul", weights, heads("value", 0, 2, 1, 3))
    context = graph.add("Reshape", graph.add("Transpose", context, perm=(0, 2, 1, 3)), merged)
    return graph.dense(context, f"{module}/output", layer)


def _add_masked_lm(graph: Graph, config: BertConfig, hidden: str, output: str) -> None:
    """Add the logits of the vocabulary at `masked_lm_positions`, [b, m, V]."""
    indices = graph.add("Unsqueeze", "masked_lm_positions", graph.ints(2))
    x = graph.add("GatherND", hidden, indices, batch_dims=1)
    x = graph.activation(graph.dense(x, "mlm/transform"), config.hidden_act)
    x = graph.layer_norm(x, "mlm/norm", config.layer_norm_eps)
    # Gemm multiplies by the word embeddings [V, H] without a transposed copy of them.
    rows = graph.add("Reshape", x, graph.ints(-1, config.hidden_size))
    params = graph.param("encoder/embeddings/word"), graph.param("mlm/bias")
    logits = graph.add("Gemm", rows, *params, transB=1)
    sizes = graph.add("Shape", "masked_lm_positions")
    shape = graph.add("Concat", sizes, graph.ints(config.vocab_size), axis=0)
    graph.add("Reshape", logits, shape, output=output)
