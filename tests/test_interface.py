"""The Python interface: models, training and evaluation."""

import dataclasses
import functools
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
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
    "extract_answers": ("answer_spans",),
    "classify": ("pooler", "sequence_classification"),
    "tag": ("token_classification",),
    "choose": ("pooler", "multiple_choice"),
    "encode": ("pooler",),
}
ARGUMENTS = {
    "fill_mask": ("ba [MASK] do",),
    "answer": ("ba?", "ba do ki lu"),
    "extract_answers": ("ba do ki lu",),
    "classify": ("ba do",),
    "tag": ("ba do ki",),
    "choose": ("ba", ["do", "ki"]),
}


LABELS = {"classify": ("glad", "sad", "odd"), "tag": ("O", "B-per", "I-per")}


def write_model(path: pathlib.Path, method: str, max_length: int = 32) -> pathlib.Path:
    """Write a Hugging Face directory of a model with the head that the method needs."""
    path.mkdir(parents=True)
    shape = dataclasses.replace(SHAPE, max_position_embeddings=max_length)
    model = draw_model(shape, toy_tasks.TOKENIZER, *HEADS[method])
    huggingface.write(dataclasses.replace(model, labels=LABELS.get(method, ())), epath.Path(path))
    return path


class DataFrame:
    """The part of a pandas.DataFrame by which it is recognized."""

    columns = ("text",)

    def to_dict(self, orient: str) -> None: ...

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, bertjax.Model]:
    """A model for each method, by its name."""
    root = tmp_path_factory.mktemp("models")
    return {method: bertjax.load(write_model(root / method, method)) for method in HEADS}


def call(model: bertjax.Model, method: str) -> Any:
    return getattr(model, method)(*ARGUMENTS[method])


