"""A corpus of sentences, each beside a copy in which a fifth of the words are others."""

import itertools
import pathlib
from collections.abc import Iterator

import numpy as np

from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.ablations.commands import run_bertjax

_MIN_WORDS, _MAX_TOKENS = 8, 60  # of a sentence, so that it and its copy fit in 128 tokens
_CHANGED = 0.2  # fraction of the words


def prepare_pairs(
    corpus: pathlib.Path, vocab: pathlib.Path, output: pathlib.Path, num_pairs: int
) -> None:
    """Prepare the corpus of changed copies, unless it exists.

    As pairs of NSP they are a sentence with its own copy or with that of another. Masked words of
    one can be read in the other, so that heads learn to compare tokens.

    Args:
      corpus: directory of the corpus from whose training split sentences are drawn.
      vocab: its vocabulary.
      output: directory of the new corpus; a text file is written beside it.
      num_pairs: pairs to draw.
    """
    if output.exists():
        return
    text = output.with_suffix(".txt")
    pairs = itertools.islice(draw_pairs(training_sentences(corpus)), num_pairs)
    atomic_write_text(text, "".join(f"{sentence}\n{copy}\n\n" for sentence, copy in pairs))
    target = ["--vocab", str(vocab), "--output", str(output)]
    run_bertjax("prepare", "--input", str(text), *target)


def training_sentences(corpus: pathlib.Path, seed: int = 0) -> Iterator[str]:
    """Yield sentences of a corpus's training split, shard by shard, each shard in random order."""
    tokenizer, rng = load_tokenizer(corpus), np.random.default_rng(seed)
    for info in read_manifest(corpus).train_shards:
        shard = read_shard(corpus, info)
        lengths = np.diff(shard.sentences)
        for index in rng.permutation(np.flatnonzero(lengths <= _MAX_TOKENS)):
            start, stop = shard.sentences[index : index + 2]
            sentence = tokenizer.decode(shard.tokens[start:stop].tolist())
            if len(sentence.split()) >= _MIN_WORDS:
                yield sentence


def draw_pairs(sentences: Iterator[str], seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield each sentence with its copy; the other words are those of the sentence before it."""
    rng, previous = np.random.default_rng(seed), next(sentences).split()
    for sentence in sentences:
        words = sentence.split()
        changed = rng.choice(len(words), max(1, round(_CHANGED * len(words))), replace=False)
        copy = list(words)
        for position, word in zip(changed, rng.choice(previous, len(changed)), strict=True):
            copy[position] = word
        yield sentence, " ".join(copy)
        previous = words
