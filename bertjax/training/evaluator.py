"""Evaluation of checkpoints and of a running training."""

import functools
import logging
import operator
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from etils import epath

from bertjax.config.config import Config, MeshConfig
from bertjax.config.user_functions import find_function
from bertjax.mesh import distributed
from bertjax.mesh.feed import Feed, fetch_to_host
from bertjax.mesh.finite import check_finite
from bertjax.model.losses import Sums
from bertjax.steps.batch_sizes import check_batch_sizes
from bertjax.steps.parallel_runs import AnyStepFunctions, ParallelStepFunctions
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import loss_terms, means, total_loss
from bertjax.tasks import registry
from bertjax.tasks.embeddings.distillation import make_teacher_objective
from bertjax.tasks.embeddings.teacher_evaluation import TeacherEvalSet
from bertjax.tasks.task import EvalSet, Evaluation, Task
from bertjax.training.initialization import PretrainedModel
from bertjax.training.memory_budget import check_evaluation
from bertjax.training.prediction.generated_texts import (
    check_no_generation,
    make_generation_evaluator,
)
from bertjax.training.prediction.progress import progress_reporter
from bertjax.training.terminal import log_on_process_0
from bertjax.workdir.model_records import share_commits
from bertjax.workdir.workdir import check_processes, flatten_config
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer, describe_difference

# Fields that decide scores: these, those of the data and those of the model but for the neutral.
_COMPARED_FIELDS = {"task", "max_seq_length", "packing", "eval_batches"}
_SCORE_NEUTRAL_FIELDS = {"data.workers", "data.train_file", "model.remat", "model.scan_layers"}
_SCORE_NEUTRAL_FIELDS |= {"data.num_generated", "data.num_texts", "data.texts", "data.loss"}
_SCORE_NEUTRAL_FIELDS |= {"model.hidden_dropout_prob", "model.attention_probs_dropout_prob"}
_log = logging.getLogger("bertjax")

EvalOutputs = tuple[Sums, list[dict[str, np.ndarray]]]  # sums over the batches, outputs of each


def evaluate(config: Config, *checkpoints: epath.PathLike) -> Evaluation:
    """Evaluate models, of bertjax or published, on the eval sets of a task.

    Several models are an ensemble: their outputs for each example are averaged before scoring, and
    so are their losses.

    Args:
      config: configuration of the task and its data.
      checkpoints: the models.

    Raises:
      InputError: shape, vocabulary or labels of a model do not fit the configuration, or there is
        no eval split.
    """
    share_commits(config.init, *checkpoints)
    members = [PretrainedModel(checkpoint) for checkpoint in checkpoints]
    task = registry.find_task(config.task)(config, jax.process_count(), jax.process_index())
    config = task.config
    check_processes(config, task)
    if len(members) > 1:
        check_no_generation(task, "texts of an ensemble's models have no average")
        if task.objective.LEARNS_EMBEDDINGS:
            raise InputError(
                f"task={config.task}: embeddings of {len(members)} models are vectors of unrelated "
                "spaces, which have no average. Evaluate one model."
            )
    if not task.eval_sets():
        fix = "Prepare the data with --eval-fraction."
        if "eval_file" in config.data:
            fix = "Name a file with --config.data.eval_file=FILE."
        raise InputError(f"data.dir={config.data['dir']}: there is no eval split. {fix}")
    step_functions = StepFunctions(config, task.objective)
    check_batch_sizes(config, task.objective, step_functions.mesh, train=False)
    for member in members:
        check_tokenizer(task, member.tokenizer, member.path)
        if {*step_functions.param_shapes} <= {*member.parts} and not member.has_labels_of(task):
            raise InputError(
                f"{member.path}: the model has the labels {_format_labels(member.labels)} and the "
                f"data {_format_labels(task.labels)}. Use data with the labels of the model, in "
                "the same order for all models."
            )
        member.check_complete(config.model, step_functions.param_shapes)
        if trained := member.training_config():
            _warn_config_differences(config, trained, member.path)
    if config.distill.teacher and task.objective.LEARNS_EMBEDDINGS:
        embed_eval_texts(task, PretrainedModel(config.distill.teacher))
    eval_sets, batch_size = task.eval_sets(), task.objective.eval_batch_size
    log_on_process_0(
        f"{', '.join(str(member.path) for member in members)} on "
        f"{', '.join(eval_set.name for eval_set in eval_sets)}, {batch_size:,} sequences a batch; "
        "compiling ..."
    )
    evaluator = make_evaluator(task, step_functions, log_on_process_0)
    check_evaluation(step_functions, task.objective)
    evaluation = evaluator(member.load(step_functions.param_shapes) for member in members)
    assert evaluation is not None
    for name, score in evaluation.scores.items():
        check_finite(np.asarray(score), name)
    return evaluation