def test_import_loads_neither_jax_nor_numpy() -> None:
    code = (
        "import sys, bertjax; assert 'load' in dir(bertjax) and bertjax.__version__;"
        "print({'jax', 'numpy', 'tensorflow'} & sys.modules.keys())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def test_module_has_no_unknown_attribute() -> None:
    with pytest.raises(AttributeError, match="'bertjax' has no attribute 'lod'"):
        bertjax.lod  # noqa: B018 (raises)


@pytest.mark.seconds
@pytest.mark.parametrize("method", ARGUMENTS)
def test_method_returns_the_line_of_predict(models, method: str) -> None:
    model = models[method]
    lines = {
        "answer": json.dumps(dict(zip(("question", "context"), ARGUMENTS["answer"], strict=True))),
        "choose": json.dumps(dict(zip(("context", "choices"), ARGUMENTS["choose"], strict=True))),
    }
    (line,) = answers_of(model.path, [lines.get(method, ARGUMENTS[method][0])])
    answer = call(model, method)
    if method == "answer":
        line |= {"id": "0"}
    assert answer == line
    assert json.loads(json.dumps(answer)) == answer


@pytest.mark.seconds
@pytest.mark.parametrize("method", ARGUMENTS)
def test_method_returns_an_answer_for_each_input_in_order(models, method: str) -> None:
    model, given = models[method], [ARGUMENTS[method], ARGUMENTS[method]]
    one = call(model, method)
    both = getattr(model, method)(*map(list, zip(*given, strict=True)))
    ids = [{"id": str(i)} if method == "answer" else {} for i in range(2)]
    assert both == [one | each for each in ids]
    assert getattr(model, method)(*([] for _ in ARGUMENTS[method])) == []


@pytest.mark.parametrize("method", ARGUMENTS)
def test_method_compiles_nothing_in_its_second_call(models, method: str, compilations) -> None:
    call(models[method], method)
    del compilations[:]
    call(models[method], method)
    assert not compilations


def test_answer_takes_one_passage_for_many_questions(models) -> None:
    model, passage = models["answer"], ARGUMENTS["answer"][1]
    asked = ["ba?", "do?"]
    assert model.answer(asked, passage) == model.answer(asked, [passage, passage])


def test_methods_take_words_and_columns(models) -> None:
    words = models["tag"].tag({"words": ["ba", "do"]}, return_all_scores=True)
    assert words["words"] == ["ba", "do"] and len(words["tags"]) == len(words["scores"]) == 2
    pair = models["classify"].classify({"text": "ba", "text_pair": "do"}, return_all_scores=True)
    assert pair["text_pair"] == "do" and [*pair["scores"]] == [*LABELS["classify"]]
    assert models["classify"].predict("ba do") == call(models["classify"], "classify")


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("other", ARGUMENTS)
def test_method_of_another_task_is_rejected_with_the_right_one(models, method, other) -> None:
    if method == other:
        return
    with pytest.raises(bertjax.InputError) as error:
        call(models[method], other)
    sentence = str(error.value)
    assert sentence.startswith(f"{models[method].path}: ") and "\n" not in sentence
    assert f"Call {method}" in sentence


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("fill_mask", (["[MASK]", "ba"],), r"^input 1: there is no \[MASK\]\. Write one"),
        (
            "fill_mask",
            ("ba " * 40 + "[MASK]",),
            "^input 0: the text has 43 tokens and the model takes 32",
        ),
        ("fill_mask", ({"source": "[MASK]"},), "^input 0: no text. Give a text, or an object with"),
        ("fill_mask", ([None],), "^input 0: None is no input"),
        ("classify", (None,), "^texts=None: no input. Give one or several"),
        ("classify", (5,), "^inputs=5: no input. Give a text, a dictionary or several"),
        ("classify", (DataFrame(),), "^texts: a DataFrame. Give its rows, df.to_dict"),
        ("predict", (DataFrame(),), "^inputs: a DataFrame"),
        ("encode", (DataFrame(),), "^texts: a DataFrame"),
        ("encode", (None,), "^texts=None: no input"),
        ("encode", ("ba", -1), r"^layers=-1: no list of layers. Give one, such as \(-1,\)"),
        ("answer", (["ba"], None), "^context=None: no input"),
        ("answer", (["a", "b"], ["c"]), "^question, context: 2 and 1 inputs"),
        ("answer", ("ba?", " "), "^input 0: the passage is empty"),
        ("classify", (["ba", " "],), "^input 1: column 'text' is empty"),
        ("classify", ({"body": "ba"},), "^input 0: no column 'text', only 'body'"),
        ("tag", ("",), "^input 0: \"text\" is ''. Write some text"),
        ("choose", ("ba", ["do"]), "^input 0: a question needs two choices and has 1"),
        ("choose", ("ba", "do"), "^choices='do': a text is no list of choices"),
        ("choose", (["ba", "ki"], ["do", "lu"]), "^choices='do': a text is no list"),
        ("choose", (["ba"], [["do", "ki"]] * 2), "^context, choices: 1 and 2 inputs"),
        ("encode", ([1],), "^input 0: 1 is no text"),
        ("encode", ({"text": "ba"},), "^input 0: {'text': 'ba'} is no text. Give a text"),
        ("encode", ("ba", (7,)), "^layer 7: not in a model of 2 layers"),
        ("encode", ("ba", (-1,), "sum"), "^pooling=sum: unknown value. Use mean, cls, max"),
        ("batch", ([],), "^0 texts and 0 pairs: no batch"),
        ("batch", (["ba"], ["do", "ki"]), "^1 texts and 2 pairs: no batch"),
        ("batch", (["ba " * 40],), "^1 of 1 texts have more than the 32 tokens"),
    ],
)
def test_method_names_an_invalid_input(models, method, arguments, message) -> None:
    model = models.get(method, models["encode"])
    with pytest.raises(bertjax.InputError, match=message):
        getattr(model, method)(*arguments)


