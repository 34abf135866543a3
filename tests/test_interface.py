"""What `import bertjax` gives: models that are asked, and training and evaluation as functions."""

import dataclasses
import functools
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import pytest
import toy_tasks
from conftest import process_environment
from etils import epath
from random_models import draw_model
from run_outputs import answers_of

import bertjax
from bertjax.cli.config_args import parse_overrides
from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.model.bert_config import BertConfig
from bertjax.training.metrics_file import read_metrics
from bertjax.workdir.run_config import make_run_config

ROOT = pathlib.Path(__file__).parent.parent
SHAPE = BertConfig(
    vocab_size=128,
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    max_position_embeddings=32,
    num_labels=3,
)
HEADS = {
    "fill_mask": ("pooler", "mlm"),
    "answer": ("question_answering",),
    "classify": ("pooler", "sequence_classification"),
    "tag": ("token_classification",),
    "choose": ("pooler", "multiple_choice"),
    "encode": ("pooler",),
}
ASKED = {
    "fill_mask": ("ba [MASK] do",),
    "answer": ("ba?", "ba do ki lu"),
    "classify": ("ba do",),
    "tag": ("ba do ki",),
    "choose": ("ba", ["do", "ki"]),
}


LABELS = {"classify": ("glad", "sad", "odd"), "tag": ("O", "B-per", "I-per")}


def write_model(path: pathlib.Path, method: str, most: int = 32) -> pathlib.Path:
    """A directory of Hugging Face with the head that the method needs, for so many pieces."""
    path.mkdir(parents=True)
    shape = dataclasses.replace(SHAPE, max_position_embeddings=most)
    model = draw_model(shape, toy_tasks.TOKENIZER, *HEADS[method])
    huggingface.write(dataclasses.replace(model, labels=LABELS.get(method, ())), epath.Path(path))
    return path


@pytest.fixture(scope="module")
def opened(tmp_path_factory) -> dict[str, bertjax.Model]:
    """A model for each of the methods, by its name."""
    root = tmp_path_factory.mktemp("models")
    return {method: bertjax.load(write_model(root / method, method)) for method in HEADS}


def ask(model: bertjax.Model, method: str) -> Any:
    return getattr(model, method)(*ASKED[method])


