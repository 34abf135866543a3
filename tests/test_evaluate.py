"""Evaluation sums over all batches before it divides, and computes as training does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.mesh.sharding import AXES, make_mesh
from bertjax.runs.evaluate import make_evaluator
from bertjax.tasks.contract import Evaluation


class Rows:
    """A task whose loss is the mean of what the rows hold."""

    def __init__(self, *batches: list[float]) -> None:
        self.batches, self.traced_in = batches, []

    def loss(self, params, batch, key):
        self.traced_in.append(jax.sharding.get_abstract_mesh().axis_names)
        return {"row_loss": (jnp.sum(batch["value"] * params), jnp.sum(batch["weight"]))}

    def eval_batches(self):
        for values in self.batches:
            weight = np.array([value != 0 for value in values], np.float32)
            yield {"value": np.array(values, np.float32), "weight": weight}

    def outputs(self, params, batch):
        return {"doubled": batch["value"] * params}

    def evaluation(self, means, outputs):
        return Evaluation(means, {"outputs": [each["doubled"].tolist() for each in outputs]})


def test_every_row_counts_once_whatever_batch_it_is_in() -> None:
    task = Rows([1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 0, 0, 0, 0, 0, 0])
    found = make_evaluator(task, make_mesh(-1, 1, 1))([jnp.float32(2)])
    assert found.scores == pytest.approx({"loss": 10, "row_loss": 10})


def test_a_task_gets_its_outputs_of_all_rows_batch_by_batch() -> None:
    found = make_evaluator(Rows([1, 2] * 4, [3, 0] * 4), make_mesh(2, 2, 2))([jnp.float32(2)])
    assert found.files == {"outputs": [[2, 4] * 4, [6, 0] * 4]}


def test_members_of_an_ensemble_are_averaged_before_scoring() -> None:
    members = (jnp.float32(value) for value in (1, 2, 6))
    found = make_evaluator(Rows([1, 2] * 4, [3, 0] * 4), make_mesh(2, 2, 2))(members)
    assert found.files == {"outputs": [[3, 6] * 4, [9, 0] * 4]}
    assert found.scores == pytest.approx({"loss": 6, "row_loss": 6})


def test_without_batches_there_are_no_scores() -> None:
    assert make_evaluator(Rows(), make_mesh(-1, 1, 1))([jnp.float32(1)]) is None


def test_it_is_traced_in_the_context_of_its_mesh() -> None:
    task = Rows([1] * 8)
    make_evaluator(task, make_mesh(2, 2, 2))([jnp.float32(1)])
    assert task.traced_in == [AXES]
