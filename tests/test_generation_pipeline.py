"""Pipelines that generate: options of inputs, answers, commands and the server."""

import dataclasses
import json
import pathlib
from typing import Any

import pytest
import toy_tasks
from random_models import draw_model
from served_models import Served
from test_interface import SHAPE

import bertjax
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.serving.options import Limits
from bertjax.serving.server import bind_socket
from bertjax.serving.warmup import compile_ahead
from data_pipelines.errors import InputError

TEXT = "ba do ki"
POSITIONS = SHAPE.max_position_embeddings
KINDS = {
    "prefix": {"decoder": "prefix"},
    "masked_prefix": {"decoder": "masked_prefix"},
    "cross_attention": {"decoder": "cross_attention"},
    "causal": {"direction": "left_to_right"},
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, pathlib.Path]:
    """Return the directory of a model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    for kind, fields in KINDS.items():
        parts = ("decoder", "mlm") if kind == "cross_attention" else ("mlm",)
        shape = dataclasses.replace(SHAPE, num_labels=0, **fields)
        model = draw_model(shape, toy_tasks.TOKENIZER, *parts)
        model.params["mlm"]["bias"][:] *= 20  # so that several tokens are likely
        (folder / kind).mkdir()
        huggingface.write(model, folder / kind)  # type: ignore[arg-type]
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="module")
def models(paths: dict[str, pathlib.Path]) -> dict[str, bertjax.Model]:
    return {kind: bertjax.load(path) for kind, path in paths.items()}


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
def test_generate_answers_in_order_whatever_the_options(models, kind: str) -> None:
    model = models[kind]
    texts = ["ki", TEXT * 3, "ba", "do " * 12]
    alone = [model.generate(text) for text in texts]
    assert [answer.keys() for answer in alone] == [{"text", "generated_text"}] * 4
    assert model.generate(texts) == alone
    beams = model.generate(texts, num_beams=3)
    mixed = [
        texts[0],
        {"text": texts[1], "num_beams": 3},
        texts[2],
        {"text": texts[3], "num_beams": "3"},
    ]
    assert model.generate(mixed) == [alone[0], beams[1], alone[2], beams[3]]


@pytest.mark.seconds
def test_sequences_are_sorted_by_score(models) -> None:
    answer = models["prefix"].generate(TEXT, num_beams=4, num_return_sequences=3)
    scores = [sequence["score"] for sequence in answer["sequences"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)
    assert answer["generated_text"] == answer["sequences"][0]["generated_text"]
    (only,) = models["prefix"].generate(TEXT, return_all_scores=True)["sequences"]
    assert only["score"] < 0


@pytest.mark.seconds
def test_samples_are_reproducible(models) -> None:
    first = models["causal"].generate([TEXT, "ki"], do_sample=True, seed=1)
    assert models["causal"].generate(["ki", TEXT], do_sample=True, seed=1) == first[::-1]
    assert models["causal"].generate([TEXT, "ki"], do_sample=True, seed=2) != first


@pytest.mark.seconds
def test_max_new_tokens_counts_the_generated_tokens(models) -> None:
    model = models["prefix"]
    for count in (1, 3):
        answer = model.generate(TEXT, max_new_tokens=count, min_new_tokens=count - 1)
        assert len(answer["generated_text"].split()) <= count


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([TEXT], {"beams": 3}, "beams=3: no such option. Use some of num_beams"),
        ([TEXT], {"num_beams": 0}, "input 0: num_beams=0: not an integer from 1"),
        ([TEXT], {"num_beams": "many"}, "input 0: num_beams='many': is of type str. Use int"),
        ([TEXT, {"text": 5}], {}, "input 1: .*text"),
        ([{}], {"num_beams": 2}, "input 0: .*"),
        (
            ["ki", TEXT],
            {"max_new_tokens": 10**6},
            f"input 0: max_new_tokens=1000000: .* the model {POSITIONS} positions. Use at most",
        ),
    ],
)
def test_generate_rejects_invalid_options(models, inputs, options, message: str) -> None:
    for kind in KINDS:
        with pytest.raises(InputError, match=f"^{message}"):
            models[kind].generate(inputs, **options)


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
def test_targets_may_end_at_the_last_position(models, kind: str) -> None:
    source = " ".join(["ki"] * (POSITIONS - 20))
    model, options = models[kind], {"max_new_tokens": POSITIONS, "min_new_tokens": 30}
    if kind == "cross_attention":  # positions of a target are its own
        assert model.generate(source, **options)["generated_text"]
        return
    assert model.generate(source, max_new_tokens=30)["generated_text"]
    with pytest.raises(InputError, match=r"^input 0: min_new_tokens=30: .* Use at most 1\d"):
        model.generate(source, **options)


def test_misspelled_options_of_a_request_are_rejected(models) -> None:
    for kind in KINDS:
        with pytest.raises(InputError, match=r"'temprature'\. .* 'temperature'"):
            models[kind].predict({"text": TEXT, "temprature": 2.0})


@pytest.mark.seconds
def test_server_answers_its_form(paths) -> None:
    with bind_socket("127.0.0.1", 0) as listener:
        served = Served(paths["prefix"], listener)
        try:
            pipeline = served.predictor.pipeline
            fields = {field.name: field.value for field in pipeline.form_fields()}
            assert {"text", "num_beams", "do_sample"} <= fields.keys()
            (answer,) = served.predict([fields | {"text": TEXT, "num_beams": "3"}])
            assert answer == served.model.generate(TEXT, num_beams=3)
            assert pipeline.display(TEXT, answer)[0]["text"] == answer["generated_text"]
        finally:
            served.server.close()


@pytest.mark.seconds
def test_warmup_compiles_what_requests_need(paths, monkeypatch) -> None:
    predictor = bertjax.inference.predictor.Predictor(paths["causal"])
    compile_ahead(predictor, Limits(max_inputs=2))
    functions = predictor._runner._step_functions
    monkeypatch.setattr(functions, "compile_generate_step", None)
    answers = predictor.predict(bertjax.inference.predictor.make_inputs([TEXT, "ba"])[0])
    assert len(list(answers)) == 2


@pytest.mark.seconds
@pytest.mark.parametrize("kind", KINDS)
def test_loop_over_tokens_copies_no_kernel(paths, kind: str) -> None:
    predictor = bertjax.inference.predictor.Predictor(paths[kind])
    (_,) = predictor.predict(bertjax.inference.predictor.make_inputs(TEXT)[0])
    (program,) = predictor._runner._compiled.values()
    lines = [line for line in program.as_text().splitlines() if "/while/body/" in line]
    products = [line for line in lines if "Dense.matmul" in line]
    assert products
    assert not [line for line in products if " copy(" in line]


def run(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.seconds
def test_predict_reads_options_of_the_command(paths, models, capsys) -> None:
    arguments = ("predict", "--checkpoint", paths["prefix"])
    beams = ("--config.decoding.num_beams=3", "--config.decoding.num_return_sequences=2")
    status, out, _ = run(capsys, *arguments, "--text", TEXT, *beams)
    expected = models["prefix"].generate(TEXT, num_beams=3, num_return_sequences=2)
    assert status == 0 and json.loads(out) == expected
    status, out, _ = run(
        capsys,
        *arguments,
        "--field",
        f"source={TEXT}",
        "--field",
        "num_beams=3",
        "--field",
        "num_return_sequences=2",
    )
    assert status == 0 and json.loads(out) == expected


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--config.decoding.num_beams=0", "num_beams=0: not an integer from 1"),
        ("--config.decoding.beams=2", "decoding.beams=2: there is no such field. Did you mean"),
        ("--config.steps=2", "--config.steps: for --save-logits alone; predictions read"),
    ],
)
def test_predict_rejects_other_options(paths, capsys, option: str, message: str) -> None:
    arguments = ("predict", "--checkpoint", paths["prefix"], "--text", TEXT)
    status, out, err = run(capsys, *arguments, option)
    assert (status, out) == (2, "") and message in err.splitlines()[-1]


@pytest.mark.seconds
def test_a_model_that_fills_masks_rejects_options(tmp_path, capsys) -> None:
    model = draw_model(SHAPE, toy_tasks.TOKENIZER, "pooler", "mlm")
    huggingface.write(model, tmp_path)  # type: ignore[arg-type]
    arguments = ("predict", "--checkpoint", tmp_path, "--text", "ba [MASK]")
    status, _, err = run(capsys, *arguments, "--config.decoding.num_beams=2")
    assert status == 2
    assert "decoding.num_beams=2: a model of task=pretraining does not generate" in err
