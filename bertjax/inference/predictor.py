"""Predictor: a model with the pipeline of its task."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from etils import epath

from bertjax.config.config import MeshConfig
from bertjax.config.loading import load_config
from bertjax.formats.detection import is_onnx
from bertjax.formats.loading import find_tokenizer
from bertjax.inference.onnx_directory import OnnxModel
from bertjax.model.decoder.options import Decoding
from bertjax.steps.objective import Objective
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.input_lines import InvalidInput
from bertjax.tasks.pipeline import HostBatch, Outputs, PredictInput, check_keys, unread_keys
from bertjax.training.initialization import PretrainedModel
from bertjax.training.prediction.batch_runner import BatchRunner
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")


AnyModel = PretrainedModel | OnnxModel


def open_model(checkpoint: epath.PathLike | AnyModel) -> AnyModel:
    """Return the model in a directory, or the one that is open already."""
    if isinstance(checkpoint, AnyModel):
        return checkpoint
    return OnnxModel(checkpoint) if is_onnx(checkpoint) else PretrainedModel(checkpoint)


class Runner:
    """Model on all devices of this process that computes batches of any shape.

    Args:
      model: the model.
      objective: function to compute.

    Raises:
      InputError: the model lacks parameters of the objective.
    """

    def __init__(self, model: AnyModel, objective: Objective) -> None:
        self._runner: BatchRunner | None = None
        if isinstance(model, OnnxModel):
            self._run = model.run_function(objective)
            return
        # The mesh of training may not fit this process's devices.
        config = dataclasses.replace(objective.config, mesh=MeshConfig())
        step_functions = StepFunctions(config, objective)
        model.check_complete(config.model, step_functions.param_shapes)
        self._runner = BatchRunner(step_functions)
        params = self._runner.place(model.load(step_functions.param_shapes))
        self._run = functools.partial(self._runner.run, params)

    def run(
        self, batches: Iterable[HostBatch], decoding: Decoding | None = None
    ) -> Iterator[Outputs]:
        """Yield the outputs of each batch; see `BatchRunner.run`."""
        return self._run(batches, decoding)

    def compile(self, batch: HostBatch, decoding: Decoding | None = None) -> None:
        """Compile the program for a batch of this shape, if its shape matters; see `run`."""
        if self._runner is not None:
            self._runner.compile(batch, decoding)


class Predictor(Runner):
    """Model with the pipeline of its task.

    Args:
      checkpoint: a checkpoint; a workdir, whose checkpoint
        `bertjax.checkpointing.lookup.find_checkpoint` chooses; a model of Hugging Face or
        TF1; an export to ONNX; or an open model.
      overrides: dotted field of the configuration -> its value in predictions, or its text; those
        of `decoding` and `extraction` have an effect.

    Attributes:
      path: directory of the model.
      pipeline: preprocessing and postprocessing.
      config: configuration of the model's run, or one that fits a published model.

    Raises:
      InputError: there is no such model, it lacks the head of its task, or a field is invalid.
    """

    def __init__(
        self,
        checkpoint: epath.PathLike | AnyModel,
        overrides: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        model = open_model(checkpoint)
        self.config = model.config()
        if overrides:
            fields = registry.data_fields(imports_task=False)
            self.config = load_config(self.config.to_dict(), overrides, fields)
        task = registry.find_task(self.config.task)
        objective = registry.make_objective(self.config, jax.device_count())
        super().__init__(model, objective)  # may take another checkpoint of the run
        self.path = model.path
        self._logged_keys: set[str] = set()
        self.pipeline = task.pipeline_class(self.config)(
            objective, model.tokenizer or find_tokenizer(self.path), model.labels, model.calibration
        )

    def predict(
        self,
        inputs: Iterable[PredictInput | InvalidInput],
        chunk_size: int = 1,
        return_all_scores: bool = False,
        from_file: bool = False,
        is_start: bool = True,
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer to each input; see `bertjax.tasks.pipeline.Pipeline.postprocess`.

        Args:
          inputs: the inputs, with the lines of a file that are none.
          chunk_size: inputs that are read before the first answer; a list is predicted in the
            pipeline's largest batches.
          return_all_scores: add the scores of all labels or choices.
          from_file: whether the inputs are rows of a file. Other keys are ignored and logged then,
            and the answer to an invalid input is {"error": message}.
          is_start: whether the inputs are those at the start of a file.

        Raises:
          InputError: an input is invalid; of a file, all inputs of its first chunk are.
        """
        limit = self.pipeline.max_batch_inputs
        size = limit if isinstance(inputs, Sequence) else min(chunk_size, limit)
        remaining = iter(inputs)
        while chunk := list(itertools.islice(remaining, size)):
            invalid = [item for item in chunk if isinstance(item, InvalidInput)]
            if is_start and len(invalid) == len(chunk):
                raise InputError(invalid[0].error)
            parsed = [item for item in chunk if isinstance(item, PredictInput)]
            answers = self._predict_chunk(parsed, return_all_scores, from_file, is_start)
            for item in chunk:
                if isinstance(item, InvalidInput):
                    yield {"error": item.error}
                elif (answer := next(answers, None)) is not None:
                    yield answer
                else:
                    raise _wrong_count(parsed, "fewer")
            if next(answers, None) is not None:
                raise _wrong_count(parsed, "more")
            is_start = False

    def _predict_chunk(
        self,
        inputs: Sequence[PredictInput],
        return_all_scores: bool,
        from_file: bool,
        is_start: bool,
    ) -> Iterator[dict[str, Any]]:
        """Return the answers to at most `max_batch_inputs` inputs; see `predict`."""
        if not inputs:
            return iter(())
        if from_file:
            self._log_unread_keys(inputs)
        else:
            self._check_keys(inputs)
        try:
            answers = iter(self.pipeline.predict(self.run, inputs, return_all_scores))
            return itertools.chain(list(itertools.islice(answers, 1)), answers)
        except InputError:
            errors = self._find_errors(inputs) if from_file else []
            if not any(errors) or (is_start and all(errors)):
                raise
            return self._predict_valid(inputs, errors, return_all_scores)

    def _check_keys(self, inputs: Iterable[PredictInput]) -> None:
        """Raise InputError for an input with a key that the pipeline ignores."""
        for item in inputs:
            if unread_keys(self.pipeline, item):
                self.pipeline.preprocess([item])  # the error of a missing key says more
                check_keys(self.pipeline, item)

    def _log_unread_keys(self, inputs: Iterable[PredictInput]) -> None:
        """Log the keys that the pipeline ignores, each once."""
        names = {name for item in inputs for name in unread_keys(self.pipeline, item)}
        if new := names - self._logged_keys:
            _log.info("the model does not read the keys %s.", ", ".join(sorted(map(repr, new))))
        self._logged_keys |= new

    def _find_errors(self, inputs: Sequence[PredictInput]) -> list[str]:
        """Return the error of each input, "" if it is valid."""
        errors = []
        for item in inputs:
            try:
                self.pipeline.preprocess([item])
            except InputError as error:
                errors.append(str(error))
            else:
                errors.append("")
        return errors

    def _predict_valid(
        self, inputs: Sequence[PredictInput], errors: Sequence[str], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the answer to each input, or its error."""
        pairs = zip(inputs, errors, strict=True)
        valid = [item for item, error in pairs if not error]
        answers = list(self.pipeline.predict(self.run, valid, return_all_scores)) if valid else []
        if len(answers) != len(valid):
            raise _wrong_count(valid, "fewer" if len(answers) < len(valid) else "more")
        remaining = iter(answers)
        for error in errors:
            yield {"error": error} if error else next(remaining)


def make_inputs(data: Any) -> tuple[list[PredictInput], bool]:
    """Return the inputs in a Python or JSON value, and whether it is a single one, not a list.

    Raises:
      InputError: an input is neither a text nor a dictionary.
    """
    check_inputs("inputs", data)
    is_single = isinstance(data, str | Mapping)
    inputs = [
        PredictInput(f"input {i}", content)
        for i, content in enumerate([data] if is_single else data)
    ]
    for location, content in inputs:
        if not isinstance(content, str | Mapping):
            raise InputError(f"{location}: {content!r} is no input. Give a text or a dictionary.")
    return inputs, is_single


def check_inputs(name: str, value: Any) -> None:
    """Raise InputError if an argument is neither one input nor several."""
    check_argument(name, value)
    if not isinstance(value, Iterable):
        raise InputError(f"{name}={value!r}: no input. Give a text, a dictionary or several.")


def check_argument(name: str, value: Any) -> None:
    """Raise InputError for None, and for a DataFrame, which iterates over names of columns."""
    if value is None:
        raise InputError(f"{name}=None: no input. Give one or several.")
    if hasattr(value, "to_dict") and hasattr(value, "columns"):
        raise InputError(
            f'{name}: a DataFrame. Give its rows, df.to_dict("records"), or the texts of a column, '
            'df["text"].tolist().'
        )


def _wrong_count(inputs: Sequence[PredictInput], how: str) -> RuntimeError:
    """Return the error of a user's pipeline whose answers would go to other inputs."""
    return RuntimeError(
        f"the pipeline returned {how} answers than the {len(inputs)} inputs. Have its postprocess "
        "return one for each input."
    )
