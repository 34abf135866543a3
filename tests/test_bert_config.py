"""Configuration of the encoder: invalid fields and layers, defaults."""

import dataclasses

import pytest

from bertjax.model.bert_config import BertConfig, hidden_state_indices

CONFIG = BertConfig(120, 2, 32, 4, intermediate_size=96)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads=5: does not divide hidden_size=32"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"vocab_size": -1}, "vocab_size=-1"),
        ({"hidden_size": 32.0}, "hidden_size=32.0"),
        ({"intermediate_size": 0}, "intermediate_size=0"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob=1.0"),
        ({"attention_probs_dropout_prob": 0.999999}, "attention_probs_dropout_prob=0.999999"),
        ({"attention_probs_dropout_prob": 0.001}, "attention_probs_dropout_prob=0.001"),
        ({"attention_probs_dropout_prob": float("nan")}, "attention_probs_dropout_prob=nan"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob=-0.1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps=0.0"),
        ({"initializer_range": float("nan")}, "initializer_range=nan"),
        ({"hidden_act": "swish"}, "hidden_act='swish': unknown. Use gelu or gelu_tanh or relu"),
        ({"decoder": "suffix"}, "decoder='suffix': unknown. Use '' or prefix or masked_prefix"),
        (
            {"decoder": "prefix", "direction": "left_to_right"},
            "decoder='prefix': the source is bidirectional",
        ),
        ({"dtype": "float16"}, "dtype='float16': unknown. Use float32 or bfloat16"),
    ],
)
def test_bert_config_rejects_invalid_fields(fields, message):
    with pytest.raises(ValueError) as error:
        dataclasses.replace(CONFIG, **fields)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_feed_forward_size_defaults_to_four_times_hidden_size():
    assert BertConfig().feed_forward_size == 3072
    assert CONFIG.feed_forward_size == 96


@pytest.mark.parametrize("layer", [3, -4])
def test_hidden_state_indices_rejects_missing_layers(layer):
    with pytest.raises(ValueError, match=f"layer {layer}: not in a model of 2 layers. Use 0"):
        hidden_state_indices([1, layer], CONFIG.num_hidden_layers)
