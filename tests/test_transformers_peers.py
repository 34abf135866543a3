"""Exported directories open in `transformers` with the same outputs, and the reverse.

The tests run with each environment of BERTJAX_PEERS.
"""

import dataclasses
import itertools
import json
import lzma
import os
import pathlib
import subprocess
import sysconfig

import numpy as np
import pytest
from conftest import PEERS, in_test_all, sample_vocabulary
from generation_batches import make_batch
from random_models import assert_same_params, draw_model
from safetensors.numpy import load_file

from bertjax.formats import huggingface
from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.vocabulary_extension import EVAL_FRACTION, extend_model
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.heads import Pooler
from data_pipelines.finetuning.packed_examples import PackedShape
from data_pipelines.vocabulary.counting import count_words, sample_documents, wordpiece_splitters
from data_pipelines.vocabulary.extension import choose_tokens
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import train_vocabulary
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

pytestmark = pytest.mark.skipif(
    not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch and transformers"
)
_OTHER_CODE = ("test", "site-packages", "dist-packages")  # some tests are not in UTF-8
CONFIG = BertConfig(30_522, 2, 128, 2, max_position_embeddings=64)


@pytest.fixture(scope="module")
def lines(data_dir) -> list[str]:
    with lzma.open(data_dir / "text" / "wiki_en.txt.xz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in itertools.islice(filter(str.strip, file), 1000)]


def outputs(model: NumpyModel, ids: list[int]) -> dict[str, np.ndarray]:
    """Return our outputs for one text, by the names of `transformers`."""
    input_ids = np.array([ids], np.int32)
    positions = np.arange(len(ids), dtype=np.int32)[None]
    batch = {
        "input_ids": input_ids,
        "token_type_ids": np.zeros_like(input_ids),
        "example_ids": np.ones_like(input_ids),
        "position_ids": positions,
    }
    params = model.params
    if "mlm" in params:
        batch |= {"masked_lm_positions": positions, "cls_positions": positions[:, :1]}
        network = BertWithHeads(model.config, tuple({"mlm", "nsp"} & params.keys()))
        logits = network.apply({"params": params}, batch, deterministic=True)
        if "nsp" not in params:
            return {"logits": logits["mlm_logits"]}
        nsp_logits = logits["nsp_logits"][:, 0]
        return {"prediction_logits": logits["mlm_logits"], "seq_relationship_logits": nsp_logits}

    def linear(head: str, inputs: np.ndarray) -> np.ndarray:
        return inputs @ params[head]["kernel"] + params[head]["bias"]

    hidden = Encoder(model.config).apply(
        {"params": params["encoder"]}, *batch.values(), deterministic=True
    )
    for head in {"question_answering", "answer_boundaries"} & params.keys():
        logits = linear(head, hidden)
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if "token_classification" in params:
        return {"logits": linear("token_classification", hidden)}
    pooled = Pooler(model.config).apply({"params": params["pooler"]}, hidden[:, 0])
    for head in {"sequence_classification", "multiple_choice"} & params.keys():
        return {"logits": linear(head, pooled)}
    return {"last_hidden_state": hidden, "pooler_output": pooled}


def run_peer(python: str, *cases: tuple) -> list[dict]:
    """Return what transformers_peer.py writes about each case.

    Args:
      python: interpreter of an environment with `transformers`.
      cases: directory with the model and `lines.txt`, class, further arguments.
    """
    arguments = [pathlib.Path(__file__).with_name("transformers_peer.py")]
    for folder, class_name, *options in cases:
        paths = folder / "lines.txt", folder / "description.json"
        arguments += [folder, class_name, *paths, *options, ","]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, *arguments], check=True, env=environment)
    return [json.loads((folder / "description.json").read_text()) for folder, *_ in cases]


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize(
    ("class_name", "heads", "vocabulary"),
    [
        ("BertForPreTraining", ("pooler", "mlm", "nsp"), "bert-base-uncased-vocab.txt"),
        ("BertForMaskedLM", ("mlm",), "bert-base-cased-vocab.txt"),
        ("BertForQuestionAnswering", ("question_answering",), "bert-base-uncased-vocab.txt"),
        ("BertForQuestionAnswering", ("answer_boundaries",), "bert-base-uncased-vocab.txt"),
        ("AutoModel", ("pooler",), "bert-base-cased-vocab.txt"),
    ],
)
def test_exported_directory_opens_in_transformers(
    class_name: str, heads: tuple, vocabulary: str, python: str, lines, data_dir, tmp_path
) -> None:
    tokenizer = load_tokenizer(data_dir / "vocab" / vocabulary)
    model = draw_model(CONFIG, tokenizer, *heads)
    huggingface.write(model, tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(lines), "utf-8")
    (peer,) = run_peer(python, (tmp_path, class_name))
    assert (peer["missing"], peer["unexpected"]) == ([], [])
    assert peer["class"] == ("BertModel" if class_name == "AutoModel" else class_name)
    ids = [tokenizer.encode(line) for line in lines]
    assert peer["ids"] == ids
    ours = outputs(model, [tokenizer.cls_id, *ids[0][:20], tokenizer.sep_id])
    for name, values in ours.items():
        np.testing.assert_allclose(values, peer["outputs"][name], atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_exported_sentencepiece_model_opens_in_transformers(
    kind: str, python: str, lines, data_dir, tmp_path
) -> None:
    texts = [*lines, *chinese(data_dir)]
    path = train_vocabulary([texts], size=4000, kind=kind, cased=False, output=tmp_path / "a.model")
    tokenizer = load_tokenizer(path)
    config = dataclasses.replace(CONFIG, vocab_size=4000)
    huggingface.write(draw_model(config, tokenizer, "mlm"), tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(texts), "utf-8")
    (peer,) = run_peer(python, (tmp_path, "BertForMaskedLM"))
    assert peer["ids"] == [tokenizer.encode(text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize(
    "vocabulary", ["bert-base-uncased-vocab.txt", *in_test_all("bert-base-cased-vocab.txt")]
)
def test_extended_vocabulary_has_the_ids_of_transformers(
    vocabulary: str, python: str, data_dir, tmp_path
) -> None:
    documents = python_sources()
    source = load_tokenizer(data_dir / "vocab" / vocabulary)
    assert isinstance(source, WordPieceTokenizer)
    chosen_on = sample_documents(documents, EVAL_FRACTION, complement=True)
    splitters = wordpiece_splitters(source.cased)
    counts = count_words(itertools.chain.from_iterable(chosen_on), *splitters)
    tokens = choose_tokens(counts, source, 500)
    config = dataclasses.replace(CONFIG, vocab_size=len(source.tokens))
    model, new_ids = extend_model(draw_model(config, source, "mlm"), tokens)
    huggingface.write(model, tmp_path)
    held_out = itertools.chain.from_iterable(sample_documents(documents, EVAL_FRACTION))
    lines = [line.strip() for line in itertools.islice(held_out, 10_000)]
    (tmp_path / "lines.txt").write_text("\n".join(lines), "utf-8")
    (peer,) = run_peer(python, (tmp_path, "BertForMaskedLM"))
    assert len(lines) == 10_000 and model.tokenizer
    assert peer["ids"] == [model.tokenizer.encode(line) for line in lines]
    assert len({*itertools.chain.from_iterable(peer["ids"])} & {*new_ids}) > 250


def python_sources() -> list[list[str]]:
    """Return the lines of each module of Python's standard library, without its tests."""
    stdlib = pathlib.Path(sysconfig.get_path("stdlib"))
    paths = sorted([*stdlib.glob("*.py"), *stdlib.glob("*/*.py")])
    texts = [path.read_text("utf-8") for path in paths if path.parent.name not in _OTHER_CODE]
    documents = [[line for line in text.splitlines() if line.strip()] for text in texts]
    return [document for document in documents if document]


def chinese(data_dir: pathlib.Path) -> list[str]:
    articles = json.loads((data_dir / "xquad" / "xquad.zh.json").read_text("utf-8"))["data"]
    return [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]


SMALL = BertConfig(128, 2, 64, 2, max_position_embeddings=64)
SMALL_TOKENIZER = WordPieceTokenizer(sample_vocabulary(), cased=False)
TEXT = "ba doki lu menos ra ."
NAMES = ("glad", "odd, or so", "ünzufrieden")
# Class, labels, problem type, problem type in the written config.json.
CLASSIFIERS = [
    (
        "AutoModelForSequenceClassification",
        NAMES,
        "single_label_classification",
        "single_label_classification",
    ),
    (
        "AutoModelForSequenceClassification",
        NAMES,
        "multi_label_classification",
        "multi_label_classification",
    ),
    ("AutoModelForSequenceClassification", (), "regression", "regression"),
    ("AutoModelForMultipleChoice", (), "single_label_classification", None),
    (
        "AutoModelForTokenClassification",
        ("O", "B-creative-work", "I-creative-work"),
        "single_label_classification",
        None,
    ),
]


def assert_same_model(ours: NumpyModel, theirs: NumpyModel) -> None:
    assert (ours.labels, ours.problem_type) == (theirs.labels, theirs.problem_type)
    assert_same_params(ours.params, theirs.params)


def assert_same_outputs(model: NumpyModel, peer: dict) -> None:
    ids = SMALL_TOKENIZER.encode(TEXT)
    assert peer["ids"] == [ids]
    ours = outputs(model, [SMALL_TOKENIZER.cls_id, *ids, SMALL_TOKENIZER.sep_id])
    for name, values in ours.items():
        np.testing.assert_allclose(values, peer["outputs"][name], atol=1e-5, err_msg=name)


# Class, configuration fields, labels, problem type.
TRANSFORMERS_MODELS = [
    ("BertForSequenceClassification", {}, ("LABEL_0", "LABEL_1"), "single_label_classification"),
    ("BertForSequenceClassification", {"num_labels": 1}, (), "regression"),
    (
        "BertForSequenceClassification",
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        ("LABEL_0", "LABEL_1", "LABEL_2"),
        "multi_label_classification",
    ),
    (
        "BertForSequenceClassification",
        {"id2label": {str(i): str(11 - i) for i in range(12)}},
        tuple(str(11 - i) for i in range(12)),
        "single_label_classification",
    ),
    ("BertForMultipleChoice", {}, (), "single_label_classification"),
    (
        "BertForTokenClassification",
        {"id2label": {"0": "O", "1": "I-X"}},
        ("O", "I-X"),
        "single_label_classification",
    ),
    ("BertForTokenClassification", {"num_labels": 1}, ("LABEL_0",), "single_label_classification"),
]


def draw_classifier(class_name: str, labels: tuple, problem_type: str) -> NumpyModel:
    head = {
        "AutoModelForSequenceClassification": "sequence_classification",
        "AutoModelForMultipleChoice": "multiple_choice",
        "AutoModelForTokenClassification": "token_classification",
    }[class_name]
    count = 0 if head == "multiple_choice" else max(1, len(labels))
    config = dataclasses.replace(SMALL, num_labels=count)
    heads = [head] if head == "token_classification" else ["pooler", head]
    drawn = draw_model(config, SMALL_TOKENIZER, *heads)
    return dataclasses.replace(drawn, labels=labels, problem_type=problem_type)


@pytest.fixture(scope="module", params=PEERS)
def peers(request, tmp_path_factory) -> dict[str, tuple[pathlib.Path, dict]]:
    """Directory and peer's description of every case, computed in one process of the peer."""
    cases = {}
    for number, (class_name, labels, problem_type, _) in enumerate(CLASSIFIERS):
        folder = tmp_path_factory.mktemp("ours")
        huggingface.write(draw_classifier(class_name, labels, problem_type), folder)
        cases[f"ours {number}"] = folder, class_name, folder / "saved"
    for number, (class_name, fields, *_) in enumerate(TRANSFORMERS_MODELS):
        folder = tmp_path_factory.mktemp("theirs")
        huggingface.write(draw_model(SMALL, SMALL_TOKENIZER), folder)
        config = json.dumps(huggingface.bert_config_dict(SMALL) | fields)
        cases[f"theirs {number}"] = folder, class_name, folder / "saved", config
    for folder, *_ in cases.values():
        (folder / "lines.txt").write_text(TEXT)
    descriptions = run_peer(request.param, *cases.values())
    folders = [folder / "saved" for folder, *_ in cases.values()]
    return dict(zip(cases, zip(folders, descriptions, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
def test_encoder_decoder_has_the_logits_of_transformers(python: str, tmp_path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    config = dataclasses.replace(SMALL, decoder="cross_attention")
    models = {
        ours: draw_model(config, SMALL_TOKENIZER, "decoder", "mlm"),
        theirs: draw_model(SMALL, SMALL_TOKENIZER),
    }
    for folder, model in models.items():
        folder.mkdir()
        huggingface.write(model, folder)
        (folder / "lines.txt").write_text(TEXT)
    peers = run_peer(
        python,
        (ours, "AutoModelForSeq2SeqLM", ours / "saved"),
        (
            *(theirs, "EncoderDecoderModel", theirs / "saved"),
            json.dumps(huggingface.bert_config_dict(SMALL)),
        ),
    )
    assert {*peers[0]["missing"]} == {"encoder.pooler.dense.bias", "encoder.pooler.dense.weight"}
    assert peers[0]["unexpected"] == []
    source = [SMALL_TOKENIZER.cls_id, *SMALL_TOKENIZER.encode(TEXT), SMALL_TOKENIZER.sep_id]
    # The decoder reads the same tokens.
    batch = make_batch([(source[1:-1], source[1:])], 1, PackedShape(64, 1, len(source)))
    for folder, peer in zip((ours, theirs), peers, strict=True):
        assert peer["class"] == "EncoderDecoderModel"
        model = read_model(folder / "saved")
        logits = BertWithHeads(model.config, ("mlm",)).apply(
            {"params": model.params}, batch, deterministic=True
        )["mlm_logits"][:, : len(source)]
        np.testing.assert_allclose(logits, peer["outputs"]["logits"], atol=1e-5)
        huggingface.write(model, folder)
        assert_same_model(model, read_model(folder))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CLASSIFIERS)))
def test_exported_classifier_keeps_its_labels_in_transformers(case: int, peers) -> None:
    class_name, labels, problem_type, written_problem_type = CLASSIFIERS[case]
    model = draw_classifier(class_name, labels, problem_type)
    saved, peer = peers[f"ours {case}"]
    assert (peer["missing"], peer["unexpected"]) == ([], [])
    assert peer["class"] == class_name.replace("AutoModel", "Bert")
    assert peer["problem_type"] == written_problem_type
    if model.labeled_head:
        expected = labels or ("LABEL_0",)
        assert peer["labels"] == [*expected]
        assert peer["label2id"] == {label: i for i, label in enumerate(expected)}
    assert_same_outputs(model, peer)
    assert_same_model(model, read_model(saved))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(TRANSFORMERS_MODELS)))
def test_transformers_model_is_read_and_written_unchanged(case: int, peers, tmp_path) -> None:
    _, _, labels, problem_type = TRANSFORMERS_MODELS[case]
    saved, peer = peers[f"theirs {case}"]
    model = read_model(saved)
    assert (model.labels, model.problem_type, model.unexpected_keys) == (labels, problem_type, ())
    assert_same_outputs(model, peer)
    huggingface.write(model, tmp_path)
    before, after = (load_file(path / "model.safetensors") for path in (saved, tmp_path))
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes(), name
    assert_same_model(model, read_model(tmp_path))
