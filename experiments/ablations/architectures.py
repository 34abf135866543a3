"""Architectures that the slides compare with BERT, each with as many parameters, as a table."""

from collections.abc import Mapping, Sequence

from bertjax.model.bert import param_shapes
from bertjax.model.bert_config import BertConfig
from experiments.ablations.tables import AblationTable, Finding, Variant
from experiments.pretraining import get_config

_LSTM_LAYERS = 2
_HEAD_SIZE = 64
CAPTION = (
    "ELMo-style, GPT-style and masked LM encoders of equal parameters and pre-training tokens "
    "(the ablation of the paper, section 5.1, and the slides)."
)


def count_parameters(config: BertConfig) -> int:
    """Return the number of parameters of an encoder without heads."""
    import jax

    return sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config)["encoder"]))


def fit_feed_forward(target: int, fields: Mapping[str, object]) -> BertConfig:
    """Return the encoder whose feed-forward size gives it about a number of parameters."""
    counts = [
        count_parameters(BertConfig(**fields, intermediate_size=size))  # type: ignore[arg-type]
        for size in (1, 2)
    ]
    size = 1 + max(0, round((target - counts[0]) / (counts[1] - counts[0])))
    return BertConfig(**fields, intermediate_size=size)  # type: ignore[arg-type]


def fit_encoders(size: str, vocab_size: int) -> dict[str, BertConfig]:
    """Return the masked LM, and the encoders of both kinds of pairs by `model.encoder`.

    Each encoder of a pair has half of the masked LM's parameters, its own embeddings among them, so
    that it is narrower. A transformer has half of the layers. The cells of an LSTM are wider than
    its projection, as in ELMo.
    """
    shape = get_config(model=size).model
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    fields: dict[str, object] = {name: shape[name] for name in names} | {"vocab_size": vocab_size}
    bert = BertConfig(**fields)  # type: ignore[arg-type]
    half = count_parameters(bert) // 2
    heads = max(1, bert.hidden_size * 3 // 4 // _HEAD_SIZE)
    narrow = {"hidden_size": heads * _HEAD_SIZE, "num_attention_heads": heads}
    layers = {"num_hidden_layers": max(1, bert.num_hidden_layers // 2)}
    pair = fit_feed_forward(half, fields | narrow | layers)
    heads = max(1, bert.hidden_size // 2 // _HEAD_SIZE)
    narrow = {"hidden_size": heads * _HEAD_SIZE, "num_attention_heads": heads}
    lstm: dict[str, object] = {"encoder": "lstm", "direction": "left_to_right"}
    lstm |= {"num_hidden_layers": _LSTM_LAYERS}
    return {
        "bert": bert,
        "transformer": pair,
        "lstm": fit_feed_forward(half, fields | narrow | lstm),
    }


def make_table(size: str, vocab_size: int) -> AblationTable:
    """Return the architectures, each fine-tuned and as features of a BiLSTM."""
    encoders = fit_encoders(size, vocab_size)
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
    rows = [variant.with_finetuning(*way) for variant in kinds for way in _WAYS]
    number = {row.name: i for i, row in enumerate(rows)}

    def finding(claim: str, better: str, worse: str, way: str) -> Finding:
        return Finding(f"{claim}, {way}", number[f"{better}, {way}"], number[f"{worse}, {way}"])

    findings: Sequence[Finding] = [
        finding(claim, better.name, worse.name, way)
        for way, _ in _WAYS
        for claim, better, worse in (
            ("both directions in one encoder help", kinds[0], kinds[1]),
            ("both directions in one encoder are better than in two", kinds[0], kinds[2]),
            ("two directions are better than one", kinds[2], kinds[1]),
            ("transformers are better than LSTMs", kinds[2], kinds[3]),
        )
    ]
    return AblationTable(CAPTION, rows, findings)


_WAYS: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("fine-tuned", {}),
    (
        "features",
        {
            "model.feature_layers": "0..-1",
            "model.feature_mix": "sum",
            "model.bilstm": "{width}",
        },
    ),
)
