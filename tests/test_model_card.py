"""The card of an exported model tells of the run that made it."""

import json
import pathlib

import pytest
from etils import epath
from random_models import draw_model

from bertjax.config.config import Config
from bertjax.formats.model_card import escape_markdown, model_card
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry

CONFIG = BertConfig(40, 2, 64, 1, max_position_embeddings=128)


def checkpoint(
    workdir: pathlib.Path, step: int, task: str = "question_answering", **fields: int
) -> epath.Path:
    path = workdir / "checkpoints" / f"{step:08d}"
    path.mkdir(parents=True)
    config = Config(
        task,
        steps=100,
        seed=7,
        model=CONFIG,
        data=registry.data_fields()[task],
        **fields,
    )
    (path / "config.json").write_text(json.dumps(config.to_dict()))
    run = {"step": step, "data_fingerprint": "abc" * 9}
    run |= {"corpus_descriptions": {"wiki": "9 documents; license: CC BY-SA 3.0"}}
    (path / "run.json").write_text(json.dumps(run))
    return epath.Path(path)


def test_a_published_model_has_a_card_without_a_run(tmp_path) -> None:
    card = model_card(
        draw_model(CONFIG, None, "pooler", "question_answering"), epath.Path(tmp_path), {}
    )
    assert "pipeline_tag: question-answering" in card and "Training" not in card
    assert "AutoModelForQuestionAnswering.from_pretrained" in card


def test_a_run_and_its_scores_are_told(tmp_path) -> None:
    model, scores = draw_model(CONFIG, None, "question_answering"), {"f1": 61.5, "total": 10570}
    path = checkpoint(tmp_path, 50)
    scored, unscored = (model_card(model, path, found) for found in (scores, {}))
    assert "| corpus | wiki: 9 documents; license: CC BY-SA 3.0 |" in scored
    assert "| steps | 50 of 100 |" in scored and "| seed | 7 |" in scored
    assert "| f1 | 61.5000 |" in scored and "| total | 10,570 |" in scored
    assert "| steps | 50 of 100 |" in unscored and "Scores" not in unscored


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        ("pretraining", "256 sequences of 128 tokens"),
        ("question_answering", "256 examples in sequences of 128 tokens"),
    ],
)
def test_batch_size_has_the_unit_of_the_task(tmp_path, task: str, batch: str) -> None:
    path = checkpoint(tmp_path, 50, task, batch_size=256, max_seq_length=128)
    assert f"| batch | {batch} |" in model_card(draw_model(CONFIG, None, "mlm"), path, {})


def test_markup_in_names_of_a_run_is_escaped(tmp_path) -> None:
    assert escape_markdown("a|b\n[x](javascript:alert(1)) <script> `c` **d**") == (
        r"a\|b \[x\](javascript:alert(1)) &lt;script&gt; \`c\` \*\*d\*\*"
    )
    path = checkpoint(tmp_path, 50)
    config = json.loads((path / "config.json").read_text())
    config["init"] = "x | y\n# Title <img src=x>"
    (path / "config.json").write_text(json.dumps(config))
    card = model_card(draw_model(CONFIG, None, "question_answering"), path, {"f|1": 0.5})
    assert r"| initialized from | x \| y # Title &lt;img src=x&gt; |" in card
    assert r"| f\|1 | 0.5000 |" in card
