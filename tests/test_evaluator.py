"""Evaluation sums over all batches before it divides, and computes as training does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config.config import Config, MeshConfig
from bertjax.mesh.sharding import AXES
from bertjax.steps.objective import Objective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks.task import Evaluation
from bertjax.training.evaluator import make_evaluator

EIGHT, CUBE = MeshConfig(8, 1, 1), MeshConfig(2, 2, 2)


class Mean(Objective):
    """The mean of what rows hold, times a parameter."""

    eval_outputs = ("doubled",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.traced_in: list[tuple[str, ...]] = []
        self.passes = 0

    def batch_shapes(self, rows):
        row = jax.ShapeDtypeStruct((rows,), jnp.float32)
        return {"value": row, "weight": row}

    def forward_flops(self, rows):
        return 0.0

    def init_params(self, key):
        return {"factor": jnp.float32(1)}

    def apply(self, params, batch, key, constants):
        self.traced_in.append(jax.sharding.get_abstract_mesh().axis_names)
        return {"doubled": batch["value"] * params["factor"], "other": batch["value"]}

    def sums(self, outputs, batch):
        return {"row_loss": (jnp.sum(outputs["doubled"]), jnp.sum(batch["weight"]))}


class Rows:
    """Held-out rows that hold numbers; 0 is padding."""

    def __init__(self, name: str, *batches: list[float]) -> None:
        self.name, self._batches = name, batches

    def batches(self):
        for values in self._batches:
            weight = np.array([value != 0 for value in values], np.float32)
            yield {"value": np.array(values, np.float32), "weight": weight}

    def evaluation(self, means, outputs):
        scores = {
            "mean": means["row_loss"],
            "largest": max(each["doubled"].max() for each in outputs),
        }
        return Evaluation(scores, {"outputs": [each["doubled"].tolist() for each in outputs]})


class Task:
    primary_metrics = ("largest",)

    def __init__(self, mesh: MeshConfig, *sets: Rows) -> None:
        self.config = Config(batch_size=8, mesh=mesh)
        self.objective, self._sets = Mean(self.config), sets

    def eval_sets(self):
        return self._sets


def evaluate(task: Task, *factors: float) -> Evaluation:
    evaluator = make_evaluator(task, StepFunctions(task.config, task.objective))
    return evaluator({"factor": jnp.float32(factor)} for factor in factors)


def test_every_row_counts_once_whatever_batch_it_is_in() -> None:
    rows = Rows("dev", [1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 0, 0, 0, 0, 0, 0])
    found = evaluate(Task(EIGHT, rows), 2)
    assert found.scores == pytest.approx({"loss": 10, "row_loss": 10, "mean": 10, "largest": 18})


def test_a_task_gets_its_outputs_of_all_rows_batch_by_batch() -> None:
    found = evaluate(Task(CUBE, Rows("dev", [1, 2] * 4, [3, 0] * 4)), 2)
    assert found.files == {"outputs": [[2, 4] * 4, [6, 0] * 4]}


def test_members_of_an_ensemble_are_averaged_before_scoring() -> None:
    found = evaluate(Task(CUBE, Rows("dev", [1, 2] * 4, [3, 0] * 4)), 1, 2, 6)
    assert found.files == {"outputs": [[3, 6] * 4, [9, 0] * 4]}
    assert found.scores == pytest.approx({"loss": 6, "row_loss": 6, "mean": 6, "largest": 9})


def test_several_sets_have_scores_of_their_own_and_headlines_together() -> None:
    rows = Rows("one", [1] * 8), Rows("two", [4] * 8, [4] * 8)
    found = evaluate(Task(CUBE, *rows), 1)
    assert found.scores == pytest.approx(
        {"loss": 3, "row_loss": 3, "largest": 2.5}
        | {"one/mean": 1, "one/largest": 1, "two/mean": 4, "two/largest": 4}
    )
    assert found.files.keys() == {"one.outputs", "two.outputs"}


def test_how_far_it_is_is_told_now_and_then(monkeypatch) -> None:
    told: list[str] = []
    task = Task(EIGHT, Rows("dev", [1] * 8, [2] * 8))
    evaluator = make_evaluator(task, StepFunctions(task.config, task.objective), told.append)
    evaluator([{"factor": jnp.float32(1)}])
    assert told == []
    monkeypatch.setattr("bertjax.training.evaluator._PROGRESS_SECONDS", -1.0)
    evaluator([{"factor": jnp.float32(1)}])
    assert [each.partition(" after")[0] for each in told] == ["dev: batch 1", "dev: batch 2"]


def test_without_held_out_sets_there_are_no_scores() -> None:
    assert evaluate(Task(EIGHT), 1) is None


def test_one_forward_pass_gives_sums_and_outputs_in_the_context_of_its_mesh() -> None:
    task = Task(CUBE, Rows("dev", [1] * 8))
    evaluate(task, 1)
    assert task.objective.traced_in == [AXES]
