"""Contract of a pipeline: from requests to batches, and from the model's outputs to answers.

A predictor is a model with the pipeline of its task. Serving, the command line and the Python
interface use nothing else of a task. The names are those of `transformers` pipelines.
"""

import abc
import dataclasses
import difflib
import functools
import json
import shlex
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from bertjax.config.config import Config
from bertjax.config.fields import Options, override_options
from bertjax.model.decoder.options import Decoding
from bertjax.steps.objective import Objective
from bertjax.tasks.input_lines import (
    InputLines,
    is_json_file,
    json_records,
    numbered_lines,
    parse_line,
)
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.tokenization import Tokenizer

_MAX_BARS = 20  # of a chart

HostBatch = dict[str, np.ndarray]  # the sequences of a global batch that one process feeds
Content = str | Mapping[str, Any]
Outputs = Mapping[str, np.ndarray]
Context = TypeVar("Context")


class RunFunction(Protocol):
    """Computation of batches by a model; see `bertjax.training.prediction.batch_runner`."""

    def __call__(
        self, batches: Iterable[HostBatch], decoding: Decoding | None = None
    ) -> Iterator[Outputs]:
        """Yield the outputs of each batch, or generated targets."""


class PredictInput(NamedTuple):
    """One input of a prediction.

    Attributes:
      location: where it was read, for error messages, such as "line 3".
      content: a text, or an object with the keys that the task reads.
    """

    location: str
    content: Content


class FormField(NamedTuple):
    """A text box of the web page.

    Attributes:
      name: key in the input object; "" if the text is the whole input.
      label: title above the box.
      value: initial text.
      num_lines: height of the box.
      format: "text" sends a string, "lines" a list of its lines, and "json" an object if the text
        begins with a brace.
    """

    name: str
    label: str
    value: str = ""
    num_lines: int = 3
    format: Literal["text", "lines", "json"] = "text"


