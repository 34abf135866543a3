"""From checkpoints to scores."""

import logging
import operator
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.config.config import Config
from bertjax.mesh import distributed
from bertjax.mesh.feed import Feed, fetch_to_host
from bertjax.model.losses import Sums
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.parallel_runs import AnyStepFunctions, ParallelStepFunctions
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means, total_loss
from bertjax.tasks import registry
from bertjax.tasks.task import EvalSet, Evaluation, Task
from bertjax.training.initialization import PretrainedModel
from bertjax.training.memory_budget import check_evaluation
from bertjax.training.terminal import format_duration
from bertjax.workdir.workdir import flatten_config
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_PROGRESS_SECONDS = 10.0  # between two lines on how far an evaluation is
# Fields that decide scores, besides those of the data and the model but for some.
_COMPARED_FIELDS = {"task", "max_seq_length", "packing", "eval_batches"}
_SCORE_NEUTRAL_FIELDS = {"data.workers", "data.train_file", "model.remat", "model.scan_layers"}
_SCORE_NEUTRAL_FIELDS |= {"model.hidden_dropout_prob", "model.attention_probs_dropout_prob"}
_VOCAB_FIX = "prepare the data with it, `bertjax prepare --vocab {}`."
_log = logging.getLogger("bertjax")

EvalOutputs = tuple[Sums, list[dict[str, np.ndarray]]]  # sums over the batches, outputs of each


def evaluate(config: Config, *checkpoints: epath.PathLike) -> Evaluation:
    """What models, ours or published, make of the task's held-out data.

    Several are an ensemble: what they give for each example is averaged before it is scored, and
    so are their losses.

    Raises:
      InputError: the shape, the vocabulary or the labels of one are not those of the configuration,
        or there is no held-out data.
    """
    members = [PretrainedModel(checkpoint) for checkpoint in checkpoints]
    task = registry.find_task(config.task)(config, jax.process_count(), jax.process_index())
    config = task.config
    if not task.eval_sets():
        fix = "prepare it with --eval-fraction"
        if "eval_file" in config.data:
            fix = "name a file with --config.data.eval_file=FILE"
        raise InputError(f"{config.data['dir']} has no held-out data: {fix}.")
    programs = StepFunctions(config, task.objective)
    check_batch_sizes(config, task.objective, programs.mesh, train=False)
    for member in members:
        check_tokenizer(task, member.tokenizer, member.path)
        if member.labels != task.labels and {*programs.param_shapes} <= {*member.parts}:
            raise InputError(
                f"{member.path} tells apart {_format_labels(member.labels)} and the data "
                f"{_format_labels(task.labels)}: give the data that it was made for, or models of one order "
                "of labels."
            )
        member.check_complete(config.model, programs.param_shapes)
        if made := member.training_config():
            _warn_config_differences(config, made, member.path)
    sets, rows = task.eval_sets(), task.objective.eval_batch_size
    _log_on_process_0(
        f"{', '.join(str(member.path) for member in members)} on "
        f"{', '.join(held_out.name for held_out in sets)}, {rows:,} rows a batch; compiling ..."
    )
    evaluator = make_evaluator(task, programs, _log_on_process_0)
    check_evaluation(programs, task.objective)
    found = evaluator(member.load(programs.param_shapes) for member in members)
    assert found is not None
    return found


def _log_on_process_0(text: str) -> None:
    if distributed.is_process_0():
        _log.info("%s", text)


def _warn_config_differences(config: Config, made: Config, path: epath.Path) -> None:
    """Says where a configuration reads data, or computes, otherwise than that of a checkpoint."""
    ours, theirs = flatten_config(config), flatten_config(made)
    said = [
        f"{name}={ours[name]!r} here, {theirs.get(name)!r} there"
        for name in ours
        if name in _COMPARED_FIELDS
        or (name.startswith(("data.", "model.")) and name not in _SCORE_NEUTRAL_FIELDS)
        if ours[name] != theirs.get(name)
    ]
    if said and distributed.is_process_0():
        _log.warning("not as %s was made: %s.", path, "; ".join(said))


def _format_labels(labels: Sequence[str]) -> str:
    return ", ".join(labels[:5]) + (" ..." if len(labels) > 5 else "") or "no labels"


