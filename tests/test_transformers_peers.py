"""What is exported opens in `transformers`, with the same numbers.

The tests run with every version of `transformers` that BERTJAX_PEERS leads to.
"""

import dataclasses
import itertools
import json
import lzma
import os
import pathlib
import subprocess

import numpy as np
import pytest
from conftest import PEERS, sample_vocabulary
from random_models import draw_model
from safetensors.numpy import load_file

from bertjax.formats import huggingface
from bertjax.formats.loading import read_model
from bertjax.formats.tensors import NumpyModel
from bertjax.mesh.sharding import named_leaves
from bertjax.model.bert import BertWithHeads
from bertjax.model.bert_config import BertConfig
from bertjax.model.encoder import Encoder
from bertjax.model.heads import Pooler
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.training import train_vocabulary
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

pytestmark = pytest.mark.skipif(
    not PEERS, reason="needs BERTJAX_PEERS, interpreters with torch and transformers"
)
PIECES = 30_522
CONFIG = BertConfig(PIECES, 2, 128, 2, max_position_embeddings=64)


@pytest.fixture(scope="module")
def lines(data_dir) -> list[str]:
    with lzma.open(data_dir / "text" / "wiki_en.txt.xz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in itertools.islice(filter(str.strip, file), 1000)]


def outputs(model: NumpyModel, ids: list[int]) -> dict[str, np.ndarray]:
    """What ours computes on one text, by the names of `transformers`."""
    row = np.array([ids], np.int32)
    places = np.arange(row.shape[1], dtype=np.int32)[None]
    batch = {
        "input_ids": row,
        "token_type_ids": 0 * row,
        "example_ids": 1 + 0 * row,
        "position_ids": places,
    }
    params = model.params
    hidden = Encoder(model.config).apply(
        {"params": params["encoder"]}, *batch.values(), deterministic=True
    )
    if "question_answering" in params:
        logits = (
            hidden @ params["question_answering"]["kernel"] + params["question_answering"]["bias"]
        )
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
    if "token_classification" in params:
        return {
            "logits": hidden @ params["token_classification"]["kernel"]
            + params["token_classification"]["bias"]
        }
    for head in {"sequence_classification", "multiple_choice"} & params.keys():
        pooled = Pooler(model.config).apply({"params": params["pooler"]}, hidden[:, 0])
        return {"logits": pooled @ params[head]["kernel"] + params[head]["bias"]}
    if "mlm" not in params:
        pooled = Pooler(model.config).apply({"params": params["pooler"]}, hidden[:, 0])
        return {"last_hidden_state": hidden, "pooler_output": pooled}
    batch |= {"masked_lm_positions": places, "cls_positions": places[:, :1]}
    network = BertWithHeads(model.config, tuple({"mlm", "nsp"} & params.keys()))
    found = network.apply({"params": params}, batch, deterministic=True)
    if "nsp" not in params:
        return {"logits": found["mlm_logits"]}
    return {
        "prediction_logits": found["mlm_logits"],
        "seq_relationship_logits": found["nsp_logits"][:, 0],
    }


def ask(python: str, *questions: tuple) -> list[dict]:
    """What a peer says of models, each a folder, where `lines.txt` are too, a class, and more."""
    arguments = [pathlib.Path(__file__).with_name("transformers_peer.py")]
    for folder, kind, *more in questions:
        arguments += [folder, kind, folder / "lines.txt", folder / "found.json", *more, ","]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([python, *arguments], check=True, env=environment)
    return [json.loads((folder / "found.json").read_text()) for folder, *_ in questions]


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize(
    ("kind", "heads", "vocabulary"),
    [
        ("BertForPreTraining", ("pooler", "mlm", "nsp"), "bert-base-uncased-vocab.txt"),
        ("BertForMaskedLM", ("mlm",), "bert-base-cased-vocab.txt"),
        ("BertForQuestionAnswering", ("question_answering",), "bert-base-uncased-vocab.txt"),
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
    (found,) = ask(python, (tmp_path, kind))
    assert (found["missing"], found["unexpected"]) == ([], [])
    assert found["class"] == ("BertModel" if kind == "AutoModel" else kind)
    ids = [tokenizer.encode(line) for line in lines]
    assert found["ids"] == ids
    ours = outputs(model, [tokenizer.cls_id, *ids[0][:20], tokenizer.sep_id])
    for name, values in ours.items():
        np.testing.assert_allclose(values, found["outputs"][name], atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("python", PEERS)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_so_does_one_with_a_sentencepiece_model(
    kind: str, python: str, lines, data_dir, tmp_path
) -> None:
    texts = [*lines, *chinese(data_dir)]
    path = train_vocabulary([texts], size=4000, kind=kind, cased=False, output=tmp_path / "a.model")
    tokenizer = load_tokenizer(path)
    config = dataclasses.replace(CONFIG, vocab_size=4000)
    huggingface.write(draw_model(config, tokenizer, "mlm"), tmp_path)
    (tmp_path / "lines.txt").write_text("\n".join(texts), "utf-8")
    (found,) = ask(python, (tmp_path, "BertForMaskedLM"))
    assert found["ids"] == [tokenizer.encode(text) for text in texts]


def chinese(data_dir: pathlib.Path) -> list[str]:
    articles = json.loads((data_dir / "xquad" / "xquad.zh.json").read_text("utf-8"))["data"]
    return [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]


SMALL = BertConfig(128, 2, 64, 2, max_position_embeddings=64)
SMALL_TOKENIZER = WordPieceTokenizer(sample_vocabulary(), cased=False)
TEXT = "ba doki lu menos ra ."
NAMES = ("glad", "odd, or so", "ünzufrieden")
# Class, labels, problem type, and the one in the written configuration.
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


def same_model(ours: NumpyModel, theirs: NumpyModel) -> None:
    assert (ours.labels, ours.problem_type) == (theirs.labels, theirs.problem_type)
    for (name, one), (other, two) in zip(
        named_leaves(ours.params), named_leaves(theirs.params), strict=True
    ):
        assert name == other and np.asarray(one).tobytes() == np.asarray(two).tobytes(), name


def same_outputs(model: NumpyModel, found: dict) -> None:
    ids = SMALL_TOKENIZER.encode(TEXT)
    assert found["ids"] == [ids]
    ours = outputs(model, [SMALL_TOKENIZER.cls_id, *ids, SMALL_TOKENIZER.sep_id])
    for name, values in ours.items():
        np.testing.assert_allclose(values, found["outputs"][name], atol=1e-5, err_msg=name)


# Class, fields of their configuration, labels, problem type.
THEIRS = [
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


def ours_of(kind: str, labels: tuple, problem_type: str) -> NumpyModel:
    head = (
        "multiple_choice"
        if "MultipleChoiceQuestion" in kind
        else "token_classification"
        if "Token" in kind
        else "sequence_classification"
    )
    count = 0 if head == "multiple_choice" else max(1, len(labels))
    config = dataclasses.replace(SMALL, num_labels=count)
    heads = [head] if head == "token_classification" else ["pooler", head]
    drawn = draw_model(config, SMALL_TOKENIZER, *heads)
    return dataclasses.replace(drawn, labels=labels, problem_type=problem_type)


@pytest.fixture(scope="module", params=PEERS)
def asked(request, tmp_path_factory) -> dict[str, tuple[pathlib.Path, dict]]:
    """Of each case the folder, and what the peer says of it, all in one process."""
    questions = {}
    for number, (kind, labels, problem_type, _) in enumerate(CLASSIFIERS):
        folder = tmp_path_factory.mktemp("ours")
        huggingface.write(ours_of(kind, labels, problem_type), folder)
        questions[f"ours {number}"] = folder, kind, folder / "theirs"
    for number, (kind, fields, *_) in enumerate(THEIRS):
        folder = tmp_path_factory.mktemp("theirs")
        huggingface.write(draw_model(SMALL, SMALL_TOKENIZER), folder)
        given = json.dumps(huggingface.bert_config_dict(SMALL) | fields)
        questions[f"theirs {number}"] = folder, kind, folder / "theirs", given
    for folder, *_ in questions.values():
        (folder / "lines.txt").write_text(TEXT)
    found = ask(request.param, *questions.values())
    folders = [folder / "theirs" for folder, *_ in questions.values()]
    return dict(zip(questions, zip(folders, found, strict=True), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(CLASSIFIERS)))
def test_a_classifier_goes_there_and_back_with_its_labels(case: int, asked) -> None:
    kind, labels, problem_type, problem = CLASSIFIERS[case]
    model, (theirs, found) = ours_of(kind, labels, problem_type), asked[f"ours {case}"]
    assert (found["missing"], found["unexpected"]) == ([], [])
    assert found["class"] == kind.replace("AutoModel", "Bert")
    assert found["problem_type"] == problem
    if model.labeled_head:
        expected = labels or ("LABEL_0",)
        assert found["labels"] == [*expected]
        assert found["numbers"] == {label: i for i, label in enumerate(expected)}
    same_outputs(model, found)
    same_model(model, read_model(theirs))


@pytest.mark.slow
@pytest.mark.parametrize("case", range(len(THEIRS)))
def test_theirs_open_here_and_are_written_as_they_were(case: int, asked, tmp_path) -> None:
    _, _, labels, problem_type = THEIRS[case]
    theirs, found = asked[f"theirs {case}"]
    model = read_model(theirs)
    assert (model.labels, model.problem_type, model.unexpected_keys) == (labels, problem_type, ())
    same_outputs(model, found)
    huggingface.write(model, tmp_path)
    before, after = (load_file(path / "model.safetensors") for path in (theirs, tmp_path))
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes(), name
    same_model(model, read_model(tmp_path))
