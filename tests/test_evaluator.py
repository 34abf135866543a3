"""Tests of the evaluator: it sums over all batches before it divides."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from conftest import in_test_all
from pretraining_runs import make_run_config
from toy_squad import questions
from toy_tasks import configuration

from bertjax.config.config import Config, MeshConfig
from bertjax.config.user_functions import import_function
from bertjax.mesh.device_mesh import AXES
from bertjax.steps.objective import Objective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.question_answering.evaluation import QuestionAnsweringEvalSet
from bertjax.tasks.task import Evaluation
from bertjax.training.evaluator import check_best_metric, make_evaluator
from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import read_squad

EIGHT, CUBE = MeshConfig(8, 1, 1), MeshConfig(2, 2, 2)


class Mean(Objective):
    """The mean of the values of a batch, times a parameter."""

    eval_outputs = ("doubled",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.traced_in: list[tuple[str, ...]] = []
        self.passes = 0

    def batch_shapes(self, batch_size):
        shape = jax.ShapeDtypeStruct((batch_size,), jnp.float32)
        return {"value": shape, "weight": shape}

    def forward_flops(self, batch_size):
        return 0.0

    def init_params(self, key):
        return {"factor": jnp.float32(1)}

    def apply(self, params, batch, key, constants):
        self.traced_in.append(jax.sharding.get_abstract_mesh().axis_names)
        return {"doubled": batch["value"] * params["factor"], "other": batch["value"]}

    def sums(self, outputs, batch):
        return {"row_loss": (jnp.sum(outputs["doubled"]), jnp.sum(batch["weight"]))}


class Numbers:
    """An eval set of numbers; 0 is padding."""

    def __init__(self, name: str, *batches: list[float]) -> None:
        self.name, self._batches = name, batches

    def batches(self):
        for values in self._batches:
            weight = np.array([value != 0 for value in values], np.float32)
            yield {"value": np.array(values, np.float32), "weight": weight}

    def evaluation(self, means, outputs):
        scores = {
            "mean": means["row_loss"],
            "largest": max(batch["doubled"].max() for batch in outputs),
        }
        return Evaluation(scores, {"outputs": [batch["doubled"].tolist() for batch in outputs]})


class StubTask:
    primary_metrics = ("largest",)

    def __init__(self, mesh: MeshConfig, *sets: Numbers) -> None:
        self.config = Config(batch_size=8, mesh=mesh)
        self.objective, self._sets = Mean(self.config), sets

    def eval_sets(self):
        return self._sets


def evaluate(task: StubTask, *factors: float) -> Evaluation:
    evaluator = make_evaluator(task, StepFunctions(task.config, task.objective))
    return evaluator({"factor": jnp.float32(factor)} for factor in factors)


def test_evaluator_weights_every_example_once() -> None:
    numbers = Numbers("dev", [1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 0, 0, 0, 0, 0, 0])
    evaluation = evaluate(StubTask(EIGHT, numbers), 2)
    assert evaluation.scores == pytest.approx(
        {"loss": 10, "row_loss": 10, "mean": 10, "largest": 18}
    )


def test_eval_set_takes_the_outputs_of_all_sequences_by_batch() -> None:
    evaluation = evaluate(StubTask(CUBE, Numbers("dev", [1, 2] * 4, [3, 0] * 4)), 2)
    assert evaluation.files == {"outputs": [[2, 4] * 4, [6, 0] * 4]}


def test_evaluator_averages_an_ensemble_before_scoring() -> None:
    evaluation = evaluate(StubTask(CUBE, Numbers("dev", [1, 2] * 4, [3, 0] * 4)), 1, 2, 6)
    assert evaluation.files == {"outputs": [[3, 6] * 4, [9, 0] * 4]}
    assert evaluation.scores == pytest.approx({"loss": 6, "row_loss": 6, "mean": 6, "largest": 9})


def test_evaluator_averages_primary_metrics_over_eval_sets() -> None:
    numbers = Numbers("one", [1] * 8), Numbers("two", [4] * 8, [4] * 8)
    evaluation = evaluate(StubTask(CUBE, *numbers), 1)
    assert evaluation.scores == pytest.approx(
        {"loss": 3, "row_loss": 3, "largest": 2.5}
        | {"one/mean": 1, "one/largest": 1, "two/mean": 4, "two/largest": 4}
    )
    assert evaluation.files.keys() == {"one.outputs", "two.outputs"}


def count_rows(evaluation: Evaluation) -> dict[str, float]:
    return {"rows": np.int64(len(evaluation.files["outputs"]))}


def repeat_a_score(evaluation: Evaluation) -> dict[str, float]:
    return {"mean": 0.0}


def replace_the_loss(evaluation: Evaluation) -> dict[str, float]:
    return {"loss": 0.0}


def return_a_number(evaluation: Evaluation) -> int:
    return 3


def test_evaluator_adds_the_scores_of_a_users_function() -> None:
    numbers = Numbers("one", [1] * 8), Numbers("two", [4] * 8, [4] * 8)
    task = StubTask(EIGHT, *numbers)
    import_function("metrics", f"{__name__}:count_rows")
    task.config = dataclasses.replace(task.config, metrics=f"{__name__}:count_rows")
    task.primary_metrics = ("largest", "rows")
    scores = evaluate(task, 1).scores
    assert (scores["one/rows"], scores["two/rows"], scores["rows"]) == (1, 2, 1.5)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("repeat_a_score", "'mean' is a score of the task. Rename it"),
        ("replace_the_loss", "'loss' is a score of the task. Rename it"),
        ("return_a_number", "returns 3. Return a dictionary of names and numbers"),
    ],
)
def test_evaluator_rejects_other_scores_of_a_users_function(name: str, problem: str) -> None:
    task = StubTask(EIGHT, Numbers("dev", [1] * 8))
    import_function("metrics", f"{__name__}:{name}")
    task.config = dataclasses.replace(task.config, metrics=f"{__name__}:{name}")
    with pytest.raises(InputError, match=f"^metrics={__name__}:{name}: {problem}"):
        evaluate(task, 1)


def test_evaluator_reports_progress(monkeypatch) -> None:
    lines: list[str] = []
    task = StubTask(EIGHT, Numbers("dev", [1] * 8, [2] * 8))
    evaluator = make_evaluator(task, StepFunctions(task.config, task.objective), lines.append)
    evaluator([{"factor": jnp.float32(1)}])
    assert lines == []
    monkeypatch.setattr("bertjax.training.prediction.progress._PROGRESS_SECONDS", -1.0)
    evaluator([{"factor": jnp.float32(1)}])
    assert [line.partition(" after")[0] for line in lines] == ["dev: batch 1", "dev: batch 2"]


def test_evaluator_returns_none_without_eval_sets() -> None:
    assert evaluate(StubTask(EIGHT), 1) is None


def test_eval_step_traces_one_forward_pass_in_its_mesh() -> None:
    task = StubTask(CUBE, Numbers("dev", [1] * 8))
    evaluate(task, 1)
    assert task.objective.traced_in == [AXES]


def test_scores_of_a_users_function_are_known_after_an_evaluation_only() -> None:
    task, sums = StubTask(EIGHT, Numbers("dev", [1] * 8)), {"row_loss": None}
    task.eval_sets()[0].score_names = ("largest",)
    config = dataclasses.replace(task.config, best_metric="rows")
    with pytest.raises(InputError, match="best_metric='rows': is not a score"):
        check_best_metric(config, task, sums)
    config = dataclasses.replace(config, metrics="mine:count_rows")
    assert not check_best_metric(config, task, sums)
    for name in ("largest", "row_loss"):
        assert check_best_metric(dataclasses.replace(config, best_metric=name), task, sums)


def test_mean_over_eval_sets_needs_the_score_in_each() -> None:
    task = StubTask(EIGHT, Numbers("one", [1] * 8), Numbers("other", [1] * 8))
    task.primary_metrics = ("largest", "smallest")
    one, other = task.eval_sets()
    one.score_names, other.score_names = ("largest", "smallest"), ("largest",)
    for name in ("largest", "one/smallest", "other/largest"):
        assert check_best_metric(dataclasses.replace(task.config, best_metric=name), task, {})
    with pytest.raises(InputError, match="best_metric='smallest': is not a score"):
        check_best_metric(dataclasses.replace(task.config, best_metric="smallest"), task, {})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pretraining", *in_test_all(*toy_tasks.KINDS)])
def test_best_metric_is_any_score_of_the_evaluation_and_nothing_else(kind, toys, corpus) -> None:
    config = make_run_config(corpus) if kind == "pretraining" else configuration(kind, toys)
    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    functions = StepFunctions(config, task.objective)
    sums = functions.state_shapes.metric_sums
    evaluation = make_evaluator(task, functions)([functions.init().params])
    assert evaluation is not None
    with pytest.raises(
        InputError, match=r"best_metric='nosuch': is not a score .* Use one of"
    ) as e:
        check_best_metric(dataclasses.replace(config, best_metric="nosuch"), task, sums)
    names = str(e.value).partition("Use one of ")[2].rstrip(".").split(", ")
    assert {*names} == {*evaluation.scores}
    assert check_best_metric(dataclasses.replace(config, best_metric=names[0]), task, sums)


@pytest.mark.parametrize("version", [1, 2])
def test_question_answering_names_the_official_scores(version, tmp_path) -> None:
    file = tmp_path / "dev.json"
    file.write_text(json.dumps(questions(version, 9)))
    eval_set = object.__new__(QuestionAnsweringEvalSet)
    eval_set.data = read_squad(file)
    names = {"exact", "f1", "total"}
    if version == 2:
        names |= {f"{part}_{name}" for part in ("HasAns", "NoAns") for name in names}
        names |= {f"best_{name}" for name in ("exact", "exact_thresh", "f1", "f1_thresh")}
        names |= {"null_score_diff_threshold"}
    assert {*eval_set.score_names} == names
