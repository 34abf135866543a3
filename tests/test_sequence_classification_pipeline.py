"""Inputs of sequence classification: texts and pairs side by side, each as if it were alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import toy_tasks

from bertjax.config.loading import parse_config
from bertjax.tasks import registry
from bertjax.tasks.pipeline import PredictInput
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from data_pipelines.errors import InputError

TEXT, PAIR = {"text": "ba do"}, {"text": "ba do", "text_pair": "ki lu me"}
NO_PAIR = TEXT | {"text_pair": None}


def make_pipeline(**data: Any) -> SequenceClassificationPipeline:
    """Return a pipeline of a published model, or of one that was trained with some data fields."""
    raw = {"task": "sequence_classification", "max_seq_length": 32, "data": data}
    raw["model"] = {"max_position_embeddings": 32, "num_labels": 2}
    objective = registry.make_objective(parse_config(raw, registry.data_fields()))
    return SequenceClassificationPipeline(objective, toy_tasks.TOKENIZER, ("a", "b"))


def run(batches) -> Iterator[dict[str, np.ndarray]]:
    """Yield logits that depend on the tokens and the token types of each example."""
    for batch in batches:
        logits = np.zeros((*batch["labels_weights"].shape, 2))
        sums = np.sqrt(batch["input_ids"]) * (1 + batch["token_type_ids"]) / 100
        for index, number in np.ndindex(batch["labels_weights"].shape):
            logits[index, number, 0] = sums[index][batch["example_ids"][index] == number + 1].sum()
        yield {"sequence_classification_logits": logits}


def predict(pipeline, *contents: Any) -> list[dict[str, Any]]:
    inputs = [PredictInput(f"line {i}", content) for i, content in enumerate(contents, 1)]
    return list(pipeline.predict(run, inputs))


def test_texts_and_pairs_are_predicted_as_if_alone() -> None:
    pipeline = make_pipeline()
    contents = [TEXT, PAIR, "ki", NO_PAIR, PAIR | {"text": "lu"}]
    answers = predict(pipeline, *contents)
    assert answers == [answer for item in contents for answer in predict(pipeline, item)]
    assert ["text_pair" in answer for answer in answers] == [False, True, False, False, True]
    assert answers[0] == answers[3] and answers[0]["score"] != answers[1]["score"]


def test_null_is_no_second_text_of_a_trained_model() -> None:
    pipeline = make_pipeline(train_file="train.csv")
    assert predict(pipeline, NO_PAIR) == predict(pipeline, TEXT)
    with pytest.raises(InputError, match=r'^line 2: "text_pair": the model reads text\. Leave it'):
        predict(pipeline, TEXT, PAIR)


def test_joined_columns_may_be_missing_in_any_input() -> None:
    pipeline = make_pipeline(train_file="train.csv", text="title+body")
    contents = [{"title": "ba"}, {"title": "ba", "body": "do"}, {"body": "do"}]
    answers = predict(pipeline, *contents)
    assert answers == [answer for item in contents for answer in predict(pipeline, item)]
    assert [answer["title"] for answer in answers] == ["ba", "ba", None]
    (answer,) = predict(pipeline, {"title": float("nan"), "body": "do"})  # pandas' missing text
    assert answer == answers[2]
    with pytest.raises(InputError, match="line 1: no column 'title', only 'text'"):
        predict(pipeline, TEXT)
