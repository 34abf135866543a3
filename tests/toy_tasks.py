"""Small data sets for every fine-tuning task, which a tiny model learns in seconds."""

import csv
import json
import pathlib
import random
from collections.abc import Mapping

from conftest import sample_vocabulary

from bertjax.cli.config_args import parse_overrides
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats.loading import find_bert_config
from bertjax.tasks import registry
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

EXPERIMENTS = pathlib.Path(__file__).parent.parent / "experiments"
TOKENIZER = WordPieceTokenizer(sample_vocabulary(), cased=False)
GLAD, SAD, ODD = "ba", "ki", "no"
OTHER = ["me", "ra", "si", "tu", "ve"]
NAMES = {GLAD: "glad", SAD: "sad", ODD: "odd, or so"}  # a label with a comma
SCALE = [GLAD, SAD, ODD, "do", "lu"]  # the word of each score
WORDS = [*SCALE, *OTHER]  # the translation of each is the third word before it
ANSWERS = {GLAD: "do lu", SAD: "lu", ODD: "do do lu"}  # the target of a source with the word
KINDS = (
    *("single_label", "multi_label", "regression"),
    *("multiple_choice", "token_classification", "generation", "embeddings"),
)
PROBLEM_TYPES = {"multi_label": "multi_label_classification", "regression": "regression"}
FIELDS = {
    "max_seq_length": 32, "batch_size": 16, "steps": 120, "log_every": 60, "eval_every": "100%",
    "checkpoint_every": "100%", "model.num_hidden_layers": 1, "model.hidden_size": 64,
    "model.num_attention_heads": 4, "model.vocab_size": 128, "model.max_position_embeddings": 64,
    "model.initializer_range": 0.1,  # 0.02 is for BERT-Base, twelve times as wide
    "model.dtype": "float32", "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
    "optimizer.learning_rate": 4e-3, "optimizer.warmup": 20,
}  # fmt: skip
OPTIONS = {
    "single_label": "label=mood,train_file=train.csv,eval_file=dev.csv",
    "multi_label": "label=moods,problem_type=multi_label_classification,"
    "train_file=train.jsonl,eval_file=dev.jsonl",
    "regression": "text=first,text_pair=second,label=score,problem_type=regression,"
    "train_file=train.tsv,eval_file=dev.tsv",
    "multiple_choice": "train_file=questions.jsonl,eval_file=questions-dev.jsonl",
    "generation": "train_file=pairs.jsonl,eval_file=pairs-dev.jsonl",
    "embeddings": "train_file=translations.jsonl,eval_file=translations-dev.jsonl",
    "token_classification": "train_file=words.conll,eval_file=words-dev.conll",
}


def config_arguments(
    spec: str, fields: Mapping[str, object], overrides: Mapping[str, object]
) -> list[str]:
    """Return the arguments of a configuration; "__" in a name of `overrides` stands for a dot."""
    values = {**fields, **{name.replace("__", "."): value for name, value in overrides.items()}}
    return ["--config", spec, *(f"--config.{name}={value}" for name, value in values.items())]


def load_arguments(arguments: list[str]) -> Config:
    """Return the configuration of `config_arguments`."""
    _, spec, *flags = arguments
    return load_config(spec, parse_overrides(flags), registry.data_fields(), find_bert_config)


