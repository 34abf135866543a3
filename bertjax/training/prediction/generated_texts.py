"""Evaluation of the texts that a model generates for an eval set."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bertjax.model.decoder.options import Decoding
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks.pipeline import HostBatch, Outputs
from bertjax.tasks.task import EvalSet, Evaluation, GeneratingEvalSet, Task
from bertjax.training.prediction.batch_runner import BatchRunner
from bertjax.training.prediction.progress import progress_reporter
from data_pipelines.errors import InputError


def make_generation_evaluator(
    step_functions: StepFunctions, report_progress: Callable[[str], None] | None = None
) -> Callable[[Any, EvalSet], Evaluation]:
    """Return a function from parameters and an eval set to the evaluation of generated texts.

    It is empty for an eval set that generates none. On several processes all call the function.

    Args:
      step_functions: generation is compiled.
      report_progress: takes a line of progress every few seconds.
    """
    runner = BatchRunner(step_functions)

    def evaluate_generated(params: Any, eval_set: EvalSet) -> Evaluation:
        if not (isinstance(eval_set, GeneratingEvalSet) and eval_set.num_generated):
            return Evaluation({})
        placed, report = runner.place(params), progress_reporter(eval_set.name, report_progress)

        def run(
            batches: Iterable[HostBatch], decoding: Decoding | None = None
        ) -> Iterator[Outputs]:
            for number, outputs in enumerate(runner.run(placed, batches, decoding), 1):
                report(f"batch {number:,} of generated texts")
                yield outputs

        return eval_set.evaluate_generated(run)

    return evaluate_generated


def check_no_generation(task: Task, problem: str) -> None:
    """Raise InputError with the problem if evaluations of a task generate texts."""
    for eval_set in task.eval_sets():
        if isinstance(eval_set, GeneratingEvalSet) and eval_set.num_generated:
            number = task.config.data["num_generated"]
            raise InputError(f"data.num_generated={number}: {problem}. Set 0.")
