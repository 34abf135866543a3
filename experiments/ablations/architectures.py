"""Architectures that the slides compare with BERT, each with as many parameters, as a table."""

import dataclasses
from collections.abc import Mapping, Sequence

from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError
from experiments.ablations.tables import AblationTable, Finding, Variant
from experiments.pretraining import get_config

_LSTM_LAYERS = 2
_HEAD_SIZE = 64
_CAPTION = (
    "ELMo-style, GPT-style and masked LM encoders with equally many parameters and tokens of "
    "pre-training (the comparison of the slides). Perplexities of masked and of other language "
    "models do not compare."
)
# Ways to use a model, with the fields of fine-tuning. A BiLSTM and a mix of layers start at random.
_WAYS: Mapping[str, Mapping[str, str]] = {
    "fine-tuned": {},
    "features": {
        "model.feature_layers": "0..-1",
        "model.feature_mix": "sum",
        "model.bilstm": "{width}",
        "optimizer.learning_rate": "1e-3",
    },
}
TABLE_FIELDS = ("vocab_size", "max_position_embeddings", "type_vocab_size")  # of all encoders


def count_parameters(config: BertConfig) -> int:
    """Return the number of parameters of an encoder without heads."""
    hidden, wide, layers = config.hidden_size, config.feed_forward_size, config.num_hidden_layers
    if config.encoder == "lstm":
        layer = 2 * hidden * 4 * wide + 4 * wide + wide * hidden
        return config.vocab_size * hidden + layers * layer
    rows = config.vocab_size + config.type_vocab_size + config.max_position_embeddings
    attention, norms = 4 * (hidden**2 + hidden), 4 * hidden
    layer = attention + norms + 2 * hidden * wide + wide + hidden
    return (rows + 2) * hidden + layers * layer  # 2: the LayerNorm of the embeddings


def fit_feed_forward(target: int, config: BertConfig) -> BertConfig | None:
    """Return the encoder with the feed-forward size that gives it about `target` parameters.

    None if it would be less than `hidden_size`.
    """
    one, two = (dataclasses.replace(config, intermediate_size=size) for size in (1, 2))
    fixed = count_parameters(one)
    size = 1 + round((target - fixed) / (count_parameters(two) - fixed))
    if size < config.hidden_size:
        return None
    return dataclasses.replace(config, intermediate_size=size)


def fit_encoders(size: str, table_fields: Mapping[str, int]) -> dict[str, BertConfig]:
    """Return the masked LM, and the encoders of both kinds of pairs by `model.encoder`.

    Each encoder of a pair has half of the masked LM's parameters, its own embeddings among them, so
    that it is narrower. A transformer has half of the layers. An LSTM has two.

    Args:
      size: size of the masked LM, as of `experiments/pretraining.py`.
      table_fields: values of `TABLE_FIELDS`.

    Raises:
      InputError: the embeddings leave no parameters for the layers of a pair.
      ValueError: there is no such size.
    """
    shape = get_config(model=size).model
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    fields: dict[str, int] = {name: shape[name] for name in names} | dict(table_fields)
    bert = BertConfig(**fields)  # type: ignore[arg-type]
    half, encoders = count_parameters(bert) // 2, {"bert": bert}
    layers = max(1, bert.num_hidden_layers // 2)
    for kind, changes, widest in (
        ("transformer", {"num_hidden_layers": layers}, bert.hidden_size * 3 // 4),
        (
            "lstm",
            {"num_hidden_layers": _LSTM_LAYERS, "encoder": "lstm", "direction": "left_to_right"},
            bert.hidden_size // 2,
        ),
    ):
        for heads in range(max(1, widest // _HEAD_SIZE), 0, -1):
            width = {"hidden_size": heads * _HEAD_SIZE, "num_attention_heads": heads}
            if fitted := fit_feed_forward(half, dataclasses.replace(bert, **width | changes)):
                encoders[kind] = fitted
                break
        else:
            raise InputError(
                f"with a vocabulary of {bert.vocab_size}, half of its parameters are too few for "
                "an encoder of a pair. Use a larger size or a smaller vocabulary."
            )
    return encoders


def make_table(size: str, table_fields: Mapping[str, int]) -> AblationTable:
    """Return the architectures, each fine-tuned and as features of a BiLSTM."""
    encoders = fit_encoders(size, table_fields)
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    fields = {
        kind: {f"model.{name}": str(getattr(config, name)) for name in names}
        | {"model.encoder": config.encoder}
        for kind, config in encoders.items()
        if kind != "bert"
    }
    fields["lstm"]["model.attention_init"] = "normal"  # some recipes have another one
    kinds = [
        Variant("masked LM", {"objective": "mlm"}),
        Variant("GPT-style", {"objective": "clm"}),
        Variant("ELMo-style pair of transformers", fields=fields["transformer"], is_pair=True),
        Variant("ELMo-style pair of LSTMs", fields=fields["lstm"], is_pair=True),
    ]
    rows = [variant.with_way(*way) for variant in kinds for way in _WAYS.items()]
    number = {row.name: i for i, row in enumerate(rows)}

    def finding(claim: str, better: str, worse: str, way: str) -> Finding:
        return Finding(f"{claim}, {way}", number[f"{better}, {way}"], number[f"{worse}, {way}"])

    findings: Sequence[Finding] = [
        finding(claim, better.name, worse.name, way)
        for way in _WAYS
        for claim, better, worse in (
            ("both directions in one encoder help", kinds[0], kinds[1]),
            ("both directions in one encoder are better than in two", kinds[0], kinds[2]),
            ("two directions are better than one", kinds[2], kinds[1]),
            ("transformers are better than LSTMs", kinds[2], kinds[3]),
        )
    ]
    return AblationTable(_CAPTION, rows, findings)
