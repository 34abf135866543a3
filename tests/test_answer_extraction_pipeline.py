"""Answers of passages: inputs, options, windows and samples."""

import collections
import json
import pathlib

import numpy as np
import pytest
from random_models import draw_model
from scipy.special import softmax
from toy_passages import passages
from toy_squad import TOKENIZER

import bertjax
from bertjax.cli.main import main
from bertjax.config.extraction_options import ExtractionOptions
from bertjax.formats import huggingface
from bertjax.inference.predictor import Predictor
from bertjax.model.bert_config import BertConfig
from bertjax.tasks.answer_extraction.decoding import ScoredSpan
from bertjax.tasks.answer_extraction.pipeline import AnswerExtractionPipeline, sample_spans
from data_pipelines.errors import InputError

TEXT = "Anna lives in Rome. Bob, of Oslo, lives in Paris (in Delhi?)"
LONG = "anna b in rome c d bob e f carl lives g h in oslo x y z. " * 6


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> pathlib.Path:
    """A model with random parameters, whose windows have 64 tokens."""
    folder = tmp_path_factory.mktemp("model")
    config = BertConfig(len(TOKENIZER.tokens), 2, 32, 2, max_position_embeddings=64)
    model = draw_model(config, TOKENIZER, "answer_spans")
    model.params["answer_spans"]["scorer"]["output"]["kernel"][:] *= 10
    huggingface.write(model, folder)
    return folder


@pytest.fixture(scope="module")
def model(path) -> bertjax.Model:
    return bertjax.load(path)


def texts_of(answer: dict) -> list[str]:
    return [span["text"] for span in answer["answers"]]


@pytest.mark.seconds
def test_answers_are_words_of_the_passage_each_once(model) -> None:
    for text in (TEXT, LONG):
        answer = model.extract_answers(text, num_answers=200)
        assert answer["context"] == text and len(texts_of(answer)) > 20
        assert len({*texts_of(answer)}) == len(texts_of(answer))
        scores = [span["score"] for span in answer["answers"]]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0
        for span in answer["answers"]:
            start, end = span["start"], span["end"]
            assert span["text"] == text[start:end]
            assert not f"{text} "[start - 1 : start + 1].isalnum() or start == 0
            assert not f"{text} "[end - 1 : end + 1].isalnum()
        default = model.extract_answers(text)
        assert default["answers"] == answer["answers"][:3]


@pytest.mark.seconds
def test_probabilities_of_a_window_add_up_to_one(model) -> None:
    text = " ".join("abcdefghijklmnop")  # no text occurs twice
    answer = model.extract_answers(text, num_answers=1000)
    assert len(answer["answers"]) == sum(min(10, 16 - start) for start in range(16))
    total = np.exp([span["score"] for span in answer["answers"]]).sum()
    assert total == pytest.approx(1, abs=1e-4)


@pytest.mark.seconds
def test_answers_do_not_depend_on_the_batch(model) -> None:
    inputs = [TEXT, LONG, "bob", LONG[::-1], {"context": TEXT, "num_answers": 2}]
    together = model.extract_answers(inputs)
    for item, answer in zip(inputs, together, strict=True):
        alone = model.extract_answers(item)
        assert texts_of(alone) == texts_of(answer) and alone["context"] == answer["context"]
    assert len(together[-1]["answers"]) == 2 and len(together[2]["answers"]) == 1


@pytest.mark.seconds
def test_samples_depend_on_seed_and_passage_alone(model) -> None:
    options = {"do_sample": True, "num_answers": 3, "n_best_size": 20}
    first = model.extract_answers([TEXT, LONG, "a b c d"], seed=1, **options)
    again = model.extract_answers(["a b c d", TEXT], seed=1, **options)
    assert [texts_of(first[2]), texts_of(first[0])] == [*map(texts_of, again)]
    other = [texts_of(model.extract_answers(TEXT, seed=seed, **options)) for seed in range(6)]
    assert texts_of(first[0]) in other and len({*map(tuple, other)}) > 1
    best = texts_of(model.extract_answers(TEXT, num_answers=20))
    for texts in other:
        assert len({*texts}) == 3 and {*texts} <= {*best}


def test_sample_spans_draws_by_probability_without_replacement() -> None:
    scores = np.array([-0.5, -1.5, -2.0, -4.0])
    spans = [ScoredSpan(str(i), i, i + 1, score) for i, score in enumerate(scores)]
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for seed in range(4000):
        options = ExtractionOptions(num_answers=2, do_sample=True, seed=seed)
        first, second = sample_spans("text", spans, options)
        counts[first.text, second.text] += 1
    p = softmax(scores)
    for (first, second), count in counts.items():
        i, j = int(first), int(second)
        assert i != j
        assert count / 4000 == pytest.approx(p[i] * p[j] / (1 - p[i]), abs=0.025)