def _warn_config_differences(config: Config, trained: Config, path: epath.Path) -> None:
    """Log the fields with which a configuration computes other scores than that of a checkpoint."""
    values, trained_values = flatten_config(config), flatten_config(trained)
    differences = [
        f"{name}={value!r} here, {trained_values.get(name)!r} there"
        for name, value in values.items()
        if name in _COMPARED_FIELDS
        or (name.startswith(("data.", "model.")) and name not in _SCORE_NEUTRAL_FIELDS)
        if value != trained_values.get(name)
    ]
    if differences and distributed.is_process_0():
        _log.warning("other configuration than that of %s: %s.", path, "; ".join(differences))


def _format_labels(labels: Sequence[str]) -> str:
    return ", ".join(labels[:5]) + (" ..." if len(labels) > 5 else "") or "none"


def make_evaluator(
    task: Task, step_functions: StepFunctions, report_progress: Callable[[str], None] | None = None
) -> Callable[[Iterable[Any]], Evaluation | None]:
    """Return a function from the parameters of an ensemble's members to their evaluation.

    The function returns None without eval sets. An ensemble may have one member.

    Args:
      task: the task with its data.
      step_functions: its eval step is compiled.
      report_progress: takes a line of progress every few seconds.
    """
    eval_sets = task.eval_sets()
    if not eval_sets:
        return lambda members: None
    run_eval_set = _make_eval_loop(step_functions, report_progress)
    evaluate_generated = make_generation_evaluator(step_functions, report_progress)

    def evaluator(members: Iterable[Any]) -> Evaluation:
        totals: list[EvalOutputs] = []
        generated: list[Evaluation] = []  # of one member, see `check_no_generation`
        count = 0
        for params in members:
            outputs = [run_eval_set(params, eval_set) for eval_set in eval_sets]
            totals = jax.tree.map(np.add, totals, outputs) if count else outputs
            generated = [evaluate_generated(params, eval_set) for eval_set in eval_sets]
            count += 1
        averages = [
            (sums, jax.tree.map(lambda array: array / count, outputs)) for sums, outputs in totals
        ]
        return _evaluate_outputs(task, eval_sets, averages, generated)

    return evaluator


def embed_eval_texts(task: Task, teacher: PretrainedModel) -> None:
    """Compute the teacher's embeddings of eval texts, once for all evaluations of a task's models.

    Args:
      task: a task that learns embeddings, with its data.
      teacher: the teacher.

    Raises:
      InputError: the teacher has another vocabulary, lacks parameters, or is of another kind.
    """
    path = task.config.distill.teacher
    difference = "it has none"
    if teacher.tokenizer:
        difference = describe_difference(teacher.tokenizer, task.tokenizer)
    if difference:
        raise InputError(
            f"distill.teacher={path}: has another vocabulary than the model: {difference}. Write "
            "its embeddings with `bertjax embed`, and name the file in distill.embeddings."
        )
    eval_sets = [item for item in task.eval_sets() if isinstance(item, TeacherEvalSet)]
    if not eval_sets:
        return
    objective = make_teacher_objective(task.config, task.objective.batch_size_multiple)
    # The runs of a sweep have a device each.
    is_single = objective.config.mesh == MeshConfig(1, 1, 1)
    devices = jax.local_devices()[:1] if is_single else None
    step_functions = StepFunctions(objective.config, objective, devices)
    teacher.check_complete(objective.config.model, step_functions.param_shapes)
    run_eval_set = _make_eval_loop(step_functions)
    params = teacher.load(step_functions.param_shapes)
    for eval_set in eval_sets:
        log_on_process_0(f"{path} embeds {eval_set.name} ...")
        _, outputs = run_eval_set(params, eval_set)
        eval_set.set_teacher(outputs)


