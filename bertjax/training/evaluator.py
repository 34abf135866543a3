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
from bertjax.mesh import hosts
from bertjax.mesh.feed import Feed, fetched
from bertjax.model.losses import Sums
from bertjax.steps.parallel_runs import Together
from bertjax.steps.step_functions import Programs
from bertjax.steps.train_step import means, total_loss
from bertjax.tasks import registry
from bertjax.tasks.task import Evaluation, EvaluationSet, Task
from bertjax.training.initialization import Start
from bertjax.training.memory_budget import check_evaluation
from bertjax.training.metric_writers import duration
from bertjax.workdir.workdir import flatten_config
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_TELL_SECONDS = 10.0  # between two lines on how far an evaluation is
# Fields that decide scores, besides those of the data and the model but for some.
_COMPARED = {"task", "seq_len", "packing", "eval_batches"}
_ALIKE = {"data.workers", "data.train", "model.remat", "model.scan_layers"}
_ALIKE |= {"model.hidden_dropout", "model.attention_dropout"}
_PREPARE = "prepare the data with it, `bertjax prepare --vocab {}`."
_log = logging.getLogger("bertjax")

Found = tuple[Sums, list[dict[str, np.ndarray]]]  # sums over the batches, outputs of each


def evaluate(config: Config, *checkpoints: epath.PathLike) -> Evaluation:
    """What models, ours or published, make of the task's held-out data.

    Several are an ensemble: what they give for each example is averaged before it is scored, and
    so are their losses.

    Raises:
      InputError: the shape, the vocabulary or the labels of one are not those of the configuration,
        or there is no held-out data.
    """
    members = [Start(checkpoint) for checkpoint in checkpoints]
    task = registry.find(config.task)(config, jax.process_count(), jax.process_index())
    config = task.config
    if not task.evaluation_sets():
        cure = "prepare it with --held-out"
        if "dev" in config.data:
            cure = "name a file with --config.data.dev=FILE"
        raise InputError(f"{config.data['dir']} has no held-out data: {cure}.")
    programs = Programs(config, task.objective)
    programs.check_rows(train=False)
    for member in members:
        check_tokenizer(task, member.tokenizer, member.path)
        if member.labels != task.labels and {*programs.params} <= {*member.parts}:
            raise InputError(
                f"{member.path} tells apart {_some(member.labels)} and the data "
                f"{_some(task.labels)}: give the data that it was made for, or models of one order "
                "of labels."
            )
        member.check_whole(config.model, programs.params)
        if made := member.made_by():
            _tell_differences(config, made, member.path)
    sets, rows = task.evaluation_sets(), task.objective.eval_rows
    _tell(
        f"{', '.join(str(member.path) for member in members)} on "
        f"{', '.join(held_out.name for held_out in sets)}, {rows:,} rows a batch; compiling ..."
    )
    evaluator = make_evaluator(task, programs, _tell)
    check_evaluation(programs, task.objective)
    found = evaluator(member.load(programs.params) for member in members)
    assert found is not None
    return found


def _tell(text: str) -> None:
    if hosts.is_first():
        _log.info("%s", text)


def _tell_differences(config: Config, made: Config, path: epath.Path) -> None:
    """Says where a configuration reads data, or computes, otherwise than that of a checkpoint."""
    ours, theirs = flatten_config(config), flatten_config(made)
    said = [
        f"{name}={ours[name]!r} here, {theirs.get(name)!r} there"
        for name in ours
        if name in _COMPARED or (name.startswith(("data.", "model.")) and name not in _ALIKE)
        if ours[name] != theirs.get(name)
    ]
    if said and hosts.is_first():
        _log.warning("not as %s was made: %s.", path, "; ".join(said))


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:5]) + (" ..." if len(labels) > 5 else "") or "no labels"