LAYOUTS = {
    "squad": json.dumps(passages(3, "x")),
    "indented": json.dumps(passages(3, "x"), indent=1),
    "one line a paragraph": "\n".join(
        json.dumps(paragraph) for paragraph in passages(3, "x")["data"][0]["paragraphs"]
    ),
    "contexts": "\n".join(
        json.dumps({"context": paragraph["context"]})
        for paragraph in passages(3, "x")["data"][0]["paragraphs"]
    ),
    "list": json.dumps(
        [{"context": p["context"]} for p in passages(3, "x")["data"][0]["paragraphs"]], indent=1
    ),
    "texts": "\n\n".join(p["context"] for p in passages(3, "x")["data"][0]["paragraphs"]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("begin", ["", "\n", "\ufeff"])
def test_parse_lines_reads_each_passage(layout: str, begin: str) -> None:
    lines = (begin + LAYOUTS[layout]).splitlines(keepends=True)
    name = "x.json" if layout == "list" else "x"
    items = [*AnswerExtractionPipeline.parse_lines(lines, name)]
    expected = [p["context"] for p in passages(3, "x")["data"][0]["paragraphs"]]
    contents = [i.content if isinstance(i.content, str) else i.content["context"] for i in items]
    assert contents == expected
    assert len({item.location for item in items}) == 3


def test_parse_lines_reads_paragraphs_without_questions_and_each_text_once() -> None:
    paragraphs = [{"context": "b", "qas": []}, {"context": "a", "qas": []}] * 2
    text = json.dumps({"data": [{"paragraphs": paragraphs}]})
    items = [*AnswerExtractionPipeline.parse_lines([text])]
    assert [item.content for item in items] == ["b", "a"]
    assert [*AnswerExtractionPipeline.parse_lines([])] == []


@pytest.mark.seconds
def test_predict_writes_a_line_for_each_line(path, tmp_path, capsys) -> None:
    lines = [{"context": TEXT}, {"text": "a"}, {"context": LONG, "num_answers": 1}, {"context": ""}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    given = ["--input", str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "out.jsonl")]
    given += ["--config.extraction.num_answers=4"]
    assert main(["predict", "--checkpoint", str(path), *given]) == 0
    outputs = [*map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())]
    assert [len(output.get("answers", ())) for output in outputs] == [4, 0, 1, 0]
    assert "line 2: this is no text and no" in outputs[1]["error"]
    assert outputs[3]["error"] == "line 4: the passage is empty. Remove it."
    assert "2 of 4 inputs are invalid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ([TEXT], {"answers": 3}, "answers=3: no such option. Use some of num_answers"),
        ([TEXT], {"num_answers": "many"}, "input 0: num_answers='many': is of type str. Use int"),
        ([TEXT], {"n_best_size": 5}, "input 0: n_best_size=5: has no effect without do_sample"),
        ([TEXT], {"num_answers": 11, "do_sample": True}, "input 0: num_answers=11: a sample from"),
        ([TEXT], {"num_answers": 1001}, "input 0: num_answers=1001: too many. Use at most 1000"),
        ([TEXT, {"passage": "a"}], {}, "input 1: this is no text and no"),
        (
            [{"context": TEXT, "num_answer": 2}],
            {},
            "input 0: the model does not read the key 'num_answer'",
        ),
        ([" "], {}, "input 0: the passage is empty. Remove it."),
    ],
    ids=str,
)
def test_extract_answers_rejects_invalid_input(model, inputs, options, message: str) -> None:
    with pytest.raises(InputError, match=f"^{message}"):
        model.extract_answers(inputs, **options)


@pytest.mark.seconds
def test_other_tasks_reject_the_options(path, tmp_path, capsys) -> None:
    config = BertConfig(len(TOKENIZER.tokens), 1, 32, 2, max_position_embeddings=64)
    huggingface.write(draw_model(config, TOKENIZER, "question_answering"), tmp_path)  # type: ignore[arg-type]
    given = ["--field", "question=a", "--field", "context=b", "--config.extraction.num_answers=1"]
    assert main(["predict", "--checkpoint", str(tmp_path), *given]) == 2
    error = "extraction.num_answers=1: a model of task=question_answering does not extract answers"
    assert error in capsys.readouterr().err


@pytest.mark.seconds
def test_display_marks_answers_that_do_not_overlap_better_ones(path) -> None:
    pipeline = Predictor(path).pipeline
    spans = [(5, 7), (0, 6), (1, 3), (7, 8)]
    answers = [{"text": TEXT[s:e], "start": s, "end": e, "score": -1.0} for s, e in spans]
    *texts, passage = pipeline.display(TEXT, {"context": TEXT, "answers": answers})
    assert len(texts) == 4
    assert passage["spans"] == [(1, 3, ""), (5, 7, ""), (7, 8, "")]