def make_parallel_evaluator(
    task: Task, step_functions: ParallelStepFunctions
) -> Callable[[Any], list[Evaluation]]:
    """Return a function from the stacked parameters of parallel runs to their evaluations."""
    eval_sets, run_eval_set = task.eval_sets(), _make_eval_loop(step_functions)

    def evaluator(params: Any) -> list[Evaluation]:
        outputs = [run_eval_set(params, eval_set) for eval_set in eval_sets]
        return [
            _evaluate_outputs(task, eval_sets, jax.tree.map(operator.itemgetter(run), outputs))
            for run in range(len(step_functions.configs))
        ]

    return evaluator


def _make_eval_loop(
    step_functions: AnyStepFunctions, report_progress: Callable[[str], None] | None = None
) -> Callable[[Any, EvalSet], EvalOutputs]:
    eval_step, constants = step_functions.compile_eval_step(), step_functions.constants()

    def run_eval_set(params: Any, eval_set: EvalSet) -> EvalOutputs:
        total: Sums = {}
        outputs: list[dict[str, np.ndarray]] = []
        report = progress_reporter(eval_set.name, report_progress)
        batches = Feed(eval_set.batches(), step_functions.eval_batch_sharding)
        results = (eval_step(params, batch, constants) for batch in batches)
        keep = getattr(eval_set, "keep_outputs", lambda number, batch_outputs: batch_outputs)
        for sums, batch_outputs in fetch_to_host(results):
            total = _add_sums(total, jax.tree.map(np.float64, sums))
            outputs.append(keep(len(outputs), batch_outputs))
            report(f"batch {len(outputs):,}")
        return total, outputs

    return run_eval_set


def _evaluate_outputs(
    task: Task,
    eval_sets: Sequence[EvalSet],
    outputs: Sequence[EvalOutputs],
    generated: Sequence[Evaluation] = (),
) -> Evaluation:
    """Return one evaluation of all eval sets, from the sums, outputs and generated texts of each.

    With several sets the name of the set precedes each score and file. Primary metrics that all
    sets have are means over the sets.
    """
    evaluations = [
        eval_set.evaluation(_means(sums), batch_outputs)
        for eval_set, (sums, batch_outputs) in zip(eval_sets, outputs, strict=True)
    ]
    for number, addition in enumerate(generated):
        of_outputs = evaluations[number]
        evaluations[number] = of_outputs._replace(
            scores=of_outputs.scores | addition.scores,
            files={**of_outputs.files, **addition.files},
            examples=[*of_outputs.examples, *addition.examples],
        )
    if name := task.config.metrics:
        compute = find_function("metrics", name)
        taken = {"step", "split", *_means(outputs[0][0])}
        evaluations = [_add_user_scores(name, compute, item, taken) for item in evaluations]
    scores = _means(functools.reduce(_add_sums, (sums for sums, _ in outputs)))
    if len(eval_sets) == 1:
        return evaluations[0]._replace(scores=scores | evaluations[0].scores)
    for name in task.primary_metrics:
        if all(name in evaluation.scores for evaluation in evaluations):
            values = [evaluation.scores[name] for evaluation in evaluations]
            scores[name] = float(np.mean(values))
    files: dict[str, Any] = {}
    examples: list[str] = []
    for eval_set, evaluation in zip(eval_sets, evaluations, strict=True):
        name = eval_set.name
        scores |= {f"{name}/{metric}": value for metric, value in evaluation.scores.items()}
        files |= {f"{name}.{file}": content for file, content in evaluation.files.items()}
        examples += [f"{name}: {line}" for line in evaluation.examples]
    return Evaluation(scores, files, examples=examples)


