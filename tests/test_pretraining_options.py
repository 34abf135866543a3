"""Tests of the options of pre-training batches."""

import dataclasses

import pytest

from data_pipelines.errors import InputError
from data_pipelines.pretraining.options import PretrainingOptions


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"max_seq_length": 7}, "^max_seq_length=7: below the minimum. Use at least 8"),
        ({"batch_size": 0}, "batch_size=0: below the minimum"),
        (
            {"max_predictions_per_seq": 0},
            "max_predictions_per_seq=0: below the minimum. Use at least 1",
        ),
        (
            {"max_predictions_per_seq": 65},
            "max_predictions_per_seq=65: above max_seq_length=64. Use at most 64",
        ),
        ({"max_examples_per_seq": 0}, "max_examples_per_seq=0: below the minimum"),
        (
            {"max_examples_per_seq": 2, "packing": False},
            "max_examples_per_seq=2: needs packing=True",
        ),
        ({"workers": 0}, "workers=0: below the minimum"),
        ({"dupe_factor": -1}, "dupe_factor=-1: below the minimum"),
        ({"objective": "nsp"}, "objective='nsp': unknown value. Choose one of mlm_nsp, mlm"),
        (
            {"masking": "whole"},
            "masking='whole': unknown value. Choose one of token, whole_word, span, entity",
        ),
        ({"random_tokens": "any"}, "random_tokens='any': unknown value"),
        ({"short_seq_prob": 1.5}, "short_seq_prob=1.5: not a probability"),
        ({"mlm_probability": -0.1}, "mlm_probability=-0.1: not a probability"),
        ({"mlm_probability": float("nan")}, "mlm_probability=nan: not a probability"),
        ({"mlm_probability": 0.0}, "mlm_probability=0.0: no token to predict"),
        ({"mlm_probability": "0.3..0"}, r"mlm_probability=0\.3\.\.0: no token to predict"),
        ({"mlm_probability": "0.3..1.5"}, r"mlm_probability=0\.3\.\.1\.5: not a probability"),
        ({"mlm_probability": "0.3..0.2..0.1"}, "mlm_probability='0.3..0.2..0.1': not a number"),
        ({"mlm_probability": "0.3.."}, "mlm_probability='0.3..': not a number"),
        (
            {"mlm_probability": "0.3..0.1", "dupe_factor": 2},
            r"mlm_probability=0\.3\.\.0\.1: changes, and dupe_factor=2 repeats masks",
        ),
        ({"full_sentences": True}, "full_sentences=True: needs objective=mlm and packing=True"),
        (
            {"mask_replace_prob": 0.95},
            "mask_replace_prob=0.95, random_replace_prob=0.1: sum 1.05 above 1. Make the sum at",
        ),
        (
            {"mask_replace_prob": 1.1, "random_replace_prob": -0.2},
            "mask_replace_prob=1.1: not a probability",
        ),
    ],
)
def test_options_reject_invalid_values(field, message):
    with pytest.raises(InputError, match=message) as error:
        PretrainingOptions(**({"max_seq_length": 64, "batch_size": 8} | field))
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("max_seq_length", "expected"), [(8, (8, 4, 1)), (64, (64, 12, 4)), (128, (128, 20, 8))]
)
def test_sequence_limits_depend_on_the_length(max_seq_length, expected):
    assert dataclasses.astuple(PretrainingOptions(max_seq_length, 8).sequence_limits) == expected


def test_sequence_limits_of_512_have_the_80_predictions_of_published_recipes():
    assert PretrainingOptions(512, 8).sequence_limits.predictions == 80


def test_sequence_limits_depend_on_the_masking_probability():
    assert PretrainingOptions(128, 8, mlm_probability=0.3).sequence_limits.predictions == 40
    assert PretrainingOptions(128, 8, mlm_probability=1.0).sequence_limits.predictions == 128


def test_sequence_limits_without_packing_have_one_example():
    assert PretrainingOptions(512, 8, packing=False).sequence_limits.examples == 1
