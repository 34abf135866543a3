"""Small passages whose answers a tiny model finds in seconds: names, and "in" before a place."""

import json
import pathlib
import random

from random_models import draw_model
from toy_squad import LETTERS, NAMES, PLACES, TOKENIZER
from toy_tasks import EXPERIMENTS, config_arguments, load_arguments

from bertjax.config.config import Config
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig

FIELDS = {
    "max_seq_length": 32, "data.doc_stride": 8, "model.dtype": "float32", "batch_size": 16,
    "steps": 150, "eval_every": 150, "checkpoint_every": 150, "log_every": 50,
    "optimizer.learning_rate": 2e-3, "model.hidden_dropout_prob": 0.0,
    "model.attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def passages(count: int, seed: str) -> dict:
    """Return passages of letters, "lives", and two or three distinct answers each."""
    draw = random.Random(seed)
    paragraphs = []
    for number in range(count):
        answers = draw.sample(NAMES, 2) + [f"in {draw.choice(PLACES)}"] * draw.randrange(2)
        words = [*draw.choices([*LETTERS[:8], "lives"], k=draw.randrange(4, 40)), *answers]
        draw.shuffle(words)
        text = " ".join(words)
        qas = [
            {
                "id": f"{number}-{i}",
                "question": "",
                "answers": [{"text": answer, "answer_start": f" {text} ".index(f" {answer} ")}],
            }
            for i, answer in enumerate(answers)
        ]
        paragraphs.append({"context": text, "qas": qas})
    return {"version": "1.1", "data": [{"title": "people", "paragraphs": paragraphs}]}


def write_data(folder: pathlib.Path) -> None:
    """Write both splits, and a published model to initialize from."""
    for split, count in (("train", 200), ("dev", 40)):
        (folder / f"{split}-v1.1.json").write_text(json.dumps(passages(count, split)))
    config = BertConfig(len(TOKENIZER.tokens), 2, 64, 2, max_position_embeddings=64)
    (folder / "model").mkdir()
    huggingface.write(draw_model(config, TOKENIZER, "pooler"), folder / "model")


def arguments(folder: pathlib.Path, scorer: str = "joint", **overrides: object) -> list[str]:
    """Return the arguments of a configuration."""
    options = f"init={folder / 'model'},data={folder},scorer={scorer}"
    spec = f"{EXPERIMENTS / 'answer_extraction.py'}:{options}"
    return config_arguments(spec, FIELDS, overrides)


def configuration(folder: pathlib.Path, scorer: str = "joint", **overrides: object) -> Config:
    return load_arguments(arguments(folder, scorer, **overrides))
