"""Beam's handler of models, on the local runner with several worker processes."""

import json
import pathlib
import pickle

import numpy as np
import pytest
import toy_tasks
from random_models import draw_model

import bertjax
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from data_pipelines.errors import InputError

pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install 'bertjax[beam]'")

import apache_beam as beam
from apache_beam.ml.inference.base import RunInference
from apache_beam.options.pipeline_options import PipelineOptions

from bertjax.beam import BertjaxModelHandler

CONFIG = BertConfig(128, 1, 32, 2, max_position_embeddings=32)
TEXTS = [f"{'ba do ki lu '[: 3 * (i % 4 + 1)]}{'me ' * (i % 7)}{i}" for i in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("model")
    huggingface.write(draw_model(CONFIG, toy_tasks.TOKENIZER, "mlm"), path)
    return path


def infer(handler: BertjaxModelHandler, inputs: list, folder: pathlib.Path, *flags: str) -> dict:
    """Return the inference of each input, as JSON, in worker processes."""

    def to_line(result: object) -> str:
        inference = result.inference  # type: ignore[attr-defined]
        value = inference.tolist() if hasattr(inference, "tolist") else inference
        return json.dumps([result.example, value, result.model_id])  # type: ignore[attr-defined]

    workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    options = PipelineOptions([*workers, *flags], pipeline_type_check=False)
    with beam.Pipeline(options=options) as pipeline:
        (
            pipeline
            | beam.Create(inputs)
            | beam.Reshuffle()
            | RunInference(handler)
            | beam.Map(to_line)
            | beam.io.WriteToText(str(folder / "out"))
        )
    lines = [line for path in folder.glob("out*") for line in path.read_text().splitlines()]
    assert len(lines) == len(inputs)
    return {example: inference for example, inference, _ in map(json.loads, lines)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"large_model": True}])
def test_embeddings_of_several_workers_are_those_of_encode(model, tmp_path, options) -> None:
    handler = BertjaxModelHandler(model, arguments={"normalize": True}, **options)
    assert handler.share_model_across_processes() == bool(options)
    inferences = infer(handler, TEXTS, tmp_path)
    expected = bertjax.load(model).encode(TEXTS, normalize=True)
    found = np.array([inferences[text] for text in TEXTS], np.float32)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_answers_of_several_workers_are_those_of_predict(model, tmp_path) -> None:
    texts = [f"{text} [MASK]" for text in TEXTS]
    inferences = infer(BertjaxModelHandler(model, "predict"), texts, tmp_path)
    for answer, text in zip(bertjax.load(model).predict(texts), texts, strict=True):
        (found,), (mask,) = inferences[text]["masks"], answer["masks"]
        assert [guess["token_str"] for guess in found] == [guess["token_str"] for guess in mask]


def test_run_inference_names_the_model_and_prefers_its_arguments(model) -> None:
    handler = pickle.loads(pickle.dumps(BertjaxModelHandler(model, max_batch_size=7)))
    assert handler.batch_elements_kwargs() == {"max_batch_size": 7}
    assert handler.get_metrics_namespace() == "BeamML_bertjax"
    loaded = handler.load_model()
    plain, scaled = (
        next(iter(handler.run_inference(["ba do"], loaded, arguments)))
        for arguments in (None, {"normalize": True})
    )
    assert plain.example == "ba do" and plain.model_id == str(model)
    np.testing.assert_allclose(np.linalg.norm(scaled.inference), 1, atol=1e-5)
    np.testing.assert_allclose(
        scaled.inference, plain.inference / np.linalg.norm(plain.inference), atol=1e-5
    )


def test_update_model_path_loads_another_model(model, tmp_path) -> None:
    handler = BertjaxModelHandler(tmp_path / "none")
    with pytest.raises(InputError, match="does not exist"):
        handler.load_model()
    handler.update_model_path(str(model))
    handler.update_model_path(None)
    assert handler.load_model().compute(["ba"], {})[0].shape == (32,)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"method": "embed"}, "method='embed': unknown. Use encode or predict."),
        ({"arguments": {"top_k": 1}}, "top_k=1: encode has no such argument"),
        ({"method": "predict", "arguments": {"layers": [0]}}, "predict has no such argument"),
    ],
)
def test_handler_rejects(arguments, problem) -> None:
    with pytest.raises(InputError, match=problem):
        BertjaxModelHandler("models/base", **arguments)
