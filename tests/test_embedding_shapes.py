"""Shapes of the batches in which texts are embedded: few, and as long as the texts."""

from collections.abc import Iterator

import numpy as np
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

    def run(self, batches) -> Iterator[dict[str, np.ndarray]]:
        for batch in batches:
            self.seen.add(batch["input_ids"].shape)
            yield {"embeddings": np.zeros((*batch["cls_positions"].shape, 1), np.float32)}


def test_embed_texts_uses_few_shapes_that_are_as_long_as_the_texts() -> None:
    config = Config(
        model=BertConfig(128, 2, 64, 4, max_position_embeddings=128),
        max_seq_length=128,
        batch_size=1,
    )
    objective = EmbeddingsObjective(config, 1, EmbeddingOptions(max_seq_length=128))
    random, shapes = np.random.default_rng(0), _Shapes()
    for _ in range(5):
        texts = ["ba " * n for n in random.integers(1, 120, size=500)]
        embed_texts(texts, shapes.run, toy_tasks.TOKENIZER, objective)
    most = {64: 16, 128: 8}  # sequences by length: 1,024 tokens
    assert shapes.seen <= {(size, length) for length in most for size in range(1, most[length] + 1)}
    assert {(16, 64), (8, 128)} <= shapes.seen
    for words, length in ((2, 16), (14, 16), (15, 32), (31, 64), (62, 64), (63, 128)):
        one = _Shapes()
        embed_texts(["ba " * words], one.run, toy_tasks.TOKENIZER, objective)
        assert one.seen == {(1, length)}
    pair = _Shapes()
    embed_texts(["ba do"] * 2, pair.run, toy_tasks.TOKENIZER, objective)
    assert pair.seen == {(1, 16)}