def write_data(folder: pathlib.Path) -> None:
    """Write the training and eval files of every kind, and the vocabulary."""
    TOKENIZER.save(folder)
    for split, count in (("train", 300), ("dev", 60)):
        draw = random.Random(split)

        def text(*words: str, draw: random.Random = draw) -> str:
            shuffled = [*draw.choices(OTHER, k=draw.randrange(1, 5)), *words]
            draw.shuffle(shuffled)
            return " ".join(shuffled)

        moods = [draw.choice([*NAMES]) for _ in range(count)]
        with open(folder / f"{split}.csv", "w") as file:
            writer = csv.writer(file)
            writer.writerow(("mood", "text"))
            writer.writerows((NAMES[mood], text(mood, mood)) for mood in moods)
        sets = [[mood for mood in NAMES if draw.random() < 0.4] for _ in range(count)]
        write_lines(
            folder / f"{split}.jsonl",
            [
                {"text": text(*moods, *moods), "moods": [NAMES[mood] for mood in moods]}
                for moods in sets
            ],
        )
        rows = ["id\tfirst\tsecond\tscore\n"]
        for number in range(count):
            score = draw.randrange(5)
            words = text(SCALE[score]), text()
            rows.append(f"{split}-{number}\t{words[0]}\t{words[1]}\t{score / 2 - 1}\n")
        (folder / f"{split}.tsv").write_text("".join(rows))
        questions = []
        for _ in range(count):
            answers = [text(SAD) for _ in range(draw.randrange(2, 5))]
            right = draw.randrange(len(answers))
            answers[right] = text(GLAD)
            questions.append({"context": text(), "choices": answers, "label": right})
        end = "" if split == "train" else "-dev"
        write_lines(folder / f"questions{end}.jsonl", questions)
        (folder / f"words{end}.conll").write_text("\n".join(tagged(draw) for _ in range(count)))
        sources = [(mood, text(mood)) for mood in draw.choices([*ANSWERS], k=count)]
        pairs = [{"source": source, "target": ANSWERS[mood]} for mood, source in sources]
        write_lines(folder / f"pairs{end}.jsonl", pairs)
        write_lines(folder / f"translations{end}.jsonl", [translation(draw) for _ in range(count)])


def tagged(draw: random.Random) -> str:
    """Return a sentence in columns: GLAD and ODD begin an entity, SAD may continue it."""
    words: list[tuple[str, str]] = []
    for _ in range(draw.randrange(2, 6)):
        begin = draw.choice([GLAD, ODD, "", ""])
        if not begin:
            words.append((draw.choice(OTHER), "O"))
            continue
        kind = NAMES[begin][:4]
        words.append((begin, f"B-{kind}"))
        words += [(SAD, f"I-{kind}")] * draw.randrange(2)
        words.append((draw.choice(OTHER), "O"))
    return "".join(f"{word}\t{tag}\n" for word, tag in words)


def translation(draw: random.Random) -> dict[str, str]:
    """Return some words and their translations."""
    numbers = sorted(draw.sample(range(len(WORDS)), k=4))
    words = [WORDS[number] for number in numbers]
    translated = [WORDS[number - 3] for number in numbers]
    return {"anchor": " ".join(words), "positive": " ".join(translated)}


def rows_of(path: pathlib.Path) -> list[dict]:
    """Return the rows of a CSV file."""
    with open(path) as file:
        return list(csv.DictReader(file))


def write_lines(path: pathlib.Path, rows: list[dict]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def arguments(kind: str, folder: pathlib.Path, init: object = "", **overrides: object) -> list[str]:
    """Return the arguments of a configuration; `init` is a model with its shape and vocabulary."""
    name = kind if kind in KINDS[3:] else "sequence_classification"
    file = EXPERIMENTS / f"{name}.py"
    fields: dict[str, object] = dict(FIELDS)
    if kind in ("multi_label", "token_classification"):
        fields["steps"] = 160
    if kind == "multiple_choice":
        fields |= {"max_seq_length": 64, "data.max_choice_length": 24}
    if kind == "generation":
        fields |= {"data.max_target_length": 12, "data.label_smoothing": 0.0}
    if init:
        fields = {name: value for name, value in fields.items() if name[:6] != "model."}
        fields |= {"model.dtype": "float32"}
    else:
        fields["data.vocab"] = folder / "vocab.txt"
    spec = f"{file}:data={folder},init={init},{OPTIONS[kind]}"
    return config_arguments(spec, fields, overrides)


def configuration(
    kind: str, folder: pathlib.Path, init: object = "", **overrides: object
) -> Config:
    return load_arguments(arguments(kind, folder, init, **overrides))