def _add_user_scores(
    name: str,
    compute: Callable[[Evaluation], Mapping[str, float]],
    evaluation: Evaluation,
    taken: Set[str],
) -> Evaluation:
    """Return an evaluation with the scores that a user's function computes of it.

    Raises:
      InputError: it returns something else than further names with numbers.
    """
    scores = compute(evaluation)
    is_named = isinstance(scores, Mapping) and all(isinstance(key, str) for key in scores)
    if not is_named or not all(isinstance(v, int | float | np.number) for v in scores.values()):
        raise InputError(
            f"metrics={name}: returns {scores!r:.80}. Return a dictionary of names and numbers."
        )
    if repeated := scores.keys() & {*evaluation.scores, *taken}:
        raise InputError(f"metrics={name}: {min(repeated)!r} is a score of the task. Rename it.")
    added = {key: float(value) for key, value in scores.items()}
    return evaluation._replace(scores=evaluation.scores | added)


def check_best_metric(config: Config, task: Task, sum_names: Iterable[str]) -> bool:
    """Check that evaluations will have the score `best_metric`.

    Args:
      config: configuration of the run.
      task: the task with its data.
      sum_names: names of the metric sums of the train step.

    Returns:
      Whether it is certain. The scores of `metrics`, and those of an eval set without
      `score_names`, are known after an evaluation only.

    Raises:
      InputError: they will not, or there is no eval split.
    """
    metric, eval_sets = config.best_metric, task.eval_sets() if config.best_metric else ()
    if not metric:
        return True
    if not eval_sets:
        raise InputError(
            f"best_metric={metric!r}: {config.data['dir']} has no eval split. Leave it out, or "
            "prepare the data with --eval-fraction."
        )
    known, is_complete = {*sum_names} - {"grad_norm", "nonpad_fraction"}, not config.metrics
    of_all_sets = {*task.primary_metrics}
    for eval_set in eval_sets:
        names: Sequence[str] | None = getattr(eval_set, "score_names", None)
        if names is None:
            names, is_complete = (), False
        of_all_sets &= {*names}  # of which there are means
        known |= {*names} if len(eval_sets) == 1 else {f"{eval_set.name}/{n}" for n in names}
    known |= of_all_sets
    if metric not in known and is_complete:
        raise InputError(
            f"best_metric={metric!r}: is not a score of this task. Use one of "
            f"{', '.join(sorted(known))}."
        )
    return metric in known


def check_tokenizer(task: Task, tokenizer: Tokenizer | None, path: epath.Path) -> None:
    """Raise InputError if the tokenizer of the model at `path` is not that of the task's data."""
    difference = describe_difference(tokenizer, task.tokenizer) if tokenizer else "it has none"
    if difference:
        fix = f"Prepare the data with it, `bertjax prepare --vocab {shlex.quote(str(path))}`."
        if "vocab" in task.DATA_FIELDS:
            fix = "Leave data.vocab out."
        raise InputError(
            f"{path}: the model has another vocabulary than the data: {difference}. {fix}"
        )


def _means(sums: Sums) -> dict[str, float]:
    averages = {name: mean for name, mean in means(sums).items() if name != "nonpad_fraction"}
    return ({"loss": float(total_loss(sums))} if loss_terms(sums) else {}) | averages


def _add_sums(total: Sums, other: Sums) -> Sums:
    result: Sums = jax.tree.map(np.add, total, other) if total else other
    return result
