"""Small corpora, and helpers for the comparison of batches."""

import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from corpus_shards import append_document

from data_pipelines.corpus.shards import Manifest, ShardWriter, token_dtype, write_manifest
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import BATCH_ARRAYS, PretrainingOptions
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

Batch = dict[str, np.ndarray]

TRAIN_DOCUMENTS, EVAL_DOCUMENTS = 240, 90
FIRST = 6  # id of the first token of text
TOKENIZER = WordPieceTokenizer(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    + [f"{mark}{i}" for i in range(TRAIN_DOCUMENTS + EVAL_DOCUMENTS) for mark in ("w", "##c")],
    cased=False,
)


def write_corpus(
    directory: pathlib.Path,
    shards: int = 8,
    eval_shards: int = 2,
    train: range = range(TRAIN_DOCUMENTS),
    sizes: Sequence[int] | None = None,
    repeats: int = 1,
) -> pathlib.Path:
    """Write a corpus whose document d has the tokens `w{d}` and `##c{d}` only.

    Args:
      directory: the corpus.
      shards: number of train shards.
      eval_shards: number of eval shards.
      train: train documents.
      sizes: lengths of the sentences of each document; drawn by default.
      repeats: number of times that document 0 repeats its sentences.
    """
    directory.mkdir(exist_ok=True)
    TOKENIZER.save(directory)
    rng = np.random.Generator(np.random.Philox(key=0))
    documents = []
    for document in range(TRAIN_DOCUMENTS + EVAL_DOCUMENTS):
        drawn = 1 + (rng.random(1 + int(rng.random() * 15)) * 20).astype(int)
        documents.append(
            [(FIRST + 2 * document + (rng.random(size) < 0.3)).tolist() for size in sizes or drawn]
        )
    documents[0] *= repeats
    shard_infos: dict[str, list[Any]] = {"train_shards": [], "eval_shards": []}
    parts = [("train", [documents[d] for d in train[i::shards]]) for i in range(shards)]
    parts += [("eval", documents[TRAIN_DOCUMENTS + i :: eval_shards]) for i in range(eval_shards)]
    for i, (split, part) in enumerate(parts):
        with ShardWriter(
            directory, f"{split}-{i}.tokens", token_dtype(len(TOKENIZER.tokens))
        ) as writer:
            for document in part:
                append_document(writer, document)
            shard_infos[f"{split}_shards"].append(writer.close())
    tokenizer = TOKENIZER.fingerprint(), len(TOKENIZER.tokens)
    write_manifest(directory, Manifest(*tokenizer, {}, **shard_infos, totals={}))
    return directory


def options(batch_size: int = 16, **fields: Any) -> PretrainingOptions:
    return PretrainingOptions(
        **({"max_seq_length": 64, "batch_size": batch_size, "workers": 2} | fields)
    )


def assert_equal(batch: Batch, other: Batch) -> None:
    assert list(batch) == list(other) == list(BATCH_ARRAYS)
    for name, array in batch.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def equal(batch: Batch, other: Batch) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in batch.items())


def join(blocks: list[Batch]) -> Batch:
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def restored(batch: Batch) -> np.ndarray:
    """Return `input_ids` before masking."""
    input_ids = batch["input_ids"].copy()
    sequence, slot = np.nonzero(batch["masked_lm_weights"])
    input_ids[sequence, batch["masked_lm_positions"][sequence, slot]] = batch["masked_lm_ids"][
        sequence, slot
    ]
    return input_ids


def documents_of(input_ids: np.ndarray) -> set[int]:
    return set(((input_ids[input_ids >= FIRST] - FIRST) // 2).tolist())


def check_processes(
    directory: pathlib.Path | str,
    chosen: PretrainingOptions,
    num_processes: int,
    split: str = "train",
    steps: Iterable[int] = (),
) -> None:
    """Check that processes share the batches of one process, by default of all steps."""
    alone = PretrainingData(directory, chosen, split)
    shared = [
        PretrainingData(directory, chosen, split, num_processes, process_id)
        for process_id in range(num_processes)
    ]
    for step in steps or range(alone.steps or 0):
        assert_equal(join([data.batch(step) for data in shared]), alone.batch(step))
