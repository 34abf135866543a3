"""Small data in SQuAD's layout, which a tiny model learns in seconds."""

import pathlib

from toy_tasks import EXPERIMENTS, config_arguments, load_arguments

from bertjax.config.config import Config
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
NAMES = ["anna", "bob", "carl", "dora"]
PLACES = ["rome", "oslo", "paris", "delhi"]
TOKENIZER = WordPieceTokenizer(
    [
        *SPECIAL_TOKENS,
        *LETTERS,
        *(f"##{s}" for s in LETTERS),
        *NAMES,
        *PLACES,
        *"?.",
        "lives",
        "in",
    ],
    cased=False,
)


def questions(version: int, count: int) -> dict:
    """Return questions where a person lives; every third of version 2 has no answer."""
    paragraphs = []
    for i in range(count):
        residents = [(NAMES[(i + j) % 4], PLACES[(i // 4 + j) % 4]) for j in range(2)]
        passage = " ".join(f"{name.title()} lives in {place.title()}." for name, place in residents)
        name, place = residents[0]
        qa: dict = {"id": str(i), "question": f"Where lives {name}?", "answers": []}
        if version == 2:
            qa["is_impossible"] = i % 3 == 0
        if qa.get("is_impossible"):
            qa["question"] = "Where lives x?"
        else:
            text = place.title()
            qa["answers"] = [{"text": text, "answer_start": passage.index(text)}]
        paragraphs.append({"context": passage, "qas": [qa]})
    return {"data": [{"title": "people", "paragraphs": paragraphs}]}


def arguments(folder: pathlib.Path, version: int, **overrides: object) -> list[str]:
    fields = {
        "max_seq_length": 32,
        "data.doc_stride": 8,
        "data.max_query_length": 8,
        "model.dtype": "float32",
    }
    fields |= {"batch_size": 8, "steps": 150, "eval_every": 150, "checkpoint_every": 150}
    fields |= {"optimizer.learning_rate": 1e-3, "model.hidden_dropout_prob": 0.0}
    fields |= {"model.attention_probs_dropout_prob": 0.0}
    spec = f"{EXPERIMENTS / 'squad.py'}:version={version},init={folder / 'model'},data={folder}"
    return config_arguments(spec, fields, overrides)


def configuration(folder: pathlib.Path, version: int, **overrides: object) -> Config:
    return load_arguments(arguments(folder, version, **overrides))
