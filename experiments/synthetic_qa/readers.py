"""The last stage: readers of SQuAD 2.0 with and without synthetic questions, and their scores.

| reader | first pass | second pass, or the only one |
|---|---|---|
| real | | SQuAD |
| negatives | | SQuAD, negatives of its questions |
| negatives_regression | | SQuAD, negatives of its questions; regression |
| synthetic | kept questions, their negatives | SQuAD, negatives of its questions; regression |
| one_pass | | all four together |
| unfiltered | all questions, the negatives | SQuAD, negatives of its questions; regression |
| without_negatives | kept questions | SQuAD; regression |

With a regression the score of no answer is one: see `data.null_score` of question answering.
`synthetic` and `negatives_regression` differ in the first pass alone.
"""

import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from data_pipelines.finetuning.question_answering.squad import (
    QuestionAnsweringDataset,
)
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write_text
from experiments.ablations.commands import run_once
from experiments.synthetic_qa import questions as files
from experiments.synthetic_qa.options import DEV_FILE, TRAIN_FILE, Options, read_json, wait_for
from experiments.synthetic_qa.stages import (
    read_candidates,
    require,
    stage_directory,
    train,
)

_REAL, _REAL_NEGATIVES, _KEPT, _ALL, _NEGATIVES = (
    "real",
    "real negatives",
    "kept",
    "all",
    "negatives",
)
_PASSES: dict[str, list[tuple[str, ...]]] = {
    "real": [(_REAL,)],
    "negatives": [(_REAL, _REAL_NEGATIVES)],
    "negatives_regression": [(_REAL, _REAL_NEGATIVES)],
    "synthetic": [(_KEPT, _NEGATIVES), (_REAL, _REAL_NEGATIVES)],
    "one_pass": [(_REAL, _REAL_NEGATIVES, _KEPT, _NEGATIVES)],
    "unfiltered": [(_ALL, _NEGATIVES), (_REAL, _REAL_NEGATIVES)],
    "without_negatives": [(_KEPT,), (_REAL,)],
}
# Readers whose last pass has no answer as a regression.
_REGRESSIONS = ("negatives_regression", "synthetic", "unfiltered", "without_negatives")
SCORES = ("exact", "f1", "HasAns_f1", "NoAns_f1", "f1_both", "f1_answered")


def train_readers(options: Options, directory: pathlib.Path) -> None:
    """Train the readers and score them."""
    for name in options.readers:
        for seed in range(options.seed, options.seed + options.seeds):
            workdir = _train_reader(options, directory, name, seed)
            path = directory / name / f"scores-{seed}.json"
            if options.leads and not path.exists():
                scores = _evaluate(workdir, options.squad / DEV_FILE)
                path.parent.mkdir(parents=True, exist_ok=True)
                atomic_write_text(path, json.dumps(scores, indent=1) + "\n")
            wait_for([path])


def _train_reader(options: Options, directory: pathlib.Path, name: str, seed: int) -> pathlib.Path:
    """Train a reader in one or two passes and return the workdir of the last."""
    init, passes = options.encoder, _PASSES[name]
    if name == "real" and seed == options.seed:
        return stage_directory(options, "filter") / "reader"
    for number, sources in enumerate(passes, 1):
        data = directory / name / f"data-{number}" / TRAIN_FILE
        if options.leads and not data.exists():
            _merge(options, sources, data)
        wait_for([data])
        is_last = number == len(passes)
        workdir = directory / name / f"pass-{number}-{seed}"
        fields = {"seed": seed, "eval_every": "100%"}
        # The last evaluation chooses the threshold of no answer that predictions read.
        dev_file = (options.squad / DEV_FILE).absolute() if is_last else _small_dev_file(options)
        fields["data__eval_file"] = dev_file
        if is_last and name in _REGRESSIONS:
            fields["data__null_score"] = "regression"
        spec = f"squad:version=2,init={init},data={data.parent}"
        train(options, "reader" if is_last else "first_pass", workdir, spec, **fields)
        init = str(workdir)
    return workdir


