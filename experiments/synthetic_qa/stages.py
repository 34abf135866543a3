"""The first seven stages: from an encoder, SQuAD and text to synthetic questions."""

import collections
import json
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.finetuning.question_answering.squad import read_squad
from data_pipelines.paths import atomic_write_text
from data_pipelines.text.sources import read_documents
from experiments.ablations.commands import override_flags, run_bertjax
from experiments.synthetic_qa import questions as files
from experiments.synthetic_qa.negatives import answerable_rows, load_tagger, make_negatives
from experiments.synthetic_qa.options import (
    DEV_FILE,
    MAX_QUESTION_TOKENS,
    STAGE_NAMES,
    TRAIN_FILE,
    Options,
    read_rows,
    wait_for,
    write_rows,
)
from experiments.synthetic_qa.text import known_words, sample_paragraphs, sample_sentence_pairs

_DEV_PAIRS = 1000  # of the eval splits of stages 1 and 2


def stage_directory(options: Options, name: str) -> pathlib.Path:
    """Return the directory of a stage."""
    number = STAGE_NAMES.index(name) + 1
    return options.workdir / f"{number}-{name}"


def train(options: Options, model: str, workdir: pathlib.Path, spec: str, **fields: object) -> None:
    """Train a model, on all processes, unless it is trained.

    Args:
      options: the options.
      model: its name in `options.DEFAULTS`.
      workdir: its directory.
      spec: its configuration.
      **fields: fields of the stage; section and name are divided by two underscores.
    """
    named = {name.replace("__", "."): value for name, value in fields.items()}
    command = ["train", "--config", spec, "--workdir", str(workdir)]
    command += override_flags(named | options.fields(model)) + options.process_flags
    # One record for all processes: with one each, a kill between two of them would leave a process
    # in a training that the others take for ended. Its existence suffices, as the settings of
    # WORKDIR determine the command, and each process may spell the path of WORKDIR in its own way.
    record = workdir.with_name(f"{workdir.name}.commands.json")
    if record.exists():
        return
    run_bertjax(*command)
    if options.leads:
        atomic_write_text(record, json.dumps([command], indent=1) + "\n")
    wait_for([record])


def predict(
    checkpoint: pathlib.Path,
    inputs: Sequence[Mapping[str, Any]],
    output: pathlib.Path,
    *flags: str,
) -> list[dict[str, Any]]:
    """Return the predictions of a model for inputs, computed unless the file `output` has them."""
    if not output.exists():
        source = output.parent / "inputs" / output.name
        write_rows(source, inputs)
        if not inputs:
            write_rows(output, [])
        else:
            command = ["predict", "--checkpoint", str(checkpoint), "--input", str(source)]
            run_bertjax(*command, "--output", str(output), *flags)
    rows = read_rows(output)
    if len(rows) != len(inputs):
        raise InputError(
            f"{output}: {len(rows)} predictions for {len(inputs)} inputs. Delete it and run again."
        )
    return rows


