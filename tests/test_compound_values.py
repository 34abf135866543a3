"""Tests of values of fields that are one text with several parts."""

import pytest

from bertjax.config.compound_values import parse_init_layers, parse_loss_weights
from data_pipelines.errors import InputError


def test_init_layers_keep_their_order() -> None:
    assert parse_init_layers("4,0,2") == [4, 0, 2]


@pytest.mark.parametrize("value", ["", "0,", "a", "0-2", "-1", "0,0"])
def test_init_layers_rejects_other_texts(value: str) -> None:
    with pytest.raises(InputError, match=f"^init_layers={value!r}: "):
        parse_init_layers(value)


def test_loss_weights_are_those_of_named_heads() -> None:
    assert parse_loss_weights("", ("mlm",)) == {}
    assert parse_loss_weights("nsp=0.5", ("mlm", "nsp")) == {"nsp": 0.5}
    assert parse_loss_weights("nsp=0,mlm=2e-1", ("mlm", "nsp")) == {"nsp": 0, "mlm": 0.2}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nsp", "'nsp' is not a head and a factor of at least 0"),
        ("nsp=", "is not a head and a factor"),
        ("nsp=-1", "is not a head and a factor"),
        ("nsp=inf", "is not a head and a factor"),
        ("nsp=nan", "is not a head and a factor"),
        ("nsp=1,", "'' is not a head and a factor"),
        ("nsp=1,nsp=1", "'nsp' occurs twice. Use one of mlm, nsp, once"),
        ("sop=1", "'sop' is no head of the task. Use one of mlm, nsp"),
        ("mlm=0,nsp=0", "leave no loss"),
    ],
)
def test_loss_weights_rejects_other_texts(value: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"^loss_weights={value!r}: .*{problem}"):
        parse_loss_weights(value, ("mlm", "nsp"))
