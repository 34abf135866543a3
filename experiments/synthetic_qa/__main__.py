"""Synthetic questions from text, and readers of SQuAD 2.0 that learn from them, in eight stages.

    python -m experiments.synthetic_qa --workdir DIR --encoder DIR --squad DIR --text FILE ... \
      [--paragraphs N] [--readers NAME ...] [--seeds N] [--set MODEL.FIELD=VALUE ...]

The directory of --squad has train-v2.0.json and dev-v2.0.json; the text is what `bertjax prepare
--input` reads, with a paragraph in each line. Prints the plan first. The same command resumes;
`--stages 4-6` runs some stages. With --num-processes and --process-id, as of `bertjax train`,
several processes with one shared directory train together and divide the paragraphs.
WORKDIR/report.html has counts, samples and scores. Stage 7 needs bertjax[synthetic], which tags
English parts of speech.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from data_pipelines.errors import InputError
from experiments.ablations.commands import local_path
from experiments.synthetic_qa import readers, report, stages
from experiments.synthetic_qa.negatives import load_tagger
from experiments.synthetic_qa.options import DEFAULTS, READERS, STAGE_NAMES, Options

STAGES = {
    "decoder": stages.train_decoder,
    "questions": stages.train_questions,
    "answers": stages.train_answers,
    "extraction": stages.extract_answers,
    "generation": stages.generate_questions,
    "filter": stages.filter_questions,
    "negatives": stages.write_negatives,
    "readers": readers.train_readers,
}


def plan_lines(options: Options) -> list[str]:
    """Return what each stage will do."""
    count = options.paragraphs * options.num_answers
    unanswerable = f"{options.negatives_per_question:g} unanswerable questions for each one"
    seeds = f"{options.seeds} seed{'s' if options.seeds > 1 else ''}"
    titles = {
        "decoder": f"train the decoder on {options.sentence_pairs:,} pairs of text and sentence",
        "questions": "fine-tune it on context and answer -> question",
        "answers": "train the extraction of answer spans without a question",
        "extraction": f"extract {options.num_answers} spans of each of {options.paragraphs:,} "
        "paragraphs",
        "generation": f"generate at most {count:,} questions",
        "filter": f"keep those whose span a reader finds, with null odds up to "
        f"{options.null_threshold:g}",
        "negatives": f"make at most {unanswerable}",
        "readers": f"train the readers {', '.join(options.readers)} ({seeds}), and score them",
    }
    return [
        f"{number}. {name}: {titles[name]} -> {stages.stage_directory(options, name)}"
        for number, name in enumerate(STAGE_NAMES, 1)
    ]


def parse_stages(text: str) -> range:
    """Return the numbers of the stages of `FIRST-LAST`, `FIRST-` (to the last one) or `NUMBER`.

    Raises:
      InputError: there are no such stages.
    """
    first, dash, last = text.partition("-")
    last = last or (str(len(STAGE_NAMES)) if dash else first)
    if not (first.isdecimal() and last.isdecimal()):
        raise InputError(f"--stages={text}: no range. Use 4, 4-6 or 4-.")
    numbers = range(int(first), int(last) + 1)
    if not numbers or numbers[0] < 1 or numbers[-1] > len(STAGE_NAMES):
        raise InputError(f"--stages={text}: the stages are 1 to {len(STAGE_NAMES)}.")
    return numbers


def parse_overrides(items: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the fields of `MODEL.FIELD=VALUE` by model."""
    overrides: dict[str, dict[str, str]] = {}
    for item in items:
        name, equals, value = item.partition("=")
        model, dot, field = name.partition(".")
        if not (equals and dot and field):
            raise InputError(f"--set {item}: not of the form MODEL.FIELD=VALUE.")
        if field in overrides.get(model, {}):
            raise InputError(f"--set {item}: {name} is set twice. Set it once.")
        overrides.setdefault(model, {})[field] = value
    return overrides


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.synthetic_qa", description=(__doc__ or "").split("\n")[0]
    )
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Options)}
    add = parser.add_argument
    add("--workdir", required=True, type=local_path, metavar="DIR")
    add("--encoder", required=True, metavar="DIR", help="checkpoint or model directory of a BERT")
    add("--squad", required=True, type=local_path, metavar="DIR", help="SQuAD 2.0")
    add("--text", required=True, nargs="+", metavar="FILE", help="text with paragraphs")
    add("--stages", default=f"1-{len(STAGE_NAMES)}", metavar="FIRST-LAST", help="(%(default)s)")
    for flag, text in (
        ("--sentence-pairs", "pairs on which the decoder learns to continue a text"),
        ("--paragraphs", "paragraphs to ask questions about"),
        ("--num-answers", "answers for each paragraph"),
        ("--seeds", "readers of each kind"),
        ("--seed", "first seed"),
        ("--block-size", "paragraphs of a file"),
    ):
        default = defaults[flag.removeprefix("--").replace("-", "_")]
        add(flag, type=int, default=default, metavar="N", help=f"{text} (%(default)s)")
    add("--null-threshold", type=float, default=0.0, help="odds that reject (%(default)s)")
    add("--negatives-per-question", type=float, default=0.5, help="at most (%(default)s)")
    add("--readers", nargs="+", default=list(defaults["readers"]), metavar="NAME",
        help=f"some of {', '.join(READERS)} (%(default)s)")  # fmt: skip
    add("--set", action="append", default=[], metavar="MODEL.FIELD=VALUE",
        help=f"field of a model's configuration; models: {', '.join(DEFAULTS)}")  # fmt: skip
    add("--num-processes", type=int, default=1)
    add("--process-id", type=int, default=0)
    add("--coordinator-address", default="", metavar="HOST:PORT")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    args = vars(make_parser().parse_args(argv))
    numbers, overrides = parse_stages(args.pop("stages")), parse_overrides(args.pop("set"))
    args |= {name: tuple(args[name]) for name in ("text", "readers")}
    options = Options(**args, overrides=overrides)
    options.check_inputs()
    tags_words = STAGE_NAMES.index("negatives") + 1 in numbers and options.negatives_per_question
    if options.leads and tags_words:
        load_tagger()  # a missing library would end stage 7, after hours
    options.check_settings()
    print("\n".join(plan_lines(options)), flush=True)
    for number in numbers:
        name = STAGE_NAMES[number - 1]
        print(f"stage {number}: {name}", flush=True)
        STAGES[name](options, stages.stage_directory(options, name))
    if options.leads:
        for title, count in report.read_counts(options).items():
            print(f"{title}: {count:,}")
        for name, runs in readers.read_scores(options).items():
            values = (f"{k} {readers.format_score([r[k] for r in runs])}" for k in readers.SCORES)
            print(f"{name}: {', '.join(values)}")
        print(report.write_report(options))


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"error: {error}")
