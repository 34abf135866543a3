"""Text functions take linear time on pathological texts, as `experiments.bench.text_time` measures.

A function of quadratic time needs minutes for such texts, so the limit fits every machine.
"""

import pathlib

import pytest

pytest.importorskip("mwparserfromhell", reason="needs pip install 'bertjax[wikipedia]'")

from experiments.bench.text_time import PATTERNS, make_text, seconds, text_functions

SIZE, SECONDS = 10_000, 10.0  # characters; processor time of a function on all patterns: about 1
FAST = {"encode, cased", "encode_with_offsets, cased"}


@pytest.mark.seconds
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in FAST))
        for name in text_functions(pathlib.Path("unused"))
    ],
)
def test_text_function_takes_linear_time(name: str, tmp_path) -> None:
    function = text_functions(tmp_path)[name]
    times = {pattern: seconds(function, make_text(pattern, SIZE)) for pattern in PATTERNS}
    assert len(times) >= 20
    assert sum(times.values()) < SECONDS, max(times, key=lambda pattern: times[pattern])
