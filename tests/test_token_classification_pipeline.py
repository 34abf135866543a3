"""Entities of texts, of a model that tags each token by itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bertjax.config.loading import parse_config
from bertjax.tasks import registry
from bertjax.tasks.pipeline import PredictInput
from bertjax.tasks.token_classification.pipeline import TokenClassificationPipeline
from data_pipelines.errors import InputError
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LABELS = ("O", "B-PER", "I-PER", "B-LOC")
TAGS = {"john": "B-PER", "smith": "I-PER", "london": "B-LOC"}
WORDS = ["the", "firm", "l", "d", "s", "car", "based", "et", "-", "'", "/", ".", "("]
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *TAGS, *WORDS], cased=False)
TAG_OF_TOKEN = [LABELS.index(TAGS.get(token, "O")) for token in TOKENIZER.tokens]


def run(batches) -> Iterator[dict[str, np.ndarray]]:
    for batch in batches:
        tags = np.array(TAG_OF_TOKEN)[batch["input_ids"]]
        yield {"token_classification_logits": 9 * np.eye(len(LABELS))[tags]}


@pytest.fixture(scope="module")
def pipeline() -> TokenClassificationPipeline:
    raw: dict[str, Any] = {"task": "token_classification", "max_seq_length": 32}
    raw["model"] = {"max_position_embeddings": 32, "num_labels": len(LABELS)}
    objective = registry.make_objective(parse_config(raw, registry.data_fields()))
    return TokenClassificationPipeline(objective, TOKENIZER, LABELS)


def entities_of(pipeline: TokenClassificationPipeline, text: str) -> str:
    (answer,) = pipeline.predict(run, [PredictInput("input", text)])
    entities = answer["entities"]
    assert all(text[item["start"] : item["end"]] == item["word"] for item in entities)
    return " ".join(f"{item['entity_group']}={item['word']}" for item in entities)


@pytest.mark.parametrize(
    ("text", "entities"),
    [
        ("the-London firm", "LOC=London"),
        ("l'London et d'John Smith", "LOC=London PER=John Smith"),
        ("John Smith's car", "PER=John Smith"),
        ("London-based firm (London)", "LOC=London LOC=London"),
        ("John/Smith", "PER=John PER=Smith"),
        ("\ufeffJohn \u200b Smith", "PER=John \u200b Smith"),
        ("John \u200eSmith", "PER=John \u200eSmith"),
    ],
)
def test_entities_are_those_of_transformers(pipeline, text: str, entities: str) -> None:
    """`pipeline("ner", aggregation_strategy="simple")` of transformers 4.57 has the same."""
    assert entities_of(pipeline, text) == entities


@pytest.mark.parametrize("text", ["", " \ufeff", " \u0301", None])
def test_text_without_words_is_rejected(pipeline, text: str | None) -> None:
    with pytest.raises(InputError, match=r'^line 1: "text" is .*\. Write some text'):
        pipeline.preprocess([PredictInput("line 1", {"text": text})])
