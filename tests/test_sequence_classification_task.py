"""Fine-tuning on every toy task, from files to predictions."""

import dataclasses
import functools
import json
import pathlib

import numpy as np
import pytest
import toy_tasks
from processes import run
from run_outputs import metrics

from bertjax.cli.main import main
from bertjax.config.loading import parse_config
from bertjax.formats import huggingface
from bertjax.formats.loading import read_model
from bertjax.inference.convert import convert
from bertjax.inference.predictor import Predictor
from bertjax.mesh.sharding import named_leaves
from bertjax.tasks import registry
from bertjax.tasks.pipeline import PredictInput
from bertjax.tasks.sequence_classification.data import read_sets
from bertjax.training.evaluator import evaluate
from bertjax.training.initialization import PretrainedModel
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError
from data_pipelines.finetuning.sequence_classification import label_names

LABELS = ("glad", "odd, or so", "sad")
_METRICS = ("accuracy", "micro_f1", "pearson", "accuracy", "f1", "mlm_accuracy", "accuracy")
PRIMARY_METRICS = dict(zip(toy_tasks.KINDS, _METRICS, strict=True))
TAGS = ("O", "B-glad", "I-glad", "B-odd,", "I-odd,")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_tasks.write_data(path)
    return path


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """Return a function from a kind to its workdir, trained at the first call."""

    @functools.cache
    def of(kind: str) -> pathlib.Path:
        workdir = tmp_path_factory.mktemp(kind) / "run"
        # In a process with one device: eight devices on two cores are slow.
        done = run("train", "--workdir", workdir, *toy_tasks.arguments(kind, folder))
        assert done.returncode == 0, done.stderr
        return workdir

    return of


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    """Return a function from a kind to its model in Hugging Face format."""

    @functools.cache
    def of(kind: str) -> pathlib.Path:
        path = tmp_path_factory.mktemp(f"{kind}-hf") / "model"
        convert(trained(kind), path, "bertjax", "hf")
        return path

    return of