class Pipeline(abc.ABC, Generic[Context]):
    """Preprocessing of inputs and postprocessing of outputs for the models of one task.

    It needs no training data. `Context` is what `postprocess` needs besides the outputs.

    Class attributes:
      method: name of the method of `bertjax.Model` that predicts, such as "fill_mask".
      description: verb phrase that completes "this model ...".
      max_batch_inputs: largest number of inputs of one call of `preprocess`.

    Args:
      objective: objective of the model's task.
      tokenizer: tokenizer of the model.
      labels: names of its classes in the order of their ids, of one head after the other; empty
        if it has none.
      calibration: values that an evaluation chose, such as a threshold, by name.
    """

    def __init_subclass__(cls) -> None:
        check_methods(cls)

    method: ClassVar[str] = "predict"
    description: str = "predicts"
    max_batch_inputs: ClassVar[int] = 4096

    def __init__(
        self,
        objective: Objective,
        tokenizer: Tokenizer,
        labels: Sequence[str] = (),
        calibration: Mapping[str, float] | None = None,
    ) -> None:
        self.objective, self.tokenizer = objective, tokenizer
        self.labels, self.calibration = tuple(labels), calibration or {}

    @property
    def config(self) -> Config:
        """Configuration of the model's run."""
        return self.objective.config

    @property
    def label_sets(self) -> Mapping[str, tuple[str, ...]]:
        """Labels of each head, of a model whose heads have a label set each."""
        return self.config.model.split_labels(self.labels)

    @property
    def max_input_tokens(self) -> int:
        """Tokens of the longest sequence that the pipeline builds."""
        return self.config.max_seq_length

    @staticmethod
    def parse_arguments(*args: Any, **kwargs: Any) -> Any:
        """Convert the arguments of `method` to one input or several, for `bertjax.Model.predict`.

        An override gives the method of `bertjax.Model` its signature and its docstring.
        """
        (inputs,) = (*args, *kwargs.values())  # the only argument, whatever its name
        return inputs

    @staticmethod
    def parse_lines(lines: Iterable[str], file_name: str = "") -> Iterable[PredictInput]:
        """Return the inputs in the lines of a file: texts or JSON objects; skip blank lines.

        Lines are read lazily, unless a format needs the whole file. All objects of a JSON file may
        also be in one list. `InputLines.with_invalid` has the blank and invalid lines, too.

        Args:
          lines: lines of the file.
          file_name: name of the file, whose suffix may give the format; see `parse_line`.

        Raises:
          InputError: a line is not valid JSON; the message names its number.
        """
        records = json_records(lines) if is_json_file(file_name) else numbered_lines(lines)
        return InputLines(records, functools.partial(_parse_record, file_name))

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the keys that it may read from an input object, by default those that there are.

        Others are rejected in a request, and reported in a file.
        """
        return content.keys()

    @abc.abstractmethod
    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterable[HostBatch], Context]:
        """Return the batches of up to `max_batch_inputs` inputs, and the context of their outputs.

        Raises:
          InputError: an input is invalid; the message begins with its location.
        """

    @abc.abstractmethod
    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Return the answer to each input, in order, as plain JSON values.

        The answer to an input that lost tokens has `truncation_mark`.

        Args:
          context: second result of `preprocess`.
          outputs: outputs of the objective's `apply`, batch by batch.
          return_all_scores: add the scores of all labels or choices.
        """

    def predict(
        self, run: RunFunction, inputs: Sequence[PredictInput], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Return the answer to each input; override it if one answer takes several passes.

        Args:
          run: computes the outputs of batches.
          inputs: at most `max_batch_inputs`.
          return_all_scores: see `postprocess`.
        """
        batches, context = self.preprocess(inputs)
        return self.postprocess(context, run(batches), return_all_scores)

    def decoding(self, context: Context) -> Decoding | None:
        """Return the constants of the program for the batches of `preprocess`.

        None stands for the objective's `apply`.
        """
        return None

    def sample_input(self, text: str = "Some text.", word: str = "text") -> Content:
        """Return a valid input in which `text` is the long part and `word` stands for the others.

        With the defaults it is an example for help texts and the web page. The server passes texts
        of several lengths to compile before the first request.
        """
        return text

    def form_fields(self) -> Sequence[FormField]:
        """Return the text boxes of the web page; by default one for each key of the sample."""
        sample = self.sample_input()
        if isinstance(sample, str):
            return [FormField("", "Text", sample, 5, "json")]
        return [
            FormField(name, name.replace("_", " ").capitalize(), value)
            if isinstance(value, str)
            else FormField(name, f"{name.capitalize()}, one a line", "\n".join(value), 5, "lines")
            for name, value in sample.items()
        ]

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the blocks that show an answer on the web page; an empty list shows JSON.

        Args:
          content: the input.
          answer: its answer with all scores.

        Returns:
          Blocks made by `text_block` and `bar_block`.
        """
        return []


def check_methods(cls: type) -> None:
    """Raise TypeError if a class replaces a method, such as `known_keys`, by a plain value."""
    kinds = types.FunctionType, staticmethod, classmethod
    for name, value in vars(cls).items():
        inherited = next((vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)), None)
        if isinstance(inherited, kinds) and not (callable(value) or isinstance(value, kinds)):
            raise TypeError(f"{cls.__name__}.{name}={value!r}: is a method. Define a function.")


def _parse_record(file_name: str, location: str, record: str | dict[str, Any]) -> PredictInput:
    content = parse_line(location, record, file_name) if isinstance(record, str) else record
    return PredictInput(location, content)


def parse_text_lines(lines: Iterable[str], file_name: str = "") -> Iterable[PredictInput]:
    """Return every line as a text, even if it is empty or starts with a brace.

    Files whose names end in `.jsonl`, `.ndjson` or `.json` are read as by `Pipeline.parse_lines`.
    """
    if is_json_file(file_name):
        return Pipeline.parse_lines(lines, file_name)
    return (PredictInput(f"line {number}", line.strip()) for number, line in enumerate(lines, 1))


def unread_keys(pipeline: Pipeline[Any], item: PredictInput) -> list[str]:
    """Return the keys of an input that a pipeline ignores."""
    content = item.content
    if isinstance(content, str):
        return []
    known = pipeline.known_keys(content)
    return [name for name in content if name not in known]