def test_to_import_it_is_to_import_nothing() -> None:
    """Whoever wants its version does not wait for JAX."""
    code = (
        "import sys, bertjax; assert 'load' in dir(bertjax) and bertjax.__version__;"
        "print({'jax', 'numpy', 'tensorflow'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_what_it_has_not_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="'bertjax' has no attribute 'lod'"):
        bertjax.lod  # noqa: B018


@pytest.mark.parametrize("method", ASKED)
def test_an_answer_is_the_line_that_predict_gives(opened, method: str) -> None:
    model = opened[method]
    lines = {
        "answer": json.dumps(dict(zip(("question", "context"), ASKED["answer"], strict=True))),
        "choose": json.dumps(dict(zip(("context", "choices"), ASKED["choose"], strict=True))),
    }
    (line,) = answers_of(model.path, [lines.get(method, ASKED[method][0])])
    answer = ask(model, method)
    if method == "answer":
        line |= {"id": "0"}
    assert answer == line
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.parametrize("method", ASKED)
def test_many_inputs_have_as_many_answers_in_their_order(opened, method: str) -> None:
    model, given = opened[method], [ASKED[method], ASKED[method]]
    one = ask(model, method)
    both = getattr(model, method)(*map(list, zip(*given, strict=True)))
    ids = [{"id": str(i)} if method == "answer" else {} for i in range(2)]
    assert both == [one | each for each in ids]
    assert getattr(model, method)(*([] for _ in ASKED[method])) == []


@pytest.mark.parametrize("method", ASKED)
def test_the_second_call_compiles_nothing(opened, method: str, compilations) -> None:
    ask(opened[method], method)
    del compilations[:]
    ask(opened[method], method)
    assert not compilations


def test_one_passage_serves_many_questions(opened) -> None:
    model, passage = opened["answer"], ASKED["answer"][1]
    asked = ["ba?", "do?"]
    assert model.answer(asked, passage) == model.answer(asked, [passage, passage])


def test_words_are_tagged_and_columns_classified(opened) -> None:
    words = opened["tag"].tag({"words": ["ba", "do"]}, return_all_scores=True)
    assert words["words"] == ["ba", "do"] and len(words["tags"]) == len(words["probabilities"]) == 2
    pair = opened["classify"].classify({"text": "ba", "text_pair": "do"}, return_all_scores=True)
    assert pair["text_pair"] == "do" and [*pair["probabilities"]] == [*LABELS["classify"]]
    assert opened["classify"].predict("ba do") == ask(opened["classify"], "classify")


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("asked", ASKED)
def test_what_a_model_cannot_do_is_refused_with_what_it_can(opened, method, asked) -> None:
    if method == asked:
        return
    with pytest.raises(bertjax.InputError) as refusal:
        ask(opened[method], asked)
    sentence = str(refusal.value)
    assert sentence.startswith(str(opened[method].path)) and sentence.count(". ") == 0
    assert f"call {method}" in sentence


@pytest.mark.parametrize(
    ("method", "given", "complaint"),
    [
        ("fill_mask", (["[MASK]", "ba"],), r"^input 1 has no \[MASK\]: write one"),
        ("fill_mask", ("ba " * 40 + "[MASK]",), "^input 0 has 43 pieces and the model takes 32"),
        (
            "fill_mask",
            ({"text": "[MASK]"},),
            "^input 0 is no text, and the model reads nothing else",
        ),
        ("fill_mask", ([None],), "^input 0 is None: give a text, or a dictionary of texts"),
        (
            "answer",
            (["a", "b"], ["c"]),
            "^2 inputs of question and 1 of context do not go together",
        ),
        ("answer", ("ba?", " "), "^the passage of input 0 is empty"),
        ("classify", (["ba", " "],), "^input 1: column 'text' is empty"),
        ("classify", ({"body": "ba"},), "^input 0: no column 'text', only 'body'"),
        ("tag", ("",), "^input 0: \"text\" is '': write some text"),
        ("choose", ("ba", ["do"]), "^input 0: 1 answers leave nothing to choose"),
        ("choose", ("ba", "do"), "^'do' is one text where a list of choices is to be"),
        ("choose", (["ba", "ki"], ["do", "lu"]), "^'do' is one text where a list of choices"),
        ("choose", (["ba"], [["do", "ki"]] * 2), "^1 inputs of context and 2 of choices"),
        ("encode", ([1],), "^input 0 is 1: give a text"),
        ("encode", ("ba", (7,)), "^there is no layer 7 in a model of 2 layers"),
        ("encode", ("ba", (-1,), "sum"), "sum is unknown: use mean, cls, max"),
        ("batch", ([],), "^0 texts and 0 pairs make no batch"),
        ("batch", (["ba"], ["do", "ki"]), "^1 texts and 2 pairs make no batch"),
        ("batch", (["ba " * 40],), "^1 of 1 texts have more than the 32 pieces"),
    ],
)
def test_an_input_that_cannot_be_answered_is_named(opened, method, given, complaint) -> None:
    model = opened.get(method, opened["encode"])
    with pytest.raises(bertjax.InputError, match=complaint):
        getattr(model, method)(*given)


def test_vectors_are_those_that_features_writes(opened, tmp_path) -> None:
    model, texts = opened["encode"], ["ba do ki", "lu", "me no"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    options = ["--layers", "0,-1", "--pooling", "max", "--normalize"]
    given = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.npz", *options]
    assert main(list(map(str, ["embed", "--checkpoint", model.path, *given]))) == 0
    found = model.encode(texts, layers=(0, -1), pool="max", normalize=True)
    np.testing.assert_array_equal(found, np.load(tmp_path / "out.npz")["vectors"])
    assert found.shape == (3, 32) and model.encode([]).shape == (0, 32)
    np.testing.assert_allclose(model.encode("lu"), model.encode(texts)[1], atol=1e-5)


def test_a_model_of_sentence_transformers_brings_its_own_pooling(opened, tmp_path) -> None:
    inner = write_model(tmp_path / "model" / "inner", "encode")
    parts = [("Transformer", "inner"), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in parts]
    (inner.parent / "modules.json").write_text(json.dumps(modules))
    (inner.parent / "1_Pooling").mkdir()
    said = json.dumps({"pooling_mode_cls_token": True})
    (inner.parent / "1_Pooling" / "config.json").write_text(said)
    found = bertjax.load(inner.parent).encode("ba do ki")
    np.testing.assert_array_equal(found, opened["encode"].encode("ba do ki", (-1,), "cls", True))


def test_texts_that_are_too_long_are_cut_and_counted(opened, caplog) -> None:
    opened["encode"].encode(["ba " * 40, "ba"])
    assert "1 of 2 texts are longer than 32 pieces and were cut" in caplog.text


def test_apply_gives_the_vectors_that_encode_pools(opened) -> None:
    model, texts = opened["encode"], ["ba do ki lu me no", "lu", "me no"]
    batch = model.batch(texts)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert {array.shape for array in batch.values()} == {(3, 16)}
    vectors = jax.jit(model.apply)(model.params, batch)
    assert vectors.shape == (3, 16, 32)
    np.testing.assert_allclose(vectors[:, 0], model.encode(texts, pool="cls"), atol=1e-5)
    layers = jax.jit(functools.partial(model.apply, layers=(0, -1)))(model.params, batch)
    np.testing.assert_allclose(layers[1], vectors, atol=1e-5)


def test_second_texts_are_of_the_second_type(opened) -> None:
    batch = opened["encode"].batch(["ba", "ba do"], ["ki lu", "ki"])
    tokens = opened["encode"].tokenizer.tokens
    said = [tokens[i] for i in batch["input_ids"][0] if i]
    assert said == ["[CLS]", "ba", "[SEP]", "ki", "lu", "[SEP]"]
    assert batch["token_type_ids"].tolist()[0][:7] == [0, 0, 0, 1, 1, 1, 0]


def test_apply_can_be_differentiated_and_a_key_turns_dropout_on(opened) -> None:
    model = opened["encode"]
    batch, apply = model.batch(["ba do ki"]), jax.jit(model.apply)
    dropped, again, other = (apply(model.params, batch, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(dropped, again)
    assert not np.array_equal(dropped, other)
    slopes = jax.jit(jax.grad(lambda params: apply(params, batch)[0, 0, 0]))(model.params)
    assert jnp.abs(slopes["encoder"]["embeddings"]["word"]).max() > 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("data")
    toy_tasks.write_data(path)
    return path


def spec_of(folder: pathlib.Path, **options: object) -> tuple[str, dict[str, Any]]:
    """A configuration of toys as text, and the fields that go with it."""
    _, spec, *flags = toy_tasks.arguments("single_label", folder, steps=12, log_every=4, **options)
    fields = {name: toy_tasks.FIELDS.get(name, 0) for name in parse_overrides(flags)}
    fields |= {"steps": 12, "log_every": 4, "optimizer.warmup": 2}
    return spec, fields | {"data.vocab": str(folder / "vocab.txt")}


@pytest.mark.slow
def test_a_run_tells_its_metrics_and_is_scored(folder, tmp_path) -> None:
    spec, overrides = spec_of(folder)
    told: list[dict[str, Any]] = []
    bertjax.train(spec, tmp_path, overrides, told.append)
    lines = read_metrics(tmp_path)
    assert told == lines and {line["split"] for line in lines} == {"train", "eval"}
    bertjax.train(spec, tmp_path, overrides, told.append)  # which is over
    assert told == lines
    scores = bertjax.evaluate(tmp_path)
    assert scores["accuracy"] == lines[-1]["accuracy"] and type(scores["accuracy"]) is float
    assert bertjax.evaluate([tmp_path, tmp_path]) == scores
    assert bertjax.evaluate(tmp_path, spec, overrides) == scores
    other = bertjax.evaluate(tmp_path, overrides={"data.eval_file": "train.csv"})
    assert other["loss"] != scores["loss"]


def test_a_configuration_is_the_same_however_it_is_given(folder) -> None:
    spec, overrides = spec_of(folder)
    typed = make_run_config(spec, overrides)
    plain = typed.to_dict()
    for given in (typed, plain, ml_collections.ConfigDict(plain)):
        assert make_run_config(given, {}) == typed
        assert make_run_config(given, {"max_seq_length": 16}) == dataclasses.replace(
            typed, max_seq_length=16
        )
    assert typed.to_dict() == plain


@pytest.mark.slow
def test_what_the_callback_raises_ends_the_run(folder, tmp_path) -> None:
    class Enough(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        raise Enough

    spec, overrides = spec_of(folder)
    with pytest.raises(Enough):
        bertjax.train(spec, tmp_path, overrides, stop)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"optimizer.learning_rte": 1.0}, "learning_rte"),
        ({"max_seq_length": "32"}, "max_seq_length='32'"),  # a text is no number
        ({"data.dir": "nowhere"}, "nowhere"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(folder, tmp_path, overrides, complaint) -> None:
    spec, fields = spec_of(folder)
    with pytest.raises(bertjax.InputError, match=complaint):
        bertjax.train(spec, tmp_path, fields | overrides)


def blocks() -> list[str]:
    text = (ROOT / "docs" / "python.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def home(folder, tmp_path_factory) -> pathlib.Path:
    """A folder with what the documents' examples name."""
    path = tmp_path_factory.mktemp("home")
    write_model(path / "models" / "base", "fill_mask", most=128)
    write_model(path / "models" / "moods", "classify")
    (path / "reviews").mkdir()
    for name, source in (("train", "train"), ("dev", "dev"), ("other", "dev")):
        (path / "reviews" / f"{name}.csv").write_bytes((folder / f"{source}.csv").read_bytes())
    return path


# Each example by itself, on one device, which a person has.
EXAMPLES = """
import json, sys
for number, example in enumerate(json.load(sys.stdin), 1):
    names = {}
    exec(compile(example, f"docs/python.md, example {number}", "exec"), names)
    assert "tuned" not in names or names["tuned"] < names["probed"] < 0.69, names
"""


@pytest.mark.slow
def test_the_examples_of_the_documents_run(home) -> None:
    assert len(blocks()) == 3
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES],
        input=json.dumps(blocks()),
        env=process_environment() | {"PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