@pytest.mark.seconds
def test_encode_returns_what_embed_writes(models, tmp_path) -> None:
    model, texts = models["encode"], ["ba do ki", "lu", "me no"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    options = ["--layers", "0,-1", "--pooling", "max", "--normalize"]
    given = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out.npz", *options]
    assert main(list(map(str, ["embed", "--checkpoint", model.path, *given]))) == 0
    found = model.encode(texts, layers=(0, -1), pooling="max", normalize=True)
    np.testing.assert_array_equal(found, np.load(tmp_path / "out.npz")["embeddings"])
    assert found.shape == (3, 32) and model.encode([]).shape == (0, 32)
    np.testing.assert_allclose(model.encode("lu"), model.encode(texts)[1], atol=1e-5)


@pytest.mark.seconds
def test_encode_uses_the_pooling_of_sentence_transformers(models, tmp_path) -> None:
    inner = write_model(tmp_path / "model" / "inner", "encode")
    parts = [("Transformer", "inner"), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in parts]
    (inner.parent / "modules.json").write_text(json.dumps(modules))
    (inner.parent / "1_Pooling").mkdir()
    said = json.dumps({"pooling_mode_cls_token": True})
    (inner.parent / "1_Pooling" / "config.json").write_text(said)
    found = bertjax.load(inner.parent).encode("ba do ki")
    np.testing.assert_array_equal(found, models["encode"].encode("ba do ki", (-1,), "cls", True))


@pytest.mark.seconds
def test_encode_truncates_and_counts_long_texts(models, caplog) -> None:
    models["encode"].encode(["ba " * 40, "ba"])
    assert "1 of 2 texts are longer than 32 tokens and were truncated" in caplog.text


@pytest.mark.seconds
def test_apply_returns_the_embeddings_that_encode_pools(models) -> None:
    model, texts = models["encode"], ["ba do ki lu me no", "lu", "me no"]
    batch = model.batch(texts)
    assert {array.dtype for array in batch.values()} == {np.dtype(np.int32)}
    assert {array.shape for array in batch.values()} == {(3, 16)}
    vectors = jax.jit(model.apply)(model.params, batch)
    assert vectors.shape == (3, 16, 32)
    np.testing.assert_allclose(vectors[:, 0], model.encode(texts, pooling="cls"), atol=1e-5)
    layers = jax.jit(functools.partial(model.apply, layers=(0, -1)))(model.params, batch)
    np.testing.assert_allclose(layers[1], vectors, atol=1e-5)


def test_batch_gives_second_texts_token_type_1(models) -> None:
    batch = models["encode"].batch(["ba", "ba do"], ["ki lu", "ki"])
    tokens = models["encode"].tokenizer.tokens
    said = [tokens[i] for i in batch["input_ids"][0] if i]
    assert said == ["[CLS]", "ba", "[SEP]", "ki", "lu", "[SEP]"]
    assert batch["token_type_ids"].tolist()[0][:7] == [0, 0, 0, 1, 1, 1, 0]


def test_batch_reads_masks(models) -> None:
    model = models["encode"]
    ids = model.batch(["ba [MASK] do"], ["[MASK]"])["input_ids"][0]
    tokens = [model.tokenizer.tokens[i] for i in ids if i]
    assert tokens == ["[CLS]", "ba", "[MASK]", "do", "[SEP]", "[MASK]", "[SEP]"]


@pytest.mark.seconds
def test_apply_is_differentiable_and_a_key_turns_dropout_on(models) -> None:
    model = models["encode"]
    batch, apply = model.batch(["ba do ki"]), jax.jit(model.apply)
    dropped, again, other = (apply(model.params, batch, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(dropped, again)
    assert not np.array_equal(dropped, other)
    slopes = jax.jit(jax.grad(lambda params: apply(params, batch)[0, 0, 0]))(model.params)
    assert jnp.abs(slopes["encoder"]["embeddings"]["word"]).max() > 0


def spec_of(toys: pathlib.Path, **options: object) -> tuple[str, dict[str, Any]]:
    """Return a configuration of the toy task as text, and its overrides."""
    _, spec, *flags = toy_tasks.arguments("single_label", toys, steps=12, log_every=4, **options)
    fields = {name: toy_tasks.FIELDS.get(name, 0) for name in parse_overrides(flags)}
    fields |= {"steps": 12, "log_every": 4, "optimizer.warmup": 2}
    return spec, fields | {"data.vocab": str(toys / "vocab.txt")}


@pytest.mark.slow
def test_train_calls_back_and_evaluate_returns_scores(toys, tmp_path) -> None:
    spec, overrides = spec_of(toys)
    lines_called: list[dict[str, Any]] = []
    bertjax.train(spec, tmp_path, overrides, lines_called.append)
    lines = read_metrics(tmp_path)
    assert lines_called == lines and {line["split"] for line in lines} == {"train", "eval"}
    bertjax.train(spec, tmp_path, overrides, lines_called.append)  # which is over
    assert lines_called == lines
    scores = bertjax.evaluate(tmp_path)
    assert scores["accuracy"] == lines[-1]["accuracy"] and type(scores["accuracy"]) is float
    assert bertjax.evaluate([tmp_path, tmp_path]) == scores
    assert bertjax.evaluate(tmp_path, spec, overrides) == scores
    other = bertjax.evaluate(tmp_path, overrides={"data.eval_file": "train.csv"})
    assert other["loss"] != scores["loss"]


def test_evaluate_needs_a_model() -> None:
    with pytest.raises(bertjax.InputError, match=r"^checkpoint=\[\]: no model"):
        bertjax.evaluate([])


def test_run_config_is_the_same_for_every_source(toys) -> None:
    spec, overrides = spec_of(toys)
    typed = make_run_config(spec, overrides)
    plain = typed.to_dict()
    for given in (typed, plain, ml_collections.ConfigDict(plain)):
        assert make_run_config(given, {}) == typed
        assert make_run_config(given, {"max_seq_length": 16}) == dataclasses.replace(
            typed, max_seq_length=16
        )
    assert typed.to_dict() == plain


@pytest.mark.slow
def test_train_propagates_an_exception_of_the_callback(toys, tmp_path) -> None:
    class EnoughError(Exception):
        pass

    def stop(line: dict[str, Any]) -> None:
        raise EnoughError

    spec, overrides = spec_of(toys)
    with pytest.raises(EnoughError):
        bertjax.train(spec, tmp_path, overrides, stop)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optimizer.learning_rte": 1.0}, "learning_rte"),
        ({"max_seq_length": "32"}, "max_seq_length='32'"),  # a text is no number
        ({"data.dir": "nowhere"}, "nowhere"),
    ],
)
def test_train_rejects_an_invalid_configuration(toys, tmp_path, overrides, message) -> None:
    spec, fields = spec_of(toys)
    with pytest.raises(bertjax.InputError, match=message):
        bertjax.train(spec, tmp_path, fields | overrides)


def blocks() -> list[str]:
    text = (ROOT / "docs" / "python.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def home(toys, tmp_path_factory) -> pathlib.Path:
    """A folder with what the documents' examples name."""
    path = tmp_path_factory.mktemp("home")
    write_model(path / "models" / "base", "fill_mask", max_length=128)
    write_model(path / "runs" / "moods", "classify")
    (path / "reviews").mkdir()
    for name, source in (("train", "train"), ("dev", "dev"), ("other", "dev")):
        (path / "reviews" / f"{name}.csv").write_bytes((toys / f"{source}.csv").read_bytes())
    return path


# Each example by itself, on one device, which a person has.
EXAMPLES = """
import json, sys
for number, example in enumerate(json.load(sys.stdin), 1):
    names = {}
    exec(compile(example, f"docs/python.md, example {number}", "exec"), names)
    if is_training := "final_loss" in names:
        assert names["final_loss"] < names["probe_loss"] < 0.69, names
assert is_training  # the last one
"""


@pytest.mark.minutes
def test_examples_of_the_documents_run(home) -> None:
    assert len(blocks()) == 4
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES],
        input=json.dumps(blocks()),
        env=process_environment() | {"PYTHONPATH": str(ROOT)},
        cwd=home,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
