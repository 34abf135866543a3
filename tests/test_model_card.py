"""The card of an exported model tells of the run that made it."""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from etils import epath
from random_models import draw_model

from bertjax.config.config import Config
from bertjax.config.distill_config import DistillConfig
from bertjax.formats.model_card import escape_markdown, model_card
from bertjax.model.bert_config import BertConfig
from bertjax.tasks import registry

CONFIG = BertConfig(40, 2, 64, 1, max_position_embeddings=128)


def checkpoint(
    workdir: pathlib.Path,
    step: int,
    task: str = "question_answering",
    data: Mapping[str, object] = MappingProxyType({}),
    **fields: Any,
) -> epath.Path:
    path = workdir / "checkpoints" / f"{step:08d}"
    path.mkdir(parents=True)
    config = Config(
        task,
        steps=100,
        seed=7,
        model=CONFIG,
        data={**registry.data_fields()[task], **data},
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


def test_card_of_an_nsp_head_alone_names_its_class(tmp_path) -> None:
    card = model_card(draw_model(CONFIG, None, "pooler", "nsp"), epath.Path(tmp_path), {})
    assert "pipeline_tag: next-sentence-prediction" in card
    assert "AutoModelForNextSentencePrediction.from_pretrained" in card


@pytest.mark.parametrize("decoder", ["prefix", "masked_prefix"])
def test_card_of_a_generation_model_states_its_attention(decoder: str, tmp_path) -> None:
    config = dataclasses.replace(CONFIG, decoder=decoder)
    path = epath.Path(tmp_path)
    card, encoder_card = (
        model_card(draw_model(config, None, *heads), path, {}) for heads in (("mlm",), ())
    )
    assert "library_name: bertjax\npipeline_tag: text-generation" in card
    assert 'bertjax.load("DIRECTORY")' in card and "from transformers" not in card
    for text in (card, encoder_card):
        assert f"`decoder={decoder}`: a token of type 0 attends to all tokens of type 0." in text
    assert "from transformers import AutoModel," in encoder_card


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


ADAPTED = {"dir": "d/law+d/wiki", "objective": "mlm", "mixture_weights": "3+1"}


def pretraining_card(tmp_path: pathlib.Path, data: Mapping[str, object], **fields: Any) -> str:
    path = checkpoint(tmp_path, 50, "pretraining", data, **fields)
    return model_card(draw_model(CONFIG, None, "mlm"), path, {"law/mlm_loss": 2.5, "mlm_loss": 3.0})


def test_card_states_objective_masking_and_mixture_of_an_adapted_model(tmp_path) -> None:
    masking = {"mlm_probability": "0.3..0.15", "masking": "entity"}
    card = pretraining_card(tmp_path, {**ADAPTED, **masking}, init="BASE")
    assert "| objective | mlm |" in card and "| initialized from | BASE |" in card
    assert "| masking | entity, 30% at first, 15% at last of the tokens, 80/10/10 |" in card
    assert "| mixture | 75.0% d/law, 25.0% d/wiki (of the sequences) |" in card
    assert "| law/mlm_loss | 2.5000 |" in card
    assert "15% of the tokens of the eval splits are masked, 80/10/10." in card
    assert "batches" not in card  # the whole eval split


def test_card_of_pretraining_states_the_number_of_eval_batches(tmp_path) -> None:
    card = pretraining_card(tmp_path, ADAPTED, eval_batches=20)
    assert "At most the first 20 batches of each eval split are evaluated on." in card


def test_card_of_constant_masking_names_one_rate_and_other_replacements(tmp_path) -> None:
    masking = {"mlm_probability": 0.4, "mask_replace_prob": 1.0, "random_replace_prob": 0.0}
    card = pretraining_card(tmp_path, {**ADAPTED, **masking, "mixture_weights": ""})
    assert "| masking | token, 40% of the tokens, 100/0/0 |" in card
    assert "| mixture | by size, sampling_alpha=1 |" in card


def test_card_of_a_causal_lm_of_one_corpus_has_neither_masking_nor_mixture(tmp_path) -> None:
    card = pretraining_card(tmp_path, {"dir": "d/law", "objective": "clm"})
    assert "| objective | clm |" in card and "| masking" not in card and "are masked" not in card
    assert "mixture" not in card


def test_card_states_what_initialization_changed_and_the_teacher(tmp_path) -> None:
    fields = {"init": "BASE", "init_positions": "copy", "distill": DistillConfig(teacher="LARGE")}
    card = pretraining_card(tmp_path, ADAPTED, **fields)
    assert "| initialized from | BASE, init_positions=copy |" in card
    assert "| teacher | LARGE |" in card
    card = pretraining_card(tmp_path / "other", ADAPTED, init="BASE", init_layers="0,2")
    assert "| initialized from | BASE, init_layers=0,2 |" in card and "teacher" not in card


def test_card_lists_the_history_before_the_run(tmp_path) -> None:
    model = draw_model(CONFIG, None, "mlm")
    run = dataclasses.replace(model, history=("a run",))
    path = checkpoint(tmp_path, 50, "pretraining")
    assert "History" not in model_card(run, path, {})  # its table has more
    assert "## History\n\n1. a run\n" in model_card(run, epath.Path(tmp_path), {})
    later = dataclasses.replace(model, history=("an [extension](x)", "a run"))
    assert "1. an \\[extension\\](x)\n2. a run\n" in model_card(later, path, {})


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
