"""Logits of a teacher for the training data of a configuration, in a file that runs learn from."""

import dataclasses
import hashlib
import logging
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath
from jax import Array

from bertjax.config.config import Config
from bertjax.config.init_fields import WITHOUT_INIT
from bertjax.formats.example_digests import BatchExamples
from bertjax.formats.stored_logits import LogitsWriter, StoredClasses
from bertjax.inference.embedding_files import PartFiles
from bertjax.inference.predictor import Runner
from bertjax.mesh.feed import Batch
from bertjax.model.distillation_losses import merge_omitted
from bertjax.model.heads import HEADS
from bertjax.steps.objective import Objective
from bertjax.tasks import registry
from bertjax.tasks.distillation import find_teacher_config
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.task import HostBatch, Task
from bertjax.training.evaluator import check_tokenizer
from bertjax.training.initialization import PretrainedModel
from bertjax.workdir.draft import exclusive_draft
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

_MAX_PART_BYTES = 1 << 26  # of the logits of a part; a batch with more is a part of its own


class _TeacherObjective(Objective):
    """The forward pass of a teacher on batches of a task, with its heads' largest logits alone.

    Args:
      config: the configuration with the model of the teacher.
      objective: objective of the task.
      heads: heads of the teacher that are computed.
      top_k: number of classes that are stored, 0 for all.
    """

    def __init__(
        self, config: Config, objective: Objective, heads: tuple[str, ...], top_k: int
    ) -> None:
        super().__init__(config, objective.batch_size_multiple)
        self.heads, self._task_objective = heads, objective
        batch = {n: np.zeros(x.shape, x.dtype) for n, x in objective.batch_shapes(1).items()}
        shapes = jax.eval_shape(lambda: self._logits(self.init_params(jax.random.key(0)), batch))
        self.classes = {
            name: StoredClasses(size, top_k if top_k < size else 0)
            for name, size in ((name, logits.shape[-1]) for name, logits in shapes.items())
        }
        if top_k and not any(classes.top_k for classes in self.classes.values()):
            sizes = " and ".join(f"{c.num_classes} of {n}" for n, c in self.classes.items())
            raise InputError(f"--top-k={top_k}: there are {sizes}. Use fewer, or leave it out.")
        for name, classes in self.classes.items():
            if classes.top_k and not HEADS[name].has_softmax(objective.batch_shapes(1)):
                raise InputError(
                    f"--top-k={top_k}: the loss of the {HEADS[name].display_name} needs all "
                    "logits. Leave it out."
                )

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shape of each array of a batch of the task, by its name."""
        return self._task_objective.batch_shapes(batch_size)

    def forward_flops(self, batch_size: int) -> float:
        """Return the model FLOPs of the task's forward pass."""
        return self._task_objective.forward_flops(batch_size)

    def apply(
        self, params: Any, batch: Batch, key: Array | None, constants: Any
    ) -> dict[str, Array]:
        """Return `HEAD_logits` of each head, and with top-k `HEAD_ids` of the stored classes."""
        outputs = {}
        for name, logits in self._logits(params, batch).items():
            if top_k := self.classes[name].top_k:
                outputs[f"{name}_ids"] = jax.lax.top_k(logits, top_k)[1]
                logits = merge_omitted(logits, outputs[f"{name}_ids"])
            outputs[f"{name}_logits"] = logits
        return outputs

    def _logits(self, params: Any, batch: Any) -> dict[str, Array]:
        outputs = super().apply(params, batch, None, {})
        return {name: outputs[f"{name}_logits"] for name in self.heads}


