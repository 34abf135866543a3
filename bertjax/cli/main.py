"""The command line: `bertjax VERB ...` parses, calls and prints.

Exit status: 0 done; 2 a usage or input error, one sentence on standard error; 75 a run that a
signal or the loss of another host ended early, to be run again; 1 anything else.
"""

import argparse
import contextlib
import difflib
import functools
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from etils import epath

from bertjax.errors import CHILD, RunError
from data_pipelines.errors import InputError

if TYPE_CHECKING:
    from bertjax.preflight.judge import Verdict
    from bertjax.preflight.topology import Topology
    from bertjax.training.config import Config

_TOGETHER = 64  # lines of a file that are answered at once; standard input may wait for its answer
Work = Callable[[], int | None]  # what is left to do once all input has been checked

_EXAMPLES = {
    "vocab": "bertjax vocab --input 'text/*.txt' --size 30522 --output vocab.txt",
    "prepare": "bertjax prepare --input 'text/*.txt' --vocab vocab.txt --output corpora/mine",
    "inspect": "bertjax inspect --config experiments/pretrain.py:smoke,data=corpora/mine --steps 1",
    "preflight": "bertjax preflight --config experiments/pretrain.py:model=base --topology v5e:4x4",
    "train": "bertjax train --config experiments/pretrain.py:smoke,data=corpora/mine "
    "--workdir runs/smoke",
    "evaluate": "bertjax evaluate --config experiments/pretrain.py:smoke,data=corpora/mine "
    "--checkpoint runs/smoke --output runs/smoke/scores",
    "predict": "bertjax predict --checkpoint runs/smoke --text 'the [MASK] of the file .'",
    "score": "bertjax score squad --data dev-v2.0.json --predictions predictions.json "
    "--null-odds null_odds.json",
    "convert": "bertjax convert --to hf runs/base-2 exported",
    "report": "bertjax report runs/smoke",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns the exit status."""
    # Before anything imports tensorflow, which serves data alone here and need not say more.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for ours in ("bertjax", "data_pipelines"):
        logging.getLogger(ours).setLevel(logging.INFO)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # its errors reach us as exceptions
    argv = sys.argv[1:] if argv is None else argv
    args, rest = _parser().parse_known_args(argv)
    args.argv = argv
    if CHILD not in os.environ:
        return _run(args, rest)
    from bertjax.mesh import hosts

    return hosts.run_child(functools.partial(_run, args, rest))


def _run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    try:
        try:
            _check_buckets(args.argv)
            args.rest = args.parse_rest(rest)
            work = args.verb(args)
        except (InputError, NotADirectoryError, IsADirectoryError) as error:
            return _fail(error, 2)
        return (work and work()) or 0
    except (RunError, OSError) as error:
        return _fail(error, getattr(error, "status", 1))
    except _bucket_errors() as error:
        return _fail(error, 1)


def _fail(error: BaseException, status: int) -> int:
    print(f"bertjax: {' '.join(str(error).split())}", file=sys.stderr)
    return status


def _bucket_errors() -> tuple[type[Exception], ...]:
    """What tensorflow raises where a bucket lets us do too little; they are no OSErrors."""
    if "tensorflow" not in sys.modules:
        return ()
    from tensorflow import errors

    return errors.PermissionDeniedError, errors.UnauthenticatedError


def _check_buckets(argv: Sequence[str]) -> None:
    """Refuses a bucket that does not exist: tensorflow would try for ever to write into it."""
    for bucket in sorted(set(re.findall(r"gs://[^/,\s]+", " ".join(argv)))):
        try:
            exists = epath.Path(bucket).exists()
        except _bucket_errors():  # who may use its objects may not always look at the bucket itself
            continue
        if not exists:
            raise InputError(f"there is no bucket {bucket}: name one that exists.")


def _refuse(rest: Sequence[str]) -> None:
    """What a verb does with arguments that its parser does not know."""
    if rest:
        raise InputError(f"{rest[0]} is no argument of this command: see --help.")


def parse_overrides(rest: Sequence[str]) -> dict[str, str]:
    """`--config.a.b=value` arguments as {"a.b": "value"}."""
    _refuse([item for item in rest if not item.startswith("--config.")])
    overrides = {}
    for item in rest:
        name, equals, value = item.removeprefix("--config.").partition("=")
        if not equals:
            raise InputError(f"{item} has no value: write {item}=VALUE.")
        overrides[name] = value
    return overrides


def _load_config(args: argparse.Namespace) -> "Config":
    from bertjax.formats.opening import find_model
    from bertjax.tasks import registry
    from bertjax.training.config import load_config

    # A checkpoint to evaluate says what model it is, as what a run begins with does.
    named = {"init": repr(args.checkpoint[0])} if "checkpoint" in args else {}
    return load_config(args.config, named | args.rest, registry.data_fields(), find_model)


def _vocab(args: argparse.Namespace) -> None:
    from data_pipelines.text.sources import read_documents
    from data_pipelines.vocabulary.training import train_vocabulary

    lines = (line for document in read_documents(args.input, args.field) for line in document)
    path = train_vocabulary(
        lines, size=args.size, cased=args.cased, kind=args.kind, output=args.output
    )
    print(f"{args.size:,} pieces in {path}")


def _prepare(args: argparse.Namespace) -> None:
    from data_pipelines.corpus.prepare import prepare
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer = load_tokenizer(args.vocab, cased=args.cased)
    options = {
        "held_out": args.held_out,
        "dedup": args.dedup,
        "shards": args.shards,
        "text_field": args.field,
    }
    if args.runner:
        from data_pipelines.corpus.beam import prepare_with_beam

        flags = [f"--runner={args.runner}", *args.rest]
        manifest = prepare_with_beam(args.input, tokenizer, args.output, flags, **options)
    else:
        _refuse(args.rest)
        manifest = prepare(
            args.input,
            tokenizer,
            args.output,
            workers=args.workers,
            progress=sys.stderr,
            **options,
        )
    totals = [_counted(name, number) for name, number in manifest.totals.items()]
    print(f"{args.output}: {', '.join(totals)}.")


def _counted(name: str, number: float) -> str:
    """("bytes_of_text", 1200) -> "1,200 bytes of text"; shares in percent."""
    shown = f"{number:,}" if isinstance(number, int) else f"{number:.3%}"
    return f"{shown} {name.replace('_', ' ')}"


def _inspect(args: argparse.Namespace) -> None:
    from bertjax.runs.inspection import parameter_table, save_batches, show_batches

    config = _load_config(args)
    if args.params:
        print(parameter_table(config))
    elif args.save:
        save_batches(config, args.start, args.steps, args.hosts, args.host, args.save)
    else:
        for text in show_batches(config, args.start, args.steps, args.hosts, args.host):
            print(text)


def _preflight(args: argparse.Namespace) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # nothing runs, so no accelerator is taken
    from bertjax.preflight.judge import preflight, remedies
    from bertjax.preflight.topology import Topology
    from bertjax.preflight.verdict import describe

    topology, config = Topology(args.topology), _load_config(args)
    judge = _search if args.search else preflight
    verdict = judge(config, topology)
    print(describe(verdict), flush=True)
    if args.json:
        epath.Path(args.json).write_text(verdict.to_json())
    if not verdict.train.fits:
        for change, changed in remedies(config, topology):
            print(f"\nwith {change}: {describe(changed).splitlines()[0]}", flush=True)


def _search(config: "Config", topology: "Topology") -> "Verdict":
    """Prints the most rows a device that fit; returns the verdict on the most of all."""
    from bertjax.preflight.judge import largest_batch

    found = []
    for remat in (False, True):
        verdict = largest_batch(config, topology, remat)
        rows = "none fits" if verdict is None else f"{verdict.train.rows_per_device} fit"
        print(f"rows a device {'with' if remat else 'without'} remat: {rows}", flush=True)
        found += [verdict] if verdict else []
    if not found:
        raise RunError(
            f"not even {config.accumulation} rows a device, one in each part of the accumulation, "
            f"fit {topology.name}: use more devices or a mesh that splits the model."
        )
    print()
    return max(found, key=lambda verdict: verdict.train.rows_per_device)


def _train(args: argparse.Namespace) -> Work:
    from bertjax.runs.train import Run

    config = _load_config(args)
    return _join_hosts(args, saves=True) or Run(config, args.workdir).train


def _evaluate(args: argparse.Namespace) -> Work | None:
    from bertjax.mesh import hosts
    from bertjax.runs.evaluate import evaluate
    from bertjax.tasks.contract import EVALUATION_FILE

    output = epath.Path(args.output)
    if output.exists() and not output.is_dir():
        raise InputError(f"--output={output} is a file: name a directory.")
    config = _load_config(args)
    if supervise := _join_hosts(args, saves=False):
        return supervise
    found = evaluate(config, *args.checkpoint)
    if hosts.is_first():
        print(json.dumps(found.scores, indent=1))
        output.mkdir(parents=True, exist_ok=True)
        about = {"checkpoints": args.checkpoint, "config": config.to_dict()}
        contents = {f"{name}.json": content for name, content in found.files.items()}
        contents |= {"scores.json": found.scores, EVALUATION_FILE: about}
        for name, content in contents.items():
            with _output(str(output / name)) as sink:
                sink.write(_json(content, indent=1))
    return None


def _join_hosts(args: argparse.Namespace, saves: bool) -> Work | None:
    """Joins the other hosts, if there are any; or gives the work of the parent of what does."""
    from bertjax.mesh import hosts

    cluster = hosts.find_cluster(args.coordinator, args.hosts, args.host)
    if cluster and not hosts.is_child():
        return functools.partial(hosts.supervise, args.argv)
    hosts.join(cluster, saves)
    return None


def _predict(args: argparse.Namespace) -> None:
    from bertjax.runs.predict import Predictor

    if (args.question is None) != (args.context is None):
        raise InputError("--question and --context go together: give both.")
    if args.question is not None:
        args.text = json.dumps({"question": args.question, "context": args.context})
    lines = _input(args.input) if args.text is None else contextlib.nullcontext([args.text])
    with lines as source, _output(args.output) as sink:
        together = _TOGETHER if args.text is None and args.input != "-" else 1
        for answer in Predictor(args.checkpoint).answers(source, together):
            # A remote file that is flushed is written anew as a whole.
            print(_json(answer), file=sink, flush=sink is sys.stdout)


def _json(content: object, indent: int | None = None) -> str:
    """In JSON, of which half of a surrogate pair is escaped, which UTF-8 cannot hold."""
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    return text.encode(errors="backslashreplace").decode()


def _score(args: argparse.Namespace) -> None:
    if args.benchmark == "squad":
        from bertjax.tasks.reading import scoring as squad

        scores = squad.score_files(args.data, args.predictions, args.null_odds)
    elif args.null_odds:
        raise InputError("every question of CMRC has an answer: leave --null-odds out.")
    else:
        from bertjax.tasks.reading import cmrc

        scores = cmrc.score_files(args.data, args.predictions)
    print(json.dumps(scores, indent=1))


def _convert(args: argparse.Namespace) -> None:
    from bertjax.formats.opening import find_format
    from bertjax.runs.convert import convert

    style = args.style or find_format(args.source)
    model = convert(args.source, args.target, style, args.to)
    shape = f"{model.config.num_layers} layers, {model.config.hidden_size} wide"
    print(f"{args.target}: {', '.join(model.params)} of {shape}, from {style} to {args.to}.")
    if model.tokenizer is None:
        print(f"{args.source} has no vocabulary: put vocab.txt beside it and convert again.")
    if model.left_out:
        print(f"left out, being of no head that bertjax has: {', '.join(model.left_out)}")


def _report(args: argparse.Namespace) -> None:
    from bertjax.reports.run import write_report

    print(write_report(args.directory))


@contextlib.contextmanager
def _input(path: str) -> Iterator[TextIO]:
    """The file's text, "-" being standard input."""
    if path == "-":
        yield sys.stdin
    else:
        with epath.Path(path).open() as file:
            yield file


@contextlib.contextmanager
def _output(path: str) -> Iterator[TextIO]:
    """A file that replaces `path` once everything is written, "-" being standard output."""
    if path == "-":
        yield sys.stdout
        return
    draft = epath.Path(f"{path}.partial")
    try:
        with draft.open("w") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class _Parser(argparse.ArgumentParser):
    """Usage errors in one sentence; the nearest verb for a misspelt one."""

    def error(self, message: str) -> None:  # type: ignore[override]
        print(f"bertjax: {message}: see {self.prog} --help.", file=sys.stderr)
        sys.exit(2)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            nearest = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]
            raise argparse.ArgumentError(action, f"{value!r} is unknown, did you mean {nearest}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="bertjax", description="Pre-train, evaluate and use BERT with JAX.", allow_abbrev=False
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)

    def verb(run: Callable[[argparse.Namespace], Work | None], text: str) -> _Parser:
        name = run.__name__.removeprefix("_")
        command = verbs.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example: {_EXAMPLES[name]}",
            allow_abbrev=False,
        )
        command.set_defaults(verb=run, parse_rest=_refuse)
        return command

    def add_input(command: _Parser) -> None:
        command.add_argument(
            "--input",
            nargs="+",
            required=True,
            metavar="GLOB",
            help="text or JSON-lines files, also compressed; tfds:NAME/CONFIG; builtin",
        )
        command.add_argument("--field", default="text", help="field of JSON lines that holds text")
        command.add_argument("--output", required=True)

    command = verb(_vocab, "train a vocabulary on text")
    add_input(command)
    command.add_argument("--size", type=int, default=30522, help="pieces, exactly (%(default)s)")
    command.add_argument("--cased", action="store_true", help="keep case and accents")
    command.add_argument("--kind", choices=["wordpiece", "bpe", "unigram"], default="wordpiece")

    command = verb(_prepare, "turn text into shards of token ids")
    command.set_defaults(parse_rest=list)
    add_input(command)
    command.add_argument("--vocab", required=True, metavar="FILE")
    command.add_argument("--cased", action="store_true", help="keep case and accents")
    command.add_argument("--workers", type=int, help="processes (one a core)")
    command.add_argument(
        "--held-out", type=float, default=0.01, help="share of documents kept for evaluation"
    )
    command.add_argument("--dedup", action="store_true", help="drop documents seen before")
    command.add_argument("--shards", type=int, help="files of training data (by size)")
    command.add_argument(
        "--runner",
        help="an Apache Beam runner that does it instead, such as DataflowRunner; "
        "arguments that are none of the above go to it",
    )

    def add_config(command: _Parser) -> None:
        command.add_argument(
            "--config",
            required=True,
            metavar="FILE[:ARG]",
            help="a file with get_config(ARG); --config.FIELD=VALUE overrides a field",
        )
        command.set_defaults(parse_rest=parse_overrides)

    command = verb(_inspect, "show what the model will see, masks marked, or its parameters")
    add_config(command)
    command.add_argument("--steps", type=int, default=1)
    command.add_argument("--start", type=int, default=0, help="first step")
    command.add_argument("--hosts", type=int, default=1)
    command.add_argument("--host", type=int, default=0)
    command.add_argument("--save", metavar="FILE.npz", help="arrays [steps, rows, ...] instead")
    command.add_argument("--params", action="store_true", help="table of parameters instead")

    command = verb(_preflight, "say whether a run fits a topology, and how fast it will be")
    add_config(command)
    command.add_argument("--topology", required=True, metavar="KIND:SHAPE", help="such as v5e:4x4")
    command.add_argument("--json", metavar="FILE", help="what is printed, for a program")
    command.add_argument(
        "--search",
        choices=["batch"],
        help="find the most rows a device that fit instead; compiles a program for each try",
    )

    def add_hosts(command: _Parser) -> None:
        text = "where Cloud TPU, GKE or Slurm do not tell the hosts of each other"
        group = command.add_argument_group("several hosts", text)
        group.add_argument("--coordinator", metavar="HOST:PORT", help="address of host 0")
        group.add_argument("--hosts", type=int, help="how many take part")
        group.add_argument("--host", type=int, help="which of them this is, from 0")

    command = verb(_train, "train, or go on training, in a workdir")
    add_config(command)
    add_hosts(command)
    command.add_argument("--workdir", required=True)

    command = verb(_evaluate, "score a checkpoint")
    add_config(command)
    add_hosts(command)
    command.add_argument(
        "--checkpoint",
        required=True,
        nargs="+",
        metavar="DIR",
        help="a checkpoint or a workdir; several are an ensemble",
    )
    command.add_argument("--output", required=True, metavar="DIR")

    command = verb(_predict, "fill [MASK]s of lines of text, or answer questions, as JSON lines")
    command.add_argument("--checkpoint", required=True, help="a checkpoint or a workdir")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--input",
        metavar="FILE",
        help='lines of text; or {"question": ..., "context": ...} a line, or a file in SQuAD\'s '
        "layout; - for standard input",
    )
    source.add_argument("--text", metavar="LINE", help="one line instead")
    source.add_argument("--question", metavar="TEXT", help="one question, on --context")
    command.add_argument("--context", metavar="TEXT", help="the passage that has the answer")
    command.add_argument(
        "--output", default="-", metavar="FILE", help="- for standard output (%(default)s)"
    )

    command = verb(_score, "score anybody's predictions as a benchmark's own script does")
    command.add_argument("benchmark", choices=["squad", "cmrc"])
    command.add_argument("--data", required=True, metavar="FILE", help="with the gold answers")
    command.add_argument("--predictions", required=True, metavar="FILE", help="JSON, id to text")
    command.add_argument(
        "--null-odds", metavar="FILE", help="JSON, id to odds of no answer, for best thresholds"
    )

    command = verb(_convert, "turn a model of one format into one of another")
    formats = ["hf", "tf1", "bertjax"]
    command.add_argument("--from", dest="style", choices=formats, help="(what it looks like)")
    command.add_argument("--to", required=True, choices=formats)
    command.add_argument("source", metavar="SRC", help="a directory; a checkpoint or a workdir")
    command.add_argument("target", metavar="DST", help="a new directory")

    command = verb(_report, "write a run, or the output of an evaluation, as one HTML page")
    command.add_argument("directory", metavar="DIR")
    return parser
