"""What is exported opens in `transformers`, with the same numbers.

BERTJAX_PEERS holds interpreters, separated by colons, of environments with torch and a version of
`transformers` each; the tests run with every one of them.
"""

import itertools
import json
import lzma
import os
import pathlib
import subprocess

import numpy as np
import pytest
from models import draw_model

from bertjax.formats import huggingface
from bertjax.formats.tensors import Model
from bertjax.model.encoder import BertConfig, Encoder
from bertjax.model.heads import Model as Network
from bertjax.model.heads import Pooler
from data_pipelines.vocabulary.tokenization import load_tokenizer

PEERS = [python for python in os.environ.get("BERTJAX_PEERS", "").split(":") if python]
pytestmark = pytest.mark.skipif(
    not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch and transformers"
)
PIECES = 30_522
CONFIG = BertConfig(PIECES, 2, 128, 2, max_positions=64)


@pytest.fixture(scope="module")
def lines(data_dir) -> list[str]:
    with lzma.open(data_dir / "text" / "wiki_en.txt.xz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in itertools.islice(filter(str.strip, file), 1000)]


def outputs(model: Model, ids: list[int]) -> dict[str, np.ndarray]:
    """What ours computes on one text, by the names of `transformers`."""
    row = np.array([ids], np.int32)
    places = np.arange(row.shape[1], dtype=np.int32)[None]
    batch = {"token_ids": row, "type_ids": 0 * row, "pack_ids": 1 + 0 * row, "positions": places}
    params = model.params
    hidden = Encoder(model.config).apply(
        {"params": params["encoder"]}, *batch.values(), deterministic=True
    )
    if "span" in params:
        logits = hidden @ params["span"]["kernel"] + params["span"]["bias"]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if "mlm" not in params:
        pooled = Pooler(model.config).apply({"params": params["pooler"]}, hidden[:, 0])
        return {"last_hidden_state": hidden, "pooler_output": pooled}
    batch |= {"mlm_positions": places, "cls_positions": places[:, :1]}
    network = Network(model.config, tuple({"mlm", "nsp"} & params.keys()))
    found = network.apply({"params": params}, batch, deterministic=True)
    if "nsp" not in params:
        return {"logits": found["mlm_logits"]}
    return {
        "prediction_logits": found["mlm_logits"],
        "seq_relationship_logits": found["nsp_logits"][:, 0],
    }


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize(
    ("kind", "heads", "vocabulary"),
    [
        ("BertForPreTraining", ("pooler", "mlm", "nsp"), "bert-base-uncased-vocab.txt"),
        ("BertForMaskedLM", ("mlm",), "bert-base-cased-vocab.txt"),
        ("BertForQuestionAnswering", ("span",), "bert-base-uncased-vocab.txt"),
        ("AutoModel", ("pooler",), "bert-base-cased-vocab.txt"),
    ],
)
def test_an_exported_directory_opens_as_it_is(
    kind: str, heads: tuple, vocabulary: str, python: str, lines, data_dir, tmp_path
) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / vocabulary)
    model = draw_model(CONFIG, tokenizer, *heads)
    huggingface.write(model, tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(lines), "utf-8")
    script = pathlib.Path(__file__).with_name("peer.py")
    arguments = [script, tmp_path, kind, tmp_path / "lines.txt", tmp_path / "found.json"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, *arguments], check=True, env=environment)
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["missing"], found["unexpected"]) == ([], [])
    assert found["class"] == ("BertModel" if kind == "AutoModel" else kind)
    ids = [tokenizer.encode(line) for line in lines]
    assert found["ids"] == ids
    ours = outputs(model, [tokenizer.cls_id, *ids[0][:20], tokenizer.sep_id])
    for name, values in ours.items():
        np.testing.assert_allclose(values, found["outputs"][name], atol=2e-5, err_msg=name)