def make_evaluator(
    task: Task, programs: StepFunctions, report_progress: Callable[[str], None] | None = None
) -> Callable[[Iterable[Any]], Evaluation | None]:
    """A function from the parameters of each member of an ensemble, which may be of one, to what
    all held-out data give; None where there are none.

    Args:
      tell: is told now and then how far it is.
    """
    sets = task.eval_sets()
    if not sets:
        return lambda members: None
    run = _make_eval_loop(programs, report_progress)

    def evaluator(members: Iterable[Any]) -> Evaluation:
        found: list[EvalOutputs] = []
        count = 0
        for params in members:
            each = [run(params, held_out) for held_out in sets]
            found = (
                [_add_outputs(*pair) for pair in zip(found, each, strict=True)] if count else each
            )
            count += 1
        averaged = [
            (sums, jax.tree.map(lambda array: array / count, outputs)) for sums, outputs in found
        ]
        return _evaluate_outputs(task, sets, averaged)

    return evaluator


def make_parallel_evaluator(
    task: Task, programs: ParallelStepFunctions
) -> Callable[[Any], list[Evaluation]]:
    """A function from the parameters of several runs to what held-out data give for each."""
    sets, run = task.eval_sets(), _make_eval_loop(programs)

    def evaluators(params: Any) -> list[Evaluation]:
        found = [run(params, held_out) for held_out in sets]
        return [
            _evaluate_outputs(task, sets, jax.tree.map(operator.itemgetter(number), found))
            for number in range(len(programs.configs))
        ]

    return evaluators


def _make_eval_loop(
    programs: AnyStepFunctions, report_progress: Callable[[str], None] | None = None
) -> Callable[[Any, EvalSet], EvalOutputs]:
    program, constants = programs.compile_eval_step(), programs.constants()

    def run(params: Any, held_out: EvalSet) -> EvalOutputs:
        total: Sums = {}
        outputs = []
        began = told = time.monotonic()
        batches = Feed(held_out.batches(), programs.eval_batch_sharding)
        for sums, kept in fetch_to_host(program(params, batch, constants) for batch in batches):
            total = _add_sums(total, jax.tree.map(np.float64, sums))
            outputs.append(kept)
            now = time.monotonic()
            if report_progress and now - told > _PROGRESS_SECONDS:
                told = now
                report_progress(
                    f"{held_out.name}: batch {len(outputs):,} after {format_duration(now - began)}"
                )
        return total, outputs

    return run


def _evaluate_outputs(
    task: Task, sets: Sequence[EvalSet], found: Sequence[EvalOutputs]
) -> Evaluation:
    """One evaluation of all sets, from the sums and the outputs of each."""
    total: Sums = {}
    evaluations = []
    for held_out, (sums, outputs) in zip(sets, found, strict=True):
        evaluations.append(held_out.evaluation(_means(sums), outputs))
        total = _add_sums(total, sums)
    return _merge_eval_sets(_means(total), sets, evaluations, task.primary_metrics)


def check_tokenizer(task: Task, tokenizer: Tokenizer | None, path: epath.Path) -> None:
    """Raises InputError where the tokenizer of a model at `path` is not that of the task's data."""
    if tokenizer is None or tokenizer.fingerprint() != task.tokenizer.fingerprint():
        raise InputError(
            f"{path} was trained with another vocabulary than that of the data: "
            + ("leave data.vocab out." if "vocab" in task.DATA_FIELDS else _VOCAB_FIX.format(path))
        )


def _merge_eval_sets(
    means: dict[str, float],
    sets: Sequence[EvalSet],
    found: Sequence[Evaluation],
    primary_metrics: Sequence[str],
) -> Evaluation:
    """One evaluation of all sets; of several the names stand before each score and file, and the
    headline scores that all have are means over the sets.
    """
    if len(sets) == 1:
        return found[0]._replace(scores=means | found[0].scores)
    shared = [name for name in primary_metrics if all(name in each.scores for each in found)]
    scores = means | {
        name: float(np.mean([each.scores[name] for each in found])) for name in shared
    }
    files: dict[str, Any] = {}
    for held_out, each in zip(sets, found, strict=True):
        scores |= {f"{held_out.name}/{metric}": value for metric, value in each.scores.items()}
        files |= {f"{held_out.name}.{file}": content for file, content in each.files.items()}
    examples = [
        f"{held_out.name}: {line}"
        for held_out, each in zip(sets, found, strict=True)
        for line in each.examples
    ]
    return Evaluation(scores, files, examples=examples)


def _means(sums: Sums) -> dict[str, float]:
    averages = {name: mean for name, mean in means(sums).items() if name != "nonpad_fraction"}
    return {"loss": float(total_loss(sums))} | averages


def _add_outputs(one: EvalOutputs, other: EvalOutputs) -> EvalOutputs:
    return _add_sums(one[0], other[0]), jax.tree.map(np.add, one[1], other[1])


def _add_sums(one: Sums, other: Sums) -> Sums:
    total: Sums = jax.tree.map(np.add, one, other) if one else other
    return total