def save_logits(
    checkpoint: epath.PathLike, config: Config, output: epath.PathLike, top_k: int = 0
) -> int:
    """Write the logits of a teacher for the training data; return the number of examples.

    The data are all examples of a fine-tuning task, or the sequences of all steps of pre-training
    with static masking. A call that was interrupted resumes after its last part.

    Args:
      checkpoint: the teacher, of bertjax or published.
      config: configuration of the run that learns from it; its model is not used.
      output: the file; see `bertjax.formats.stored_logits`.
      top_k: number of the largest logits of a softmax that are stored; 0 for all.

    Raises:
      InputError: the teacher lacks the task's head, vocabulary or labels, masking is dynamic, or
        the file exists.
    """
    output = epath.Path(output)
    teacher = PretrainedModel(checkpoint)
    distill = dataclasses.replace(config.distill, teacher=str(checkpoint), logits="")
    task = registry.find_task(config.task)(dataclasses.replace(config, distill=distill))
    if not task.objective.heads:
        raise InputError(
            f"--save-logits={output}: task={config.task} has no logits. Write embeddings with "
            "`bertjax embed`."
        )
    task.objective.check_inputs_repeat()
    check_tokenizer(task, teacher.tokenizer, teacher.path)
    if task.labels and task.labels != teacher.labels:
        raise InputError(
            f"--checkpoint={checkpoint}: has the labels {', '.join(teacher.labels) or 'none'}, the "
            f"data {', '.join(task.labels)}. Use a teacher of the same labels."
        )
    heads = tuple(head for head in task.objective.heads if head in teacher.parts)
    model = find_teacher_config(task.config)
    config = dataclasses.replace(task.config, model=model, **WITHOUT_INIT)
    objective = _TeacherObjective(config, task.objective, heads or task.objective.heads, top_k)
    runner = Runner(teacher, objective)
    writer = LogitsWriter(
        str(teacher.path),
        teacher.digest,
        teacher.labels,
        task.tokenizer.fingerprint(),
        objective.classes,
    )
    settings = dataclasses.asdict(writer) | {"dtype": model.dtype}
    with exclusive_draft(output, "--save-logits") as lock:
        parts, number, count = PartFiles(output, settings, lock), 0, 0
        for part in _parts(_training_batches(task), objective.classes):
            digests = [examples.inputs.digests[new] for _, examples, new in part]
            digest = hashlib.sha256(np.concatenate(digests).tobytes()).hexdigest()
            if not parts.has(number, digest):
                parts.write(number, digest, _make_part(runner, part, objective.classes))
            number, count = number + 1, count + sum(map(len, digests))
        masses = parts.finish(number, writer.write)
    for name, mass in masses.items():
        _log.info(
            "%s: the %d largest of %d classes of the %s head; the others have %.2g of the "
            "probability.", output, top_k, objective.classes[name].num_classes, name, mass,
        )  # fmt: skip
    return count


# Batch, its examples, and which of them no earlier batch had, bool [N].
_NewExamples = tuple[HostBatch, BatchExamples, np.ndarray]


def _training_batches(task: Task) -> Iterator[HostBatch]:
    """Yield batches with every example of a fine-tuning task, or those of all steps of a run."""
    steps = task.config.resolve(task.examples_per_epoch).total_steps
    if isinstance(task, FinetuningTask):
        steps = -(-task.examples_per_epoch // task.config.batch_size)
    if steps is None:
        raise InputError(
            f"steps={task.config.steps!r}: a time has no known number of sequences. Give steps."
        )
    task.prepare(steps)
    yield from task.train_batches(0, steps)


def _parts(
    batches: Iterator[HostBatch], heads: dict[str, StoredClasses]
) -> Iterator[list[_NewExamples]]:
    """Yield batches that have new examples, as many as fill a part."""
    seen: set[bytes] = set()
    part: list[_NewExamples] = []
    size = 0
    for batch in batches:
        examples = BatchExamples(batch, heads)
        new = np.zeros(len(examples.inputs.starts), bool)
        for i, digest in enumerate(map(bytes, examples.inputs.digests)):
            new[i] = digest not in seen
            seen.add(digest)
        if not new.any():
            continue
        batch_size = 4 * sum(
            int(examples.counts[name][new].sum()) * classes.width for name, classes in heads.items()
        )
        if part and size + batch_size > _MAX_PART_BYTES:
            yield part
            part, size = [], 0
        part.append((batch, examples, new))
        size += batch_size
    if part:
        yield part


def _make_part(
    runner: Runner, part: list[_NewExamples], heads: dict[str, StoredClasses]
) -> dict[str, np.ndarray]:
    """Return the arrays of the file for the new examples of some batches."""
    arrays: dict[str, list[np.ndarray]] = {}
    outputs = runner.run(batch for batch, _, _ in part)
    for (_, examples, new), values in zip(part, outputs, strict=True):
        arrays.setdefault("digests", []).append(examples.inputs.digests[new])
        for name in heads:
            counts = examples.counts[name]
            slots = examples.slots[name][np.repeat(new, counts)]
            arrays.setdefault(f"{name}.counts", []).append(counts[new].astype(np.int32))
            for kind in ("logits", "ids"):
                if (array := values.get(f"{name}_{kind}")) is not None:
                    rows = array.reshape(-1, array.shape[-1])[slots]
                    arrays.setdefault(f"{name}.{kind}", []).append(rows)
    return {name: np.concatenate(values) for name, values in arrays.items()}