def make_evaluator(
    task: Task, programs: Programs, tell: Callable[[str], None] | None = None
) -> Callable[[Iterable[Any]], Evaluation | None]:
    """A function from the parameters of each member of an ensemble, which may be of one, to what
    all held-out data give; None where there are none.

    Args:
      tell: is told now and then how far it is.
    """
    sets = task.evaluation_sets()
    if not sets:
        return lambda members: None
    run = _runner(programs, tell)

    def evaluator(members: Iterable[Any]) -> Evaluation:
        found: list[Found] = []
        count = 0
        for params in members:
            each = [run(params, held_out) for held_out in sets]
            found = [_together(*pair) for pair in zip(found, each, strict=True)] if count else each
            count += 1
        averaged = [
            (sums, jax.tree.map(lambda array: array / count, outputs)) for sums, outputs in found
        ]
        return _evaluation(task, sets, averaged)

    return evaluator


def make_evaluators(task: Task, programs: Together) -> Callable[[Any], list[Evaluation]]:
    """A function from the parameters of several runs to what held-out data give for each."""
    sets, run = task.evaluation_sets(), _runner(programs)

    def evaluators(params: Any) -> list[Evaluation]:
        found = [run(params, held_out) for held_out in sets]
        return [
            _evaluation(task, sets, jax.tree.map(operator.itemgetter(number), found))
            for number in range(len(programs.configs))
        ]

    return evaluators


def _runner(
    programs: Programs, tell: Callable[[str], None] | None = None
) -> Callable[[Any, EvaluationSet], Found]:
    program, constants = programs.evaluate(), programs.constants()

    def run(params: Any, held_out: EvaluationSet) -> Found:
        total: Sums = {}
        outputs = []
        began = told = time.monotonic()
        batches = Feed(held_out.batches(), programs.heldout_rows)
        for sums, kept in fetched(program(params, batch, constants) for batch in batches):
            total = _added(total, jax.tree.map(np.float64, sums))
            outputs.append(kept)
            now = time.monotonic()
            if tell and now - told > _TELL_SECONDS:
                told = now
                tell(f"{held_out.name}: batch {len(outputs):,} after {duration(now - began)}")
        return total, outputs

    return run


def _evaluation(task: Task, sets: Sequence[EvaluationSet], found: Sequence[Found]) -> Evaluation:
    """One evaluation of all sets, from the sums and the outputs of each."""
    total: Sums = {}
    evaluations = []
    for held_out, (sums, outputs) in zip(sets, found, strict=True):
        evaluations.append(held_out.evaluation(_means(sums), outputs))
        total = _added(total, sums)
    return _joined(_means(total), sets, evaluations, task.headline)


def check_tokenizer(task: Task, tokenizer: Tokenizer | None, path: epath.Path) -> None:
    """Raises InputError where the tokenizer of a model at `path` is not that of the task's data."""
    if tokenizer is None or tokenizer.fingerprint() != task.tokenizer.fingerprint():
        raise InputError(
            f"{path} was trained with another vocabulary than that of the data: "
            + ("leave data.vocab out." if "vocab" in task.DATA_FIELDS else _PREPARE.format(path))
        )


def _joined(
    means: dict[str, float],
    sets: Sequence[EvaluationSet],
    found: Sequence[Evaluation],
    headline: Sequence[str],
) -> Evaluation:
    """One evaluation of all sets; of several the names stand before each score and file, and the
    headline scores that all have are means over the sets.
    """
    if len(sets) == 1:
        return found[0]._replace(scores=means | found[0].scores)
    shared = [name for name in headline if all(name in each.scores for each in found)]
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
    averages = {name: mean for name, mean in means(sums).items() if name != "fill"}
    return {"loss": float(total_loss(sums))} | averages


def _together(one: Found, other: Found) -> Found:
    return _added(one[0], other[0]), jax.tree.map(np.add, one[1], other[1])


def _added(one: Sums, other: Sums) -> Sums:
    total: Sums = jax.tree.map(np.add, one, other) if one else other
    return total
