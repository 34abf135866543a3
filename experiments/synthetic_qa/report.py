"""The report: counts of each stage, scores of the readers, samples of questions."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertjax.html.page import Section, render_report
from bertjax.html.tables import TextTable
from data_pipelines.paths import atomic_write_text
from experiments.synthetic_qa import questions as files
from experiments.synthetic_qa.options import Options, read_rows
from experiments.synthetic_qa.readers import SCORES, format_score, read_scores
from experiments.synthetic_qa.stages import count_fates, stage_directory
from experiments.synthetic_qa.text import digest

_SAMPLES = 20  # of each kind


def read_counts(options: Options) -> dict[str, int]:
    """Return what each stage has made so far."""
    counts: dict[str, int] = {}
    for name, title in (("decoder", "sentence pairs"), ("questions", "question pairs")):
        path = stage_directory(options, name) / "pairs" / "train.jsonl"
        if path.exists():
            counts[title] = _count_lines(path)
    extraction = stage_directory(options, "extraction")
    if (extraction / "paragraphs.jsonl").exists():
        counts["paragraphs"] = _count_lines(extraction / "paragraphs.jsonl")
    counts |= _count_blocks("answer spans", extraction / "spans")
    counts |= _count_blocks("questions", stage_directory(options, "generation") / "questions")
    fates = count_fates(_candidates(options))
    counts |= {f"questions: {fate}": count for fate, count in fates.items()}
    for name in ("synthetic", "real"):
        path = stage_directory(options, "negatives") / f"{name}.jsonl"
        if path.exists():
            for row in read_rows(path):
                title = f"negatives of {name} questions: {row['kind']}"
                counts[title] = counts.get(title, 0) + 1
    return counts


def write_report(options: Options) -> pathlib.Path:
    """Write report.html and return its path."""
    rows = _candidates(options)
    scores = read_scores(options)
    negatives = stage_directory(options, "negatives") / "synthetic.jsonl"
    sections = [
        Section(
            "Readers of SQuAD 2.0",
            note="Scores on one half of the articles of the eval split, at the threshold of no "
            "answer that is best on the other half; with several seeds their mean and its "
            "standard error. f1_both is of all questions, each half at the threshold of the other "
            "one, f1_answered of the answerable ones if all are answered.",
            table=TextTable(
                ("trained on", *SCORES),
                [
                    (name, *(format_score([run[key] for run in runs]) for key in SCORES))
                    for name, runs in scores.items()
                ],
            ),
        ),
        Section(
            "Counts",
            table=TextTable(
                ("", "number"), [(k, f"{v:,}") for k, v in read_counts(options).items()]
            ),
        ),
    ]
    for fate in count_fates(rows):
        samples = sample([row for row in rows if row["fate"] == fate])
        title = "Questions that were kept" if fate == files.KEPT else f"Rejected questions: {fate}"
        sections.append(Section(title, table=_sample_table(samples)))
    if negatives.exists():
        table = TextTable(
            ("question", "made from", "kind", "passage"),
            [
                (row["question"], row["of"], row["kind"], row["context"])
                for row in sample(read_rows(negatives))
            ],
        )
        sections.append(Section("Unanswerable questions", table=table))
    path = options.workdir / "report.html"
    facts = [("Encoder", options.encoder), ("Text", ", ".join(options.text))]
    page = render_report("Synthetic question answering", sections, facts=facts)
    atomic_write_text(path, page)
    return path


def sample(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return some rows, the same ones in every run."""
    return sorted(rows, key=lambda row: digest("sample", row["id"]))[:_SAMPLES]


def _sample_table(rows: Iterable[Mapping[str, Any]]) -> TextTable:
    return TextTable(
        ("question", "answer", "answer of the reader", "odds of no answer", "passage"),
        [
            (
                row["question"],
                row["answer"],
                row.get("predicted", ""),
                f"{row['null_odds']:.1f}" if "null_odds" in row else "",
                files.mark_answer(
                    row["context"], row["start"], row["start"] + len(row["answer"]), 60
                ),
            )
            for row in rows
        ],
    )


def _candidates(options: Options) -> list[dict[str, Any]]:
    paths = sorted((stage_directory(options, "filter") / "candidates").glob("*.jsonl"))
    return [row for path in paths for row in read_rows(path)]


def _count_blocks(title: str, directory: pathlib.Path) -> dict[str, int]:
    paths = list(directory.glob("*.jsonl"))
    return {title: sum(map(_count_lines, paths))} if paths else {}


def _count_lines(path: pathlib.Path) -> int:
    return path.read_bytes().count(b"\n")
