"""Tests of experiments/adapt.py: domain and general text, and stages that change the objective."""

import json
import logging
import pathlib

import jax
import pytest
from conftest import TOKENIZER, sample_text
from pretraining_runs import make_run_config, metrics
from random_models import draw_model
from toy_tasks import EXPERIMENTS

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.formats import huggingface
from bertjax.formats.loading import find_bert_config, read_model
from bertjax.inference.convert import convert
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingObjective
from bertjax.training.evaluator import evaluate
from bertjax.training.initialization import PretrainedModel
from bertjax.training.setup import make_trainer
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.errors import InputError

ADAPT = EXPERIMENTS / "adapt.py"


def load(options: str, **overrides: object) -> Config:
    fields = {name.replace("__", "."): str(value) for name, value in overrides.items()}
    spec = f"{ADAPT}:{options}"
    return load_config(spec, fields, registry.data_fields(), find_bert_config)


@pytest.fixture(scope="module")
def domain(tmp_path_factory) -> pathlib.Path:
    """Corpus of another text with the vocabulary of `corpus`."""
    path = tmp_path_factory.mktemp("domain")
    (path / "text.txt").write_text(sample_text(seed=9, documents=60))
    options = CorpusOptions(eval_fraction=0.2, num_shards=2)
    prepare([str(path / "text.txt")], TOKENIZER, path / "domain", options, workers=1)
    return path / "domain"


@pytest.fixture(scope="module")
def model(corpus, tmp_path_factory) -> pathlib.Path:
    """Published model with an MLM head and no NSP head."""
    path = tmp_path_factory.mktemp("model")
    config = make_run_config(corpus).model
    huggingface.write(draw_model(config, TOKENIZER, "mlm"), path)
    return path