def _small_dev_file(options: Options) -> pathlib.Path:
    """Return a file with the first paragraph of the eval split.

    A training ends with an evaluation, which the first of two passes does not need.
    """
    path = stage_directory(options, "readers") / "small-dev.json"
    if options.leads and not path.exists():
        content = json.loads((options.squad / DEV_FILE).read_text())
        article = content["data"][0]
        content["data"] = [{**article, "paragraphs": article["paragraphs"][:1]}]
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, json.dumps(content, ensure_ascii=False))
    wait_for([path])
    return path.absolute()


def _merge(options: Options, sources: Sequence[str], path: pathlib.Path) -> None:
    """Write several sets of questions into one file."""
    articles: list[Any] = []
    negatives = stage_directory(options, "negatives")
    for source in sources:
        if source in (_KEPT, _ALL):
            rows = [
                row
                for row in read_candidates(options)
                if row["fate"] == files.KEPT
                or (source == _ALL and row["fate"] in (files.NO_ANSWER, files.OTHER_SPAN))
            ]
            part = path.with_name(f"{source}.json")
            files.write_squad(part, rows)
        else:
            part = {
                _REAL: options.squad / TRAIN_FILE,
                _REAL_NEGATIVES: negatives / "real.json",
                _NEGATIVES: negatives / "synthetic.json",
            }[source]
        articles += parse_json(require(part).read_text())["data"]
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, json.dumps({"version": "v2.0", "data": articles}, ensure_ascii=False))


def _evaluate(workdir: pathlib.Path, dev_file: pathlib.Path) -> dict[str, float]:
    """Return the scores of a reader on the half of the articles that chose no threshold."""
    output = workdir.with_name(f"{workdir.name}-scores")
    command = ["evaluate", "--checkpoint", str(workdir), "--output", str(output)]
    command += [f"--config.data.eval_file={dev_file.absolute()}"]
    run_once(output.with_suffix(".commands.json"), [command])
    best = {
        name: next((answer["text"] for answer in answers if answer["text"]), "")
        for name, answers in read_json(output / "nbest_predictions.json").items()
    }
    odds = read_json(output / "null_odds.json")
    documents, questions = files.read_articles(dev_file)
    halves = [
        QuestionAnsweringDataset(
            [question for question in questions if documents[question.passage] % 2 == half], 2
        )
        for half in (0, 1)
    ]
    return score_halves(halves, best, odds)


def score_halves(
    halves: Sequence[QuestionAnsweringDataset],
    answers: Mapping[str, str],
    null_odds: Mapping[str, float],
) -> dict[str, float]:
    """Return scores in percent of the second half, at the threshold that is best on the first.

    `f1_both` is the F1 of all questions, each half at the threshold of the other one. `f1_answered`
    is that of the answerable ones if all are answered.

    Args:
      halves: two data sets of SQuAD 2.0.
      answers: question id -> the best answer.
      null_odds: question id -> odds of no answer.
    """
    from bertjax.tasks.question_answering.metrics import best_null_threshold, score

    thresholds, decided = [], {}
    for half, other in zip(halves, reversed(halves), strict=True):
        best = {question.id: answers[question.id] for question in half.questions}
        odds = {name: null_odds[name] for name in best}
        threshold = best_null_threshold(half, score(half, best, odds), odds)
        thresholds.append(threshold)
        for name in (question.id for question in other.questions):
            decided[name] = "" if null_odds[name] > threshold else answers[name]
    scores = score(halves[1], {q.id: decided[q.id] for q in halves[1].questions})
    both = QuestionAnsweringDataset([q for half in halves for q in half.questions], 2)
    scores["f1_both"] = score(both, decided)["f1"]
    scores["f1_answered"] = score(both, {name: answers[name] for name in decided})["HasAns_f1"]
    return {name: scores[name] for name in SCORES if name in scores} | {"threshold": thresholds[0]}


def read_scores(options: Options) -> dict[str, list[dict[str, float]]]:
    """Return the scores of each reader, of one run after the other; only of trained ones."""
    directory = stage_directory(options, "readers")
    scores = {}
    for name in _PASSES:
        paths = sorted((directory / name).glob("scores-*.json"))
        if paths:
            scores[name] = [read_json(path) for path in paths]
    return scores


def format_score(values: Sequence[float]) -> str:
    """Return the mean of scores, with its standard error if there are several."""
    mean = f"{statistics.fmean(values):.2f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / math.sqrt(len(values)):.2f}"
