"""Schemas of JSON files, bounded reads, and messages of one line."""

import os
import pathlib
import re
from typing import Any

import pytest
from etils import epath

from data_pipelines import schema
from data_pipelines.errors import InputError
from data_pipelines.schema import check_schema, read_json_object

SCHEMA: dict[str, Any] = {
    "size": int,
    "rate?": float,
    "names?": [str],
    "labels?": ({str: str}, [str]),
    "inner?": {"flag": bool, "any?": object},
}


@pytest.mark.parametrize(
    "value",
    [
        {"size": 1},
        {"size": 1, "rate": 2, "names": [], "labels": ["a"], "inner": {"flag": False}},
        {"size": -(2**62), "rate": None, "labels": {"0": "a"}, "unknown": object()},
    ],
)
def test_check_schema_accepts_values_of_the_types(value: Any) -> None:
    check_schema("", value, SCHEMA, "")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "not an object"),
        ({}, "size: missing"),
        ({"size": None}, "size: missing"),
        ({"size": True}, "size=True: not a whole number"),
        ({"size": 1.0}, "size=1.0: not a whole number"),
        ({"size": 1 << 63}, "size=9223372036854775808: not a whole number"),
        ({"size": 1, "rate": float("inf")}, "rate=inf: not a number"),
        ({"size": 1, "names": [1]}, "names[0]=1: not a text"),
        ({"size": 1, "names": "ab"}, "names='ab': not a list"),
        ({"size": 1, "labels": 5}, "labels=5: not an object or a list"),
        ({"size": 1, "labels": {"0": 5}}, "labels={'0': 5}: not an object or a list"),
        ({"size": 1, "inner": {"flag": 0}}, "inner.flag=0: not true or false"),
    ],
)
def test_check_schema_names_the_value_of_another_type(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=f"^FILE: {re.escape(problem)}. Fix it.$"):
        check_schema("FILE: ", value, SCHEMA, "Fix it.")


def test_read_json_object_rejects_what_is_no_regular_file(tmp_path, monkeypatch) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "zero").symlink_to("/dev/zero")
    for path in (fifo, tmp_path / "zero", tmp_path):
        with pytest.raises(InputError, match=r"not a regular file. Fix it."):
            read_json_object(epath.Path(path), {}, "Fix it.")
    with pytest.raises(InputError, match=r"cannot be read \(No such file"):
        read_json_object(epath.Path(tmp_path / "none"), {}, "")
    (tmp_path / "large").write_text('{"a": 1}')
    monkeypatch.setattr(schema, "MAX_FILE_BYTES", 7)
    with pytest.raises(InputError, match="larger than"):
        read_json_object(epath.Path(tmp_path / "large"), {}, "")


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"a": NaN', b"1" * 5000])
def test_read_json_object_rejects_damage(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(InputError, match=r"x\.json: (not JSON|byte 0 is not UTF-8)"):
        read_json_object(epath.Path(tmp_path / "x.json"), {}, "")


def test_input_error_is_one_line_of_500_printable_characters() -> None:
    message = str(InputError(f"a={'x' * 10**6}: is long. Shorten it."))
    assert len(message) == 500 and message.startswith("a=xxx") and message.endswith("Shorten it.")
    assert str(InputError("a\nb\x1b[31m\u202e")) == r"a b\x1b[31m\u202e"
    assert len(str(InputError("\x1b" * 500))) <= 500