@pytest.mark.seconds
def test_config_replays_general_text_and_lowers_the_masking_rate(model) -> None:
    config = load(f"init={model},data=d,general=g,replay=0.25")
    assert config.data["dir"] == "d+g" and config.data["mixture_weights"] == "0.75+0.25"
    assert config.data["mlm_probability"] == "0.3..0.15"
    assert config.model.hidden_size == find_bert_config(model).hidden_size
    alone = load(f"init={model},data=d")
    assert alone.data["dir"] == "d" and alone.data["mixture_weights"] == ""
    assert load(f"init={model}", data__mlm_probability=0.2).data["mlm_probability"] == 0.2
    detour = load(f"init={model},objective=clm")
    assert detour.data["mlm_probability"] == 0.15 and detour.model.direction == "left_to_right"


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("options", "overrides", "message"),
    [
        ("objective=nsp", {}, "objective=nsp: unknown. Use one of mlm, mlm_nsp, clm"),
        ("replay=0", {}, "replay=0.0: not between 0 and 1"),
        ("replay=1.5", {}, "replay=1.5: not between 0 and 1"),
        ("replay=much", {}, "replay"),
        ("repaly=0.2", {}, "repaly"),
        ("replay=0.5", {}, "replay=0.5: there is no text to replay. Give general=CORPUS"),
        ("init=lost", {}, "lost: does not exist"),
        ("smoke", {}, "data.dir='': no corpus"),
        ("smoke,data=lost", {}, "lost: does not exist. Set data.dir"),
        ("smoke,data={domain},general=lost", {}, "lost: does not exist. Set data.dir"),
        ("smoke,data={domain},general={domain}", {}, "another corpus has the name domain"),
        ("smoke,data={domain}+{corpus},general={model}", {}, "not a finished corpus"),
        ("smoke,data={domain},general={corpus}", {"data.mixture_weights": "1"}, "1 weights for 2"),
        ("smoke,data={domain}", {"data.mlm_probability": "0.3..0"}, "no token to predict"),
        ("smoke,data={domain}", {"data.mlm_probability": "falling"}, "'falling': not a number"),
        ("smoke,data={domain}", {"data.mlm_probability": "-0.3..0.1"}, "not a number from 0"),
        ("smoke,data={domain}", {"data.mlm_probability": "True"}, "is of type bool. Use float or"),
        ("smoke,data={domain}", {"data.short_seq_prob": "0.3..0.1"}, "is of type str. Use float"),
        ("smoke,data={domain}", {"steps": "2 minutes"}, "changes over a number of steps"),
        ("smoke,data={domain}", {"data.dupe_factor": 2}, "dupe_factor=2 repeats masks"),
        ("smoke,data={domain},objective=clm", {"data.mlm_probability": "0.3..0.1"}, "masks no tok"),
        (
            "smoke,data={domain},init={model}",
            {"model.num_attention_heads": 4},
            "num_attention_head",
        ),
        ("smoke,data={domain},init={model}", {"model.direction": "left_to_right"}, "does not fit"),
    ],
)
def test_adapt_rejects(
    options, overrides, message, refused, tmp_path, corpus, domain, model, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = [f"--config.{name}={value}" for name, value in overrides.items()]
    options = options.format(domain=domain, corpus=corpus, model=model)
    error = refused("train", "--workdir", "run", "--config", f"{ADAPT}:{options}", *flags)
    assert message in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def initialize(path: pathlib.Path, direction: str, objective: str) -> None:
    config = load(f"smoke,init={path},objective={objective},data=x", model__direction=direction)
    functions = StepFunctions(config.resolve(100), PretrainingObjective(config))
    pretrained = PretrainedModel(path)
    pretrained.check_compatible(config.model, functions.init_shapes, ())
    pretrained.load_init_params(functions.init_shapes)


@pytest.mark.seconds
def test_init_logs_a_new_head_for_next_sentence_prediction(model, caplog) -> None:
    with caplog.at_level(logging.INFO, "bertjax"):
        initialize(model, "bidirectional", "mlm_nsp")
    assert "(encoder, mlm); random: nsp, pooler." in caplog.text


@pytest.mark.seconds
def test_init_changes_the_direction_of_a_language_model(model, caplog) -> None:
    with caplog.at_level(logging.INFO, "bertjax"):
        initialize(model, "left_to_right", "clm")
    assert "bidirectional attention becomes left_to_right." in caplog.text
    with pytest.raises(InputError, match="num_attention_heads"):
        config = load(f"smoke,init={model},data=x", model__num_attention_heads=4)
        shapes = jax.eval_shape(PretrainingObjective(config).init_params, jax.random.key(0))
        PretrainedModel(model).check_compatible(config.model, shapes, ())


@pytest.mark.slow
def test_adapt_evaluates_domain_and_general_text_apart(corpus, domain, model, tmp_path) -> None:
    options = f"smoke,init={model},data={domain}"
    fields = {"data__workers": 1, "steps": 2, "eval_every": 2}
    config = load(f"{options},general={corpus}", **fields)
    make_trainer(config, tmp_path / "run").train()
    (last,) = [line for line in metrics(tmp_path / "run") if line["split"] == "eval"]
    alone = evaluate(load(options, **fields), tmp_path / "run").scores
    for metric in ("mlm_loss", "mlm_perplexity"):
        assert last[f"domain/{metric}"] == pytest.approx(alone[metric], rel=1e-5)
    losses = [last["domain/mlm_loss"], last[f"{corpus.name}/mlm_loss"]]
    assert min(losses) < last["mlm_loss"] < max(losses)


@pytest.mark.minutes
def test_adapt_detour_continues_with_masks(corpus, domain, model, tmp_path) -> None:
    fields = {"data__workers": 1, "eval_every": 20}
    for name, init, objective in (("detour", model, "clm"), ("run", tmp_path / "detour", "mlm")):
        options = f"smoke,init={init},objective={objective},data={domain},general={corpus}"
        make_trainer(load(options, **fields), tmp_path / name).train()
    assert json.loads((tmp_path / "run" / "init.json").read_text())["step"] == 20
    assert find_bert_config(tmp_path / "run").direction == "bidirectional"
    train = [line["mlm_loss"] for line in metrics(tmp_path / "run") if line["split"] == "train"]
    assert train[-1] < train[0]
    convert(tmp_path / "run", tmp_path / "hf", "bertjax", "hf")
    corpora = f"20 steps on {domain}+{corpus}, initialized from"
    assert read_model(tmp_path / "hf").history == (
        f"pretraining (clm): {corpora} {model}",
        f"pretraining (mlm): {corpora} {tmp_path / 'detour'}",
    )
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "## History" in card and "| domain/mlm_loss |" in card