def _write_pairs(
    options: Options, directory: pathlib.Path, make: Callable[[], Iterable[Mapping[str, str]]]
) -> None:
    """Write train.jsonl and dev.jsonl on the first process."""
    paths = [directory / "pairs" / f"{split}.jsonl" for split in ("train", "dev")]
    if options.leads and not all(path.exists() for path in paths):
        pairs = list(make())
        count = min(_DEV_PAIRS, len(pairs) // 10)
        if not count:
            raise InputError(
                f"{directory}: only {len(pairs)} pairs of source and target. Give more text, with a"
                " paragraph in each line."
            )
        for path, part in zip(paths, (pairs[count:], pairs[:count]), strict=True):
            write_rows(path, part)
    wait_for(paths)


def train_decoder(options: Options, directory: pathlib.Path) -> None:
    """Pre-train the decoder to generate the next sentence."""
    _write_pairs(
        options,
        directory,
        lambda: sample_sentence_pairs(
            read_documents(options.text, workers=None), options.sentence_pairs, options.seed
        ),
    )
    spec = f"generation:init={options.encoder},data={directory / 'pairs'}"
    target = {"data__max_target_length": 48, "seed": options.seed}
    train(options, "decoder", directory / "run", spec, **target)


def train_questions(options: Options, directory: pathlib.Path) -> None:
    """Fine-tune the decoder to generate the question for a context and an answer."""
    path = directory / "pairs" / "train.jsonl"
    if options.leads and not path.exists():
        for split, name in (("dev", DEV_FILE), ("train", TRAIN_FILE)):
            questions = read_squad(options.squad / name).questions
            pairs = files.question_pairs(questions, options.source_words)
            write_rows(
                directory / "pairs" / f"{split}.jsonl",
                pairs[:_DEV_PAIRS] if split == "dev" else pairs,
            )
    wait_for([path])
    init = stage_directory(options, "decoder") / "run"
    spec = f"generation:init={init},data={directory / 'pairs'}"
    target = {"data__max_target_length": MAX_QUESTION_TOKENS, "seed": options.seed}
    train(options, "questions", directory / "run", spec, **target)


def train_answers(options: Options, directory: pathlib.Path) -> None:
    """Train the extraction of answer spans without a question."""
    for name in (DEV_FILE, TRAIN_FILE):
        path = directory / "data" / name
        if options.leads and not path.exists():
            files.write_squad(path, answerable_rows(*files.read_articles(options.squad / name)))
        wait_for([path])
    data = directory / "data"
    spec = f"answer_extraction:init={options.encoder},data={data}"
    names = {"data__train_file": TRAIN_FILE, "data__eval_file": DEV_FILE, "seed": options.seed}
    train(options, "answers", directory / "run", spec, **names)


def extract_answers(options: Options, directory: pathlib.Path) -> None:
    """Predict answer spans of new paragraphs."""
    path = directory / "paragraphs.jsonl"
    if options.leads and not path.exists():
        passages = read_squad(options.squad / DEV_FILE).passages
        rows = sample_paragraphs(
            read_documents(options.text, workers=None),
            options.paragraphs,
            options.seed,
            known_words(passages),
        )
        if not rows:
            raise InputError(
                f"--text={' '.join(options.text)}: no paragraph of 40 to 250 words. Give text with "
                "a paragraph in each line."
            )
        write_rows(path, rows)
    wait_for([path])
    model = stage_directory(options, "answers") / "run"
    for name, paragraphs in own_blocks(options):
        inputs = [
            {"context": paragraph["context"], "num_answers": options.num_answers}
            for paragraph in paragraphs
        ]
        answers = predict(model, inputs, directory / "answers" / name)
        spans = files.make_candidates(paragraphs, answers, options.num_answers)
        _write_once(directory / "spans" / name, spans)


def generate_questions(options: Options, directory: pathlib.Path) -> None:
    """Generate questions for the spans."""
    model = stage_directory(options, "questions") / "run"
    for name, _ in own_blocks(options):
        spans = read_rows(require(stage_directory(options, "extraction") / "spans" / name))
        inputs = [
            {
                "source": files.mark_answer(
                    span["context"],
                    span["start"],
                    span["start"] + len(span["answer"]),
                    options.source_words,
                )
            }
            for span in spans
        ]
        generated = predict(model, inputs, directory / "generated" / name)
        _write_once(directory / "questions" / name, files.add_questions(spans, generated))


def filter_questions(options: Options, directory: pathlib.Path) -> None:
    """Filter the questions by a reader of SQuAD 2.0."""
    model = directory / "reader"
    # Training starts once all processes take part, within minutes.
    wait_for(all_blocks(options, stage_directory(options, "generation") / "questions"))
    spec = f"squad:version=2,init={options.encoder},data={options.squad}"
    train(options, "reader", model, spec, eval_every="100%", seed=options.seed)
    for name, _ in own_blocks(options):
        source = stage_directory(options, "generation") / "questions" / name
        candidates = read_rows(require(source))
        inputs = [
            {name: row[name] for name in ("id", "question", "context")}
            for row in candidates
            if not row["fate"]
        ]
        answers = predict(model, inputs, directory / "answers" / name, "--return-all-scores")
        _write_once(
            directory / "candidates" / name,
            files.filter_candidates(candidates, answers, options.null_threshold),
        )


def write_negatives(options: Options, directory: pathlib.Path) -> None:
    """Make unanswerable questions of the synthetic and of the real ones."""
    paths = [directory / f"{name}.json" for name in ("synthetic", "real")]
    if options.leads and not all(path.exists() for path in paths):
        tag = load_tagger() if options.negatives_per_question else lambda words: [""] * len(words)
        kept = [row for row in read_candidates(options) if row["fate"] == files.KEPT]
        if not kept:
            raise InputError(
                f"{stage_directory(options, 'filter')}: no question was kept; candidates/ has the "
                "fates. Use more paragraphs, or train the models for longer."
            )
        documents, real = files.read_articles(options.squad / TRAIN_FILE)
        for path, rows in zip(paths, (kept, answerable_rows(documents, real)), strict=True):
            negatives = make_negatives(rows, options.negatives_per_question, tag, options.seed)
            write_rows(path.with_suffix(".jsonl"), negatives)
            files.write_squad(path, negatives)
    wait_for(paths)


def own_blocks(options: Options) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield name and paragraphs of each block that this process computes."""
    path = require(stage_directory(options, "extraction") / "paragraphs.jsonl")
    rows, size = read_rows(path), options.block_size
    for number in range(options.process_id, -(-len(rows) // size), options.num_processes):
        yield f"{number:05d}.jsonl", rows[number * size : (number + 1) * size]


def read_candidates(options: Options) -> list[dict[str, Any]]:
    """Return the candidates of all blocks with their fates, once all processes have ended."""
    paths = all_blocks(options, stage_directory(options, "filter") / "candidates")
    wait_for(paths)
    return [row for path in paths for row in read_rows(path)]


def all_blocks(options: Options, directory: pathlib.Path) -> list[pathlib.Path]:
    """Return the files of a directory with a file for each block.

    Raises:
      InputError: one is missing, and no other process writes it.
    """
    path = require(stage_directory(options, "extraction") / "paragraphs.jsonl")
    num_blocks = -(-len(read_rows(path)) // options.block_size)
    paths = [directory / f"{number:05d}.jsonl" for number in range(num_blocks)]
    return paths if options.num_processes > 1 else [require(path) for path in paths]


def count_fates(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of candidates of each fate, the most frequent first."""
    return dict(collections.Counter(row["fate"] for row in rows).most_common())


def _write_once(path: pathlib.Path, rows: Iterable[Mapping[str, Any]]) -> None:
    if not path.exists():
        write_rows(path, rows)


def require(path: pathlib.Path) -> pathlib.Path:
    """Return a path of an earlier stage; raise InputError if it does not exist."""
    if not path.exists():
        raise InputError(f"{path}: does not exist. Run the stages before this one.")
    return path
