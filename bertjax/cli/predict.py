"""Predict with a model of any task, as JSON lines, or write its logits for distillation."""

import argparse
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TextIO

from bertjax.cli.config_args import add_config, check_config
from bertjax.cli.distributed import add_share_arguments, share_from_args
from bertjax.cli.files import (
    add_checkpoint,
    as_json,
    check_directory,
    check_output,
    find_inputs,
    open_output,
)
from bertjax.cli.input_files import input_file_reader
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file, is_remote

if TYPE_CHECKING:
    from bertjax.mesh.cluster import ProcessShare
    from bertjax.tasks.input_lines import InvalidInput
    from bertjax.tasks.pipeline import Pipeline, PredictInput

    _Reader = Callable[[Pipeline[Any]], Iterable[PredictInput | InvalidInput]]

ORDER = 70
EXAMPLE = "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'"
# Inputs of a file that are predicted together: the remainder of each part compiles a program of its
# own. A reader of standard output waits for fewer, and a writer to standard input for one.
_FILE_BATCH_SIZE, _STDOUT_BATCH_SIZE = 4096, 1024
_INPUTS_PER_SHARD = 4 * _FILE_BATCH_SIZE  # of several processes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    add_checkpoint(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help="lines of text or JSON objects (.jsonl, if the model fills masks or continues a text);"
        " a table (.csv, .tsv, .parquet); a file in another "
        "format of the model's task; - for standard input; an invalid input or blank line of a "
        "file gets a line with its error; with --num-processes also a directory or pattern",
    )
    source.add_argument(
        "--text", action="append", metavar="LINE", help="one input; may be repeated"
    )
    source.add_argument(
        "--field",
        action="append",
        metavar="KEY=TEXT",
        help="one key of an input object; repeat it for other keys",
    )
    source.add_argument(
        "--save-logits",
        metavar="FILE",
        help="write the logits for the training data of --config, from which --config.distill."
        "logits=FILE learns; the same command resumes an interrupted one",
    )
    add_config(
        parser,
        default_text="with --save-logits: that of the checkpoint; else fields of decoding "
        "and extraction alone",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        default=0,
        metavar="N",
        help="with --save-logits: store the N largest logits of a softmax and the sum of the "
        "other probabilities; 0 for all (%(default)s)",
    )
    parser.add_argument(
        "--return-all-scores", action="store_true", help="return the score of every label or choice"
    )
    parser.add_argument(
        "--output",
        default="-",
        metavar="FILE",
        help="file for the predictions, with --num-processes a directory of files, which the same "
        "command resumes; - for standard output (%(default)s)",
    )
    add_share_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Check the arguments."""
    from bertjax.formats.detection import check_predicts, find_format
    from data_pipelines.vocabulary.basic_tokenization import is_blank

    share = share_from_args(args)
    if share and (args.input is None or args.output == "-"):
        raise InputError("--num-processes: needs --input and --output. Name files and a directory.")
    if args.save_logits:
        if args.output != "-" or args.return_all_scores:
            raise InputError(
                "--output, --return-all-scores: are of predictions, not of --save-logits. Leave "
                "them out."
            )
        if args.top_k < 0:
            raise InputError(f"--top-k={args.top_k}: negative. Use 0 for all logits.")
        check_output(args.save_logits)
        find_format(args.checkpoint)
        check_config(args)
        return
    if args.config or args.top_k:
        raise InputError("--config, --top-k: for --save-logits alone. Leave them out.")
    for name in args.overrides:
        if not name.startswith(("decoding.", "extraction.")):
            raise InputError(
                f"--config.{name}: for --save-logits alone; predictions read --config.decoding."
                "FIELD and --config.extraction.FIELD. Leave it out."
            )
    if any(map(is_blank, args.text or ())):
        raise InputError("--text: empty. Write a text.")
    if share:
        check_directory(args.output, "--output")
        find_inputs(args.input)
    elif (
        args.output != "-"
        and args.input
        and _resolve_path(args.output) == _resolve_path(args.input)
    ):
        raise InputError(
            f"--output={args.output}: is the input, which would be lost. Name another."
        )
    _parse_fields(args.field or ())
    if args.input not in (None, "-") and not share:
        check_file(args.input)
    if args.output != "-" and not share:
        if args.output.endswith((".csv", ".tsv", ".parquet")):
            raise InputError(f"--output={args.output}: predictions are JSON lines. Name it .jsonl.")
        check_output(args.output)
    check_predicts(args.checkpoint)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    from bertjax.inference.predictor import Predictor
    from bertjax.tasks.pipeline import predict_arguments

    enable_compilation_cache()
    if args.save_logits:
        _save_logits(args)
        return
    if share := share_from_args(args):
        _predict_shards(args, share)
        return
    read_inputs = _input_reader(args)
    batch_size = _STDOUT_BATCH_SIZE if args.output == "-" else _FILE_BATCH_SIZE
    if args.input == "-":
        batch_size = 1
    with open_output(args.output) as sink:
        predictor, written = Predictor(args.checkpoint, args.overrides), _Written()
        inputs, is_file = read_inputs(predictor.pipeline), args.input is not None
        answers = predictor.predict(inputs, batch_size, args.return_all_scores, is_file)
        try:
            written.write(answers, sink)
        except InputError as error:
            if args.input is not None:  # the error names the line
                raise
            pipeline = predictor.pipeline
            sample = predict_arguments(pipeline.sample_input())
            raise InputError(f"{error} This model {pipeline.description}: {sample}") from error
    _report_invalid(args.input, written.count, written.num_invalid, written.first_error)
    if args.output != "-":
        count = written.count - written.num_invalid
        print(f"{args.output}: {count:,} predictions.", file=sys.stderr)


class _Written:
    """Answers that were written.

    Attributes:
      count: number of answers.
      num_invalid: number of those that are errors of invalid inputs.
      first_error: the first of them, "" without any.
    """

    def __init__(self) -> None:
        self.count = self.num_invalid = 0
        self.first_error = ""

    def write(self, answers: Iterable[dict[str, Any]], sink: TextIO) -> None:
        """Write answers as JSON lines."""
        for answer in answers:
            # Flushing a remote file would write it again as a whole.
            print(as_json(answer), file=sink, flush=sink is sys.stdout)
            self.count += 1
            if answer.keys() == {"error"}:
                self.num_invalid += 1
                self.first_error = self.first_error or answer["error"]


def _report_invalid(source: str, count: int, num_invalid: int, first_error: str) -> None:
    """Print how many of the inputs were invalid, if any."""
    if num_invalid:
        print(
            f"{source}: {num_invalid:,} of {count:,} inputs are invalid: their lines have an "
            f'"error" in place of a prediction. The first: {first_error}',
            file=sys.stderr,
        )


def _predict_shards(args: argparse.Namespace, share: "ProcessShare") -> None:
    from etils import epath

    from bertjax.inference.output_records import InputProblems
    from bertjax.inference.output_shards import InputFile, Shard, ShardsWriter
    from bertjax.inference.predictor import Predictor, open_model
    from bertjax.tasks.inference_settings import make_settings
    from bertjax.tasks.input_lines import InvalidInput
    from bertjax.tasks.pipeline import PredictInput
    from bertjax.tasks.registry import find_task
    from bertjax.workdir.lock import WorkdirLock
    from data_pipelines.paths import atomic_write

    model = open_model(args.checkpoint)
    predictor = Predictor(model, args.overrides)

    def write_shard(
        shard: Shard[PredictInput | InvalidInput],
        path: epath.Path,
        lock: WorkdirLock,
    ) -> InputProblems:
        written = _Written()
        answers = predictor.predict(
            *(iter(shard.items), _FILE_BATCH_SIZE, args.return_all_scores),
            from_file=True,
            is_start=shard.first == 0,
        )
        with atomic_write(path, lock.workdir) as draft:
            with draft.open("w") as file:
                written.write(answers, file)
            lock.confirm()
        return InputProblems(num_invalid=written.num_invalid, first_error=written.first_error)

    task = find_task(predictor.config.task)
    stored = make_settings(task, predictor.config, predictor.pipeline.calibration)
    settings = {
        **(stored.fields if stored else {}),  # a digest of a published model is of its parameters
        "model": model.digest,
        "vocabulary": predictor.pipeline.tokenizer.fingerprint(),
        "return_all_scores": args.return_all_scores,
        **args.overrides,
    }

    def to_bytes(item: PredictInput | InvalidInput) -> bytes:
        content = item.error if isinstance(item, InvalidInput) else item.content
        return json.dumps(content, sort_keys=True).encode()

    writer = ShardsWriter[PredictInput | InvalidInput](
        *(epath.Path(args.output), ".jsonl", settings, _INPUTS_PER_SHARD), to_bytes, share
    )

    def read(path: str) -> "Iterable[PredictInput | InvalidInput]":
        return _file_reader(path)(predictor.pipeline)

    files = [
        InputFile(os.path.basename(path), functools.partial(read, path))
        for path in find_inputs(args.input)
    ]
    summary = writer.write(files, write_shard)
    problems = summary.problems
    _report_invalid(args.input, summary.rows, problems.num_invalid, problems.first_error)
    print(f"{args.output}: {summary.describe('predictions', share)}", file=sys.stderr)


def _save_logits(args: argparse.Namespace) -> None:
    from bertjax.inference.logits_saving import save_logits
    from bertjax.workdir.run_config import make_run_config

    # The teacher makes the section valid that names texts without labels.
    overrides = args.overrides | {"distill.teacher": repr(args.checkpoint), "distill.logits": "''"}
    checkpoint = None if args.config else args.checkpoint
    config = make_run_config(args.config_fields, overrides, checkpoint=checkpoint)
    count = save_logits(args.checkpoint, config, args.save_logits, args.top_k)
    print(f"{args.save_logits}: logits of {count:,} examples.", file=sys.stderr)


def _resolve_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _input_reader(args: argparse.Namespace) -> "_Reader":
    """Return a function that reads the inputs for a pipeline."""
    from bertjax.tasks.pipeline import PredictInput

    if args.field is not None:
        content = _parse_fields(args.field)
        return lambda pipeline: [PredictInput("line 1", content)]
    if args.text is not None:
        return lambda pipeline: pipeline.parse_lines(args.text)
    if args.input == "-":
        return input_file_reader("-")
    return _file_reader(args.input)


def _file_reader(path: str) -> "_Reader":
    """Return a function that reads the inputs of a file, and its lines that are none."""
    from bertjax.tasks.input_lines import InputLines

    read_inputs = input_file_reader(path)

    def read(pipeline: "Pipeline[Any]") -> "Iterable[PredictInput | InvalidInput]":
        inputs = read_inputs(pipeline)
        return inputs.with_invalid() if isinstance(inputs, InputLines) else inputs

    return read


def _parse_fields(texts: Iterable[str]) -> dict[str, str]:
    """Return the input object of `--field` arguments.

    Raises:
      InputError: one has another form, or a key is repeated.
    """
    content: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise InputError(f"--field={text}: not of the form KEY=TEXT. Write such a pair.")
        if key in content:
            raise InputError(f"--field={text}: {key} has a value already. Give each key once.")
        content[key] = value
    return content