def leaves(params) -> dict[str, bytes]:
    return {name: np.asarray(leaf).tobytes() for name, leaf in named_leaves(params)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", toy_tasks.KINDS)
def test_training_learns_the_toy_task(kind: str, trained) -> None:
    scores = metrics(trained(kind))[-1]
    assert scores["split"] == "eval" and scores[PRIMARY_METRICS[kind]] > 0.9, scores


@pytest.mark.slow
@pytest.mark.parametrize("kind", toy_tasks.KINDS)
def test_evaluate_scores_checkpoint_and_export_alike(kind, trained, exported, folder) -> None:
    while_training = metrics(trained(kind))[-1]
    for path in (trained(kind), exported(kind)):
        evaluation = evaluate(toy_tasks.configuration(kind, folder, path), path)
        for name, value in evaluation.scores.items():
            # Rounding decides the ranks of examples with one prediction.
            tolerance = 1e-3 if name == "spearman" else 1e-5
            assert value == pytest.approx(while_training[name], abs=tolerance), name
    if kind == "generation":
        return
    entries = evaluation.files["predictions"]
    assert len(entries) == 60
    assert len(evaluation.examples) == 8 and any(" → " in line for line in evaluation.examples)
    if kind == "single_label":
        gold = [row["mood"] for row in toy_tasks.rows_of(folder / "dev.csv")]
        assert [entry["gold"] for entry in entries] == gold
        is_correct = [entry["label"] == entry["gold"] for entry in entries]
        assert np.mean(is_correct) == evaluation.scores["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", toy_tasks.KINDS)
def test_export_round_trip_is_bit_identical(kind, trained, exported, tmp_path) -> None:
    trained_model, exported_model = read_model(trained(kind)), read_model(exported(kind))
    assert leaves(trained_model.params) == leaves(exported_model.params)
    expected = {"single_label": LABELS, "multi_label": LABELS, "token_classification": TAGS}.get(
        kind, ()
    )
    assert trained_model.labels == exported_model.labels == expected
    assert (
        trained_model.problem_type
        == exported_model.problem_type
        == toy_tasks.PROBLEM_TYPES.get(kind, "single_label_classification")
    )
    huggingface.write(exported_model, tmp_path)
    weights = [path / "model.safetensors" for path in (exported(kind), tmp_path)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    convert(exported(kind), tmp_path / "own", "hf", "bertjax")
    converted = read_model(tmp_path / "own")
    assert (converted.labels, converted.problem_type) == (
        trained_model.labels,
        trained_model.problem_type,
    )
    assert leaves(converted.params) == leaves(trained_model.params)


def predict(capsys, *given: object) -> list[dict]:
    capsys.readouterr()
    assert main(["predict", *map(str, given)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_predict_accepts_text_json_and_table(trained, exported, folder, capsys) -> None:
    for path in (trained("single_label"), exported("single_label")):
        (answer,) = predict(
            capsys, "--checkpoint", path, "--text", "me ki ra ki", "--return-all-scores"
        )
        assert answer["text"] == "me ki ra ki" and answer["label"] == "sad"
        assert answer["scores"].keys() == {*LABELS}
        assert answer["score"] == answer["scores"]["sad"]
        assert sum(answer["scores"].values()) == pytest.approx(1, abs=1e-5)
    (answer,) = predict(capsys, "--checkpoint", path, "--text", '{"text": "ba ba"}')
    assert answer.keys() == {"text", "label", "score"} and answer["label"] == "glad"
    table = predict(capsys, "--checkpoint", trained("single_label"), "--input", folder / "dev.csv")
    rows = toy_tasks.rows_of(folder / "dev.csv")
    assert [answer["text"] for answer in table] == [row["text"] for row in rows]
    is_correct = [answer["label"] == row["mood"] for answer, row in zip(table, rows, strict=True)]
    assert np.mean(is_correct) > 0.9


@pytest.mark.slow
def test_predict_returns_label_sets_and_values(trained, folder, capsys) -> None:
    options = "--checkpoint", trained("multi_label"), "--text"
    (answer,) = predict(capsys, *options, "me ba ra no me", "--return-all-scores")
    assert answer["labels"] == ["glad", "odd, or so"]
    assert answer["labels"] == [name for name, p in answer["scores"].items() if p > 0.5]
    (answer,) = predict(capsys, *options, "me ra me")
    assert answer == {"text": "me ra me", "labels": []}
    table = predict(capsys, "--checkpoint", trained("regression"), "--input", folder / "dev.tsv")
    assert [*table[0]] == ["first", "second", "score"] and len(table) == 60


@pytest.mark.slow
def test_predict_accepts_both_multiple_choice_layouts(trained, tmp_path, capsys) -> None:
    options = "--checkpoint", trained("multiple_choice"), "--return-all-scores"
    question = {"context": "do lu", "choices": ["ki me", "me ba", "ki ki"]}
    (answer,) = predict(capsys, *options, "--text", json.dumps(question))
    assert (answer["context"], answer["label"], answer["answer"]) == ("do lu", 1, "me ba")
    assert sum(answer["scores"]) == pytest.approx(1, abs=1e-5)
    path = tmp_path / "swag.csv"
    path.write_text("sent1,sent2,ending0,ending1,ending2\ndo lu,,ki me,me ba,ki ki\ndo,,ba,ki,\n")
    first, second = predict(capsys, *options, "--input", path)
    assert first.pop("scores") == pytest.approx(answer.pop("scores"), abs=1e-5)
    assert first == pytest.approx(answer, abs=1e-5)
    assert second["label"] == 0 and len(second["scores"]) == 2


@pytest.mark.slow
def test_predict_generates_targets(trained, exported, folder, capsys) -> None:
    for path in (trained("generation"), exported("generation")):
        for source, target in (("me ba ra", "do lu"), ("si ki", "lu"), ("no tu ve me", "do do lu")):
            (answer,) = predict(capsys, "--checkpoint", path, "--text", source)
            assert answer == {"text": source, "generated_text": target}
    table = predict(capsys, "--checkpoint", path, "--input", folder / "pairs-dev.jsonl")
    pairs = map(json.loads, (folder / "pairs-dev.jsonl").read_text().splitlines())
    answers = [(pair["source"], pair["target"]) for pair in pairs]
    assert [(answer["text"], answer["generated_text"]) for answer in table] == answers
    with pytest.raises(InputError, match="line 1: no column 'source', only 'passage'"):
        list(Predictor(path).predict([PredictInput("line 1", {"passage": "ba"})]))


@pytest.mark.slow
def test_predict_tags_words_and_text(trained, exported, capsys) -> None:
    for path in (trained("token_classification"), exported("token_classification")):
        options = "--checkpoint", path, "--text"
        (answer,) = predict(capsys, *options, '{"words": ["ra", "ba", "ki", "me", "no"]}')
        assert answer["tags"] == ["O", "B-glad", "I-glad", "O", "B-odd,"]
        text = " ra,  (Ba ki) tu? no."
        (answer,) = predict(capsys, *options, text)
        assert answer["text"] == text.strip()
        entities = [
            (e["word"], e["entity_group"], text.strip()[e["start"] : e["end"]])
            for e in answer["entities"]
            if e["word"].strip("(),?.")  # [UNK] is in no training text: its tag is random
        ]
        assert entities == [("Ba ki", "glad", "Ba ki"), ("no", "odd,", "no")]
    long = " ".join(["ra me si"] * 21 + ["ba ki"] + ["tu ve"] * 20 + ["no"])  # several windows
    (answer,) = predict(capsys, *options, long, "--return-all-scores")
    assert [entity["word"] for entity in answer["entities"]] == ["ba ki", "no"]
    assert len(answer["scores"]) == 106
    assert all(
        sum(word_scores.values()) == pytest.approx(1, abs=1e-5) for word_scores in answer["scores"]
    )


@pytest.mark.slow
def test_predict_ignores_gold_tags_of_a_file(trained, tmp_path, capsys) -> None:
    (tmp_path / "test.conll").write_text("ra\tO\nba\tB-odd,\nki\tO\n\nno\tO\n")
    options = "--checkpoint", trained("token_classification"), "--input"
    answers = predict(capsys, *options, tmp_path / "test.conll")
    assert [answer["words"] for answer in answers] == [["ra", "ba", "ki"], ["no"]]
    assert [answer["tags"] for answer in answers] == [["O", "B-glad", "I-glad"], ["B-odd,"]]


@pytest.mark.slow
def test_labels_without_scheme_are_entity_types(trained, tmp_path, capsys) -> None:
    model = read_model(trained("token_classification"))
    plain = ("O", "GLAD", "GLAD2", "ODD", "ODD2")
    (tmp_path / "plain").mkdir()
    huggingface.write(dataclasses.replace(model, labels=plain), tmp_path / "plain")
    (answer,) = predict(capsys, "--checkpoint", tmp_path / "plain", "--text", "ra ba ki tu no")
    entities = [(entity["word"], entity["entity_group"]) for entity in answer["entities"]]
    assert entities == [("ba", "GLAD"), ("ki", "GLAD2"), ("no", "ODD")]


@pytest.mark.slow
def test_predict_ignores_unconfigured_columns_of_a_file_but_no_second_text(trained) -> None:
    opened = Predictor(trained("single_label"))
    data = {**opened.config.data, "id": "number"}
    opened.pipeline.objective.config = dataclasses.replace(opened.config, data=data)
    inputs = [
        PredictInput("input", content) for content in ("do ki", {"text": "do ki", "title": "ba ba"})
    ]
    first, second = opened.predict(inputs, from_file=True)
    assert first == second
    pair = PredictInput("line 2", {"text": "do ki", "text_pair": "ba ba"})
    with pytest.raises(
        InputError, match=r'^line 2: "text_pair": the model reads text\. Leave it out'
    ):
        list(opened.predict([pair], from_file=True))


@pytest.mark.slow
def test_init_keeps_classifier_with_equal_labels(trained, folder, tmp_path) -> None:
    begin = trained("single_label")
    trained_head = read_model(begin).params["sequence_classification"]
    cases = [("single_label", {}, True), ("multi_label", {}, True), ("regression", {}, False)]
    for kind, overrides, kept in cases:
        new = make_trainer(
            toy_tasks.configuration(kind, folder, begin, **overrides), tmp_path / kind
        )
        start = PretrainedModel(begin)
        start.check_compatible(new.config.model, new.step_functions.param_shapes, new.task.labels)
        init_params = start.load_init_params(new.step_functions.param_shapes)
        same = "sequence_classification" in init_params and leaves(
            init_params["sequence_classification"]
        ) == leaves(trained_head)
        assert same == kept and {"encoder", "pooler"} <= init_params.keys(), kind


@pytest.mark.slow
def test_evaluate_reports_each_eval_set_and_mean(trained, folder, tmp_path) -> None:
    first, *rows = (folder / "dev.csv").read_text().splitlines()
    for name, lines in (("dev-a", rows[:20]), ("dev-b", rows[20:])):
        (tmp_path / f"{name}.csv").write_text("\n".join([first, *lines]))
    config = toy_tasks.configuration(
        "single_label", folder, trained("single_label"), data__eval_file=str(tmp_path / "dev-*.csv")
    )
    evaluation = evaluate(config, trained("single_label"))
    scores = evaluation.scores
    mean = (scores["dev-a/accuracy"] + scores["dev-b/accuracy"]) / 2
    assert scores["accuracy"] == pytest.approx(mean)
    assert not registry.find_task(config.task).is_degenerate(scores, "accuracy")
    assert {"dev-a.predictions", "dev-b.predictions"} == evaluation.files.keys()


@pytest.mark.slow
def test_predict_reads_inputs_as_separate_documents(trained) -> None:
    opened = Predictor(trained("token_classification"))
    data = {**opened.config.data, "context": "document"}
    opened.pipeline.objective.config = dataclasses.replace(opened.config, data=data)
    inputs = [PredictInput(text, text) for text in ("ra me si", "ba ki tu ve")]
    alone = [next(opened.predict([item])) for item in inputs]
    assert list(opened.predict(inputs)) == alone


@pytest.mark.slow
def test_evaluate_needs_no_training_data(trained, folder, tmp_path) -> None:
    (tmp_path / "test.csv").write_text((folder / "dev.csv").read_text())
    config = toy_tasks.configuration("single_label", folder, init=trained("single_label"))
    data = {**config.data, "dir": str(tmp_path), "train_file": "", "eval_file": "test.csv"}
    alone = evaluate(dataclasses.replace(config, data=data), trained("single_label"))
    assert alone.scores == evaluate(config, trained("single_label")).scores


@pytest.mark.slow
def test_evaluate_defaults_to_the_run_configuration(trained, tmp_path) -> None:
    arguments = ["--checkpoint", str(trained("single_label")), "--output", str(tmp_path / "own")]
    assert main(["evaluate", *arguments]) == 0
    scores = json.loads((tmp_path / "own" / "scores.json").read_text())
    while_training = metrics(trained("single_label"))[-1]
    for name, value in scores.items():
        assert value == pytest.approx(while_training[name], abs=1e-5), name


@pytest.mark.slow
def test_evaluate_rejects_other_labels(trained, folder) -> None:
    with pytest.raises(InputError, match="the labels glad, odd, or so, sad and the data"):
        evaluate(
            toy_tasks.configuration("regression", folder, trained("single_label")),
            trained("single_label"),
        )


MULTI_LABEL = {"problem_type": "multi_label_classification"}


@pytest.mark.parametrize(
    ("name", "content", "fields", "values"),
    [
        ("t.csv", "v1,v2,,,\nx,a,,,\ny,b,,,\n", {"text": "v2", "label": "v1"}, ["x", "y"]),
        ("t.json", '[{"text": "a", "label": "x"},\n {"text": "b", "label": "y"}]', {}, ["x", "y"]),
        ("t.jsonl", '{"text": "a", "label": 0}\n' * 6
         + '{"text": "b", "label": 1}\n' * 6 + '{"text": "c", "label": -1}\n',
         {}, [*"0" * 6, *"1" * 6]),
        ("t.csv", "text,label\na,\"['x', 'y']\"\nb,['x']\n", MULTI_LABEL, [("x", "y"), ("x",)]),
        ("t.csv", "text,x,y\na,0,1\nb,1,0\n", MULTI_LABEL | {"label": "x+y"}, [("y",), ("x",)]),
        ("t.tsv", 'text\tlabel\n"a ""b"""\tx\nb\ty\n', {}, ["x", "y"]),
        ("t.tsv", "x\ta\ny\tb\n", {"columns": "label+text"}, ["x", "y"]),
        ("t.jsonl", '{"a": "a", "label": "x"}\n{"a": "b", "b": "c", "label": "y"}\n',
         {"text": "a+b"}, ["x", "y"]),
        ("t.csv", "text,label\na,x\nb,-\nc,x\nd,x\ne,y\n", {"missing_labels": ""}, [*"x-xxy"]),
    ],
)  # fmt: skip
def test_read_sets_reads_tables_as_others_write_them(
    name: str, content: str, fields: dict, values: list, tmp_path
) -> None:
    (tmp_path / name).write_text(content)
    data = {"dir": str(tmp_path), "train_file": name, "eval_file": name, **fields}
    config = parse_config({"task": "sequence_classification", "data": data}, registry.data_fields())
    ((_, train),) = read_sets(config, "train")
    assert train.values == values and train.texts[0].startswith("a")
    assert '"' not in train.texts[0] or train.texts[0] == 'a "b"'
    assert len(label_names(train)) >= 2


@pytest.mark.parametrize(
    ("metric", "correlation", "is_degenerate"),
    [
        ("accuracy", 0.4, True),
        ("macro_f1", 0.4, False),  # rare classes are found at the cost of the frequent one
        ("macro_f1", 0.0, True),  # one class for all
        ("matthews_correlation", -0.1, True),
    ],
)
def test_runs_are_degenerate_in_the_metric_that_ranks_them(
    metric: str, correlation: float, is_degenerate: bool
) -> None:
    scores = {"accuracy": 0.6, "majority_accuracy": 0.7, "macro_f1": 0.5}
    scores["matthews_correlation"] = correlation
    task = registry.find_task("sequence_classification")
    assert task.is_degenerate(scores, metric) is is_degenerate
    assert not task.is_degenerate({**scores, "accuracy": 0.8}, "accuracy")
