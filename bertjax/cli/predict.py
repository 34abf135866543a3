"""Predict with a model of any task, as JSON lines, or write its logits for distillation."""

import argparse
import functools
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

from bertjax.cli.config_args import add_config, check_config
from bertjax.cli.distributed import add_share_arguments, find_share
from bertjax.cli.files import (
    add_checkpoint,
    as_json,
    check_directory,
    check_output,
    find_inputs,
    open_output,
)
from bertjax.cli.input_files import InputReader, input_file_reader
from bertjax.cli.jax_setup import enable_compilation_cache
from data_pipelines.errors import InputError
from data_pipelines.paths import check_file, is_remote

if TYPE_CHECKING:
    from bertjax.mesh.cluster import ProcessShare

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
        help="lines of text or JSON objects; a table (.csv, .tsv, .parquet); a file in another "
        "format of the model's task; - for standard input; an invalid input gets a line with its "
        "error; with --num-processes also a directory or pattern",
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

    share = find_share(args)
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
    for text in args.field or ():
        _parse_field(text)
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
    if share := find_share(args):
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
    written.report_errors(args.input)
    if args.output != "-":
        print(
            f"{args.output}: {written.count - len(written.errors):,} predictions.", file=sys.stderr
        )


class _Written:
    """Answers that were written.

    Attributes:
      count: number of answers.
      errors: those of invalid inputs.
    """

    def __init__(self) -> None:
        self.count = 0
        self.errors: list[str] = []

    def write(self, answers: Iterable[dict[str, Any]], sink: TextIO) -> None:
        """Write answers as JSON lines."""
        for answer in answers:
            # Flushing a remote file would write it again as a whole.
            print(as_json(answer), file=sink, flush=sink is sys.stdout)
            self.count += 1
            self.errors += [answer["error"]] if answer.keys() == {"error"} else []

    def report_errors(self, source: str) -> None:
        """Print how many inputs were invalid, if any."""
        if self.errors:
            print(
                f"{source}: {len(self.errors):,} of {self.count:,} inputs are invalid: their lines "
                f'have an "error" in place of a prediction. The first: {self.errors[0]}',
                file=sys.stderr,
            )


def _predict_shards(args: argparse.Namespace, share: "ProcessShare") -> None:
    from etils import epath

    from bertjax.inference.output_shards import InputFile, Shard, ShardsWriter
    from bertjax.inference.predictor import Predictor, open_model
    from bertjax.tasks.pipeline import PredictInput
    from bertjax.workdir.lock import WorkdirLock
    from data_pipelines.paths import atomic_write

    model = open_model(args.checkpoint)
    predictor, written = Predictor(model, args.overrides), _Written()

    def write_shard(
        shard: Shard[PredictInput], path: epath.Path, folder: epath.Path, lock: WorkdirLock
    ) -> None:
        answers = predictor.predict(
            *(iter(shard.items), _FILE_BATCH_SIZE, args.return_all_scores),
            from_file=True,
            is_start=shard.first == 0,
        )
        with atomic_write(path, folder) as draft:
            with draft.open("w") as file:
                written.write(answers, file)
            lock.check()

    settings = {
        "model": model.digest,
        "vocabulary": predictor.pipeline.tokenizer.fingerprint(),
        "return_all_scores": args.return_all_scores,
        **args.overrides,
    }
    writer = ShardsWriter[PredictInput](
        *(epath.Path(args.output), ".jsonl", settings, _INPUTS_PER_SHARD),
        lambda item: json.dumps(item.content, sort_keys=True).encode(),
        share,
    )

    def read(path: str) -> Iterable[PredictInput]:
        return input_file_reader(path)(predictor.pipeline)

    files = [
        InputFile(os.path.basename(path), functools.partial(read, path))
        for path in find_inputs(args.input)
    ]
    summary = writer.write(files, write_shard)
    written.report_errors(args.input)
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


def _input_reader(args: argparse.Namespace) -> InputReader:
    """Return a function that reads the inputs for a pipeline."""
    from bertjax.tasks.pipeline import PredictInput

    if args.field is not None:
        content = dict(_parse_field(text) for text in args.field)
        return lambda pipeline: [PredictInput("line 1", content)]
    if args.text is not None:
        return lambda pipeline: pipeline.parse_lines(args.text)
    return input_file_reader(args.input)


def _parse_field(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise InputError(f"--field={text}: not of the form KEY=TEXT. Write such a pair.")
    return key, value
