"""Shapes of the batches in which texts are embedded: few, and as long as the texts."""

from collections.abc import Iterator

import numpy as np
import pytest
import toy_tasks

from bertjax.config.config import Config
from bertjax.model.bert_config import BertConfig
from bertjax.tasks.embeddings.encoder_embeddings import (
    EmbeddingOptions,
    EmbeddingsObjective,
    embed_texts,
)


class _Shapes:
    """Records the shapes of batches and computes nothing."""

    def __init__(self) -> None:
        self.seen = set[tuple[int, ...]]()
        self.tokens = 0

    def run(self, batches) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            self.seen.add(batch["input_ids"].shape)
            self.tokens += batch["input_ids"].size
            yield {"embeddings": np.zeros((*batch["cls_positions"].shape, 1), np.float32)}


def make_objective(hidden_size: int = 64, max_seq_length: int = 512) -> EmbeddingsObjective:
    model = BertConfig(128, 2, hidden_size, 4, max_position_embeddings=max_seq_length)
    config = Config(model=model, max_seq_length=max_seq_length, batch_size=1)
    return EmbeddingsObjective(config, 1, EmbeddingOptions(max_seq_length=max_seq_length))


def test_short_texts_fill_the_sequences_of_longer_ones() -> None:
    shapes, lengths = _Shapes(), np.linspace(8, 128, 32).astype(int)
    texts = ["ba " * (length - 2) for length in lengths]
    embed_texts(texts, shapes.run, toy_tasks.TOKENIZER, make_objective(hidden_size=384))
    assert {length for _, length in shapes.seen} == {128}
    assert shapes.tokens == 17 * 128 < 1.01 * lengths.sum()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({16: 200, 512: 1}, {64, 512}),
        ({64: 20, 128: 20}, {64, 128}),
        ({128: 8, 512: 8}, {128, 512}),
    ],
)
def test_short_texts_do_not_pay_for_the_attention_of_longer_sequences(counts, expected) -> None:
    """The longer sequences are full, or too few for the short texts."""
    shapes = _Shapes()
    texts = ["ba " * (length - 2) for length, count in counts.items() for _ in range(count)]
    embed_texts(texts, shapes.run, toy_tasks.TOKENIZER, make_objective())
    assert {length for _, length in shapes.seen} == expected


def test_embed_texts_uses_few_shapes_that_are_as_long_as_the_texts() -> None:
    objective = make_objective(max_seq_length=128)
    random, shapes = np.random.default_rng(0), _Shapes()
    for _ in range(5):
        texts = ["ba " * n for n in random.integers(1, 120, size=500)]
        embed_texts(texts, shapes.run, toy_tasks.TOKENIZER, objective)
    most = {64: 16, 128: 8}  # sequences by length: 1,024 tokens
    assert shapes.seen <= {(size, length) for length in most for size in range(1, most[length] + 1)}
    assert (8, 128) in shapes.seen
    for words, length in ((2, 16), (14, 16), (15, 32), (31, 64), (62, 64), (63, 128)):
        one = _Shapes()
        embed_texts(["ba " * words], one.run, toy_tasks.TOKENIZER, objective)
        assert one.seen == {(1, length)}
    pair = _Shapes()
    embed_texts(["ba do"] * 2, pair.run, toy_tasks.TOKENIZER, objective)
    assert pair.seen == {(1, 16)}
