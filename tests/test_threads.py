"""The Python interface in several threads at once."""

import pathlib

import pytest
from conftest import run_python
from test_interface import write_model

# On one device: programs for several devices must start in one order.
PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
import jax, numpy as np
import bertjax

assert jax.device_count() == 1
model, alone = bertjax.load(sys.argv[1]), bertjax.load(sys.argv[1])
texts = ["ba", "ki " * 20, "do"]
expected = {text: (alone.classify(text), alone.encode(text)) for text in texts}

def call(thread):
    ordered = [texts[(thread + number) % len(texts)] for number in range(12)]
    return [(text, model.classify(text), model.encode(text)) for text in ordered]

with ThreadPoolExecutor(8) as threads:  # the first calls compile in all threads at once
    results = [result for part in threads.map(call, range(8)) for result in part]
for text, answer, embedding in results:
    right, right_embedding = expected[text]
    assert answer["label"] == right["label"], (answer, right)
    assert abs(answer["score"] - right["score"]) < 1e-5, (answer, right)
    np.testing.assert_allclose(embedding, right_embedding, rtol=0, atol=1e-5)
print(len(results))
"""


@pytest.mark.slow
def test_model_answers_several_threads_at_once(tmp_path: pathlib.Path) -> None:
    path = write_model(tmp_path / "model", "classify")
    assert run_python(PROGRAM, str(path)).split() == ["96"]
