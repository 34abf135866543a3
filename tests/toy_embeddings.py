"""Small data sets for training embeddings, and tasks with their first batches."""

import itertools
import pathlib
from typing import Any

import toy_tasks

from bertjax.tasks.embeddings.task import EmbeddingsTask

SCORED = ["anchor,other,score\n", *(f"ba do,{'ba ' * i}ki,{i / 8}\n" for i in range(8))]


def write_data(path: pathlib.Path) -> None:
    """Write pairs, scored pairs, triplets with two negatives, and texts alone."""
    toy_tasks.write_data(path)
    (path / "scored.csv").write_text("".join(SCORED))
    texts = [f"{first} {second}" for first, second in itertools.permutations(toy_tasks.WORDS, 2)]
    toy_tasks.write_lines(path / "texts.jsonl", [{"sentence": text} for text in texts])
    triplets = [
        {"q": f"ba {t}", "a": f"do {t}", "negatives": [f"ki {t}", f"lu {t}"]} for t in texts
    ]
    toy_tasks.write_lines(path / "triplets.jsonl", triplets)


def prepare(folder: pathlib.Path, **overrides: Any) -> EmbeddingsTask:
    """Return a task with the batches of three steps."""
    fields = {"steps": 3, "optimizer__warmup": 1, **overrides}
    task = EmbeddingsTask(toy_tasks.configuration("embeddings", folder, **fields).resolve(300))
    task.prepare(3)
    return task