def check_keys(pipeline: Pipeline[Any], item: PredictInput) -> None:
    """Raise InputError for a key of an input that a pipeline would ignore."""
    for name in unread_keys(pipeline, item):
        assert not isinstance(item.content, str)
        known = sorted(pipeline.known_keys(item.content))
        (nearest,) = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)
        raise InputError(
            f"{item.location}: the model does not read the key {name!r}. Leave it out, or write "
            f"{nearest!r}."
        )


def require_text(item: PredictInput) -> str:
    """Return the text of an input, or that of its key "text"; raise InputError without one."""
    content = item.content
    text = content if isinstance(content, str) else content.get("text")
    if not isinstance(text, str):
        raise InputError(
            f'{item.location}: no text. Give a text, or an object with the key "text".'
        )
    return text


def pair_arguments(**columns: Any) -> list[dict[str, Any]]:
    """Return one input object for each element of two columns of equal length."""
    lists = {name: list(values) for name, values in columns.items()}
    (first, count), (second, other_count) = ((n, len(values)) for n, values in lists.items())
    if count != other_count:
        raise InputError(
            f"{first}, {second}: {count} and {other_count} inputs. Give as many of each."
        )
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def option_names(option_class: type) -> list[str]:
    """Return the names of all options of a dataclass."""
    return [field.name for field in dataclasses.fields(option_class)]


def add_options(
    inputs: Content | Iterable[Content], options: Mapping[str, Any], option_class: type, key: str
) -> Any:
    """Return one input or several with the options of a call.

    Args:
      inputs: texts or objects, one or several.
      options: options by name, which the pipeline reads from an object.
      option_class: dataclass of all options.
      key: key of a text in an object.

    Raises:
      InputError: there is no such option.
    """
    known = option_names(option_class)
    for name, value in options.items():
        if name not in known:
            raise InputError(f"{name}={value!r}: no such option. Use some of {', '.join(known)}.")
    if not options:
        return inputs
    is_single = isinstance(inputs, str | Mapping)
    objects = [
        {**(item if isinstance(item, Mapping) else {key: item}), **options}
        for item in ([inputs] if is_single else inputs)
    ]
    return objects[0] if is_single else objects


def input_options(item: PredictInput, defaults: Options) -> Options:
    """Return the options of an input: the defaults with its own.

    Raises:
      InputError: an option has the wrong type, or is out of its range.
    """
    content = item.content if isinstance(item.content, Mapping) else {}
    try:
        return override_options(defaults, content)
    except InputError as error:
        raise InputError(f"{item.location}: {error}") from None


def option_fields(options: object, names: Iterable[str]) -> list[FormField]:
    """Return a text box for each of these options, with its value."""
    return [
        FormField(name, name.replace("_", " ").capitalize(), str(getattr(options, name)), 1)
        for name in names
    ]


def truncation_mark(is_truncated: bool) -> dict[str, Any]:
    """Return what the answer to an input says that lost tokens, because it was too long."""
    return {"truncated": True} if is_truncated else {}


def round_scores(scores: np.ndarray) -> list[float]:
    """Return scores as they are printed, with six decimals."""
    return [round(score, 6) for score in scores.tolist()]


def text_block(
    text: str, spans: Iterable[tuple[int, int, str]] = (), muted: bool = False
) -> dict[str, Any]:
    """Return a paragraph for the web page.

    Args:
      text: the paragraph.
      spans: marked parts, ascending: start, end (exclusive) and label, which may be "".
      muted: show the paragraph as a remark.
    """
    return {"type": "text", "text": text, "spans": [*spans], "muted": muted}


def bar_block(scores: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """Return a bar chart for the web page from names and scores in [0, 1], highest first."""
    ranked = sorted(scores, key=lambda pair: -pair[1])[:_MAX_BARS]
    return {"type": "bars", "scores": ranked}


def predict_arguments(content: Content) -> str:
    """Return the arguments of `bertjax predict` for one input, quoted for a shell."""
    if isinstance(content, str):
        return f"--text {shlex.quote(content)}"
    if all(isinstance(value, str) for value in content.values()):
        pairs = (f"{name}={value}" for name, value in content.items())
        return " ".join(f"--field {shlex.quote(pair)}" for pair in pairs)
    return f"--text {shlex.quote(json.dumps(content))}"
