"""Statistics of a corpus and of the sequences that it gives."""

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from etils import epath

from data_pipelines.corpus.shards import Manifest, Shard, ShardInfo, read_shard
from data_pipelines.pretraining.corpus_sequences import Corpus, CorpusSequences
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.vocabulary.tokenization import Tokenizer

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_MAX_SHARDS = 4
_NUM_TEXTS = 3
_TOKENS_PER_TEXT = 60
_PASSES = 3  # over the sampled shards


@dataclasses.dataclass(frozen=True)
class PackingStatistics:
    """Statistics of passes over the sampled shards, in sequences of `max_seq_length` tokens."""

    max_seq_length: int
    sequences_per_epoch: int  # of a pass over the whole corpus
    nonpad_fraction: float
    pairs_per_sequence: float
    random_fraction: float  # fraction of the pairs with a random second sentence
    seen_fractions: tuple[float, ...]  # fraction of the text read in 1, 2, ... passes


@dataclasses.dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of a corpus; lengths, scripts and packing are those of sampled training shards."""

    directory: epath.Path
    manifest: Manifest
    sampled_shards: tuple[str, ...]  # names of shards
    document_tokens: tuple[int, ...]  # at QUANTILES
    sentence_tokens: tuple[int, ...]  # at QUANTILES
    scripts: tuple[tuple[str, float], ...]  # fraction of the tokens with letters, largest first
    packing: tuple[PackingStatistics, ...]
    sample_texts: tuple[str, ...]  # beginnings of documents


def compute_corpus_statistics(
    directory: epath.PathLike, max_seq_lengths: Sequence[int] = (128, 512)
) -> CorpusStatistics:
    """Compute the statistics of a corpus written by `bertjax prepare`.

    Args:
      directory: the corpus.
      max_seq_lengths: sequence lengths for which packing statistics are computed.

    Raises:
      InputError: the corpus is unfinished or damaged.
    """
    corpus = Corpus(directory, "train")
    shard_infos = corpus.shard_infos
    num_sampled = min(_MAX_SHARDS, len(shard_infos))
    sampled = np.unique(np.linspace(0, len(shard_infos) - 1, num_sampled).astype(int)).tolist()
    shards = [read_shard(corpus.directory, shard_infos[i]) for i in sampled]
    counts = np.zeros(len(corpus.tokenizer.tokens), np.int64)
    for shard in shards:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return CorpusStatistics(
        corpus.directory,
        corpus.manifest,
        tuple(shard_infos[i].name for i in sampled),
        _quantiles([np.diff(shard.sentences[shard.documents]) for shard in shards]),
        _quantiles([np.diff(shard.sentences) for shard in shards]),
        _scripts(corpus.tokenizer, counts),
        tuple(
            _packing_statistics(corpus, sampled, shards, max_seq_length)
            for max_seq_length in dict.fromkeys(
                max(length, corpus.max_pair_length) for length in max_seq_lengths
            )
        ),
        tuple(_sample_texts(corpus.tokenizer, shards[0])),
    )


def shard_imbalance(shard_infos: Sequence[ShardInfo]) -> float:
    """Return the relative excess of the largest shard over the smallest: 0.02 is 2% more."""
    sizes = [info.tokens for info in shard_infos]
    return max(sizes) / min(sizes) - 1


def _quantiles(parts: list[np.ndarray]) -> tuple[int, ...]:
    quantiles = np.quantile(np.concatenate(parts), QUANTILES, method="inverted_cdf")
    return tuple(int(value) for value in quantiles)


def _scripts(tokenizer: Tokenizer, counts: np.ndarray) -> tuple[tuple[str, float], ...]:
    """Return scripts, by the Unicode name of the first letter of each token."""
    scripts: Counter[str] = Counter()
    for token, count in zip(tokenizer.tokens, counts.tolist(), strict=True):
        letter = next((c for c in token if c.isalpha()), None)
        if count and letter:
            name = unicodedata.name(letter, "unknown").split()[0].title()
            scripts["Han" if name == "Cjk" else name] += count
    total = scripts.total()
    return tuple((script, count / total) for script, count in scripts.most_common())


def _packing_statistics(
    corpus: Corpus, sampled: Sequence[int], shards: Sequence[Shard], max_seq_length: int
) -> PackingStatistics:
    options = PretrainingOptions(max_seq_length, batch_size=1)
    # One stream per shard, so that only the sampled shards are opened.
    source = CorpusSequences(
        corpus,
        options,
        len(corpus.shard_infos),
        sampled,
        1,
        lambda make, size: make(),
        group_per_shard=True,
    )
    seen = [np.zeros(len(shard.tokens), bool) for shard in shards]
    seen_fractions = []
    sequences = tokens = pairs = random = 0
    for number in range(_PASSES):
        for mask, stream in zip(seen, sampled, strict=True):
            count = source.sequences_per_pass(stream)
            sequences += count
            for packed in source.packed_pairs(stream, number * count, count):
                mask[packed.pairs.token_indices] = True
                tokens += int(packed.pairs.lengths.sum())
                pairs += len(packed.pairs)
                random += int(packed.pairs.is_random.sum())
        seen_fractions.append(float(np.mean(np.concatenate(seen))))
    return PackingStatistics(
        max_seq_length,
        source.sequences_per_epoch,
        tokens / sequences / max_seq_length,
        pairs / sequences,
        random / pairs,
        tuple(seen_fractions),
    )


def _sample_texts(tokenizer: Tokenizer, shard: Shard) -> list[str]:
    count = len(shard.documents) - 1
    texts = []
    for document in np.unique(np.linspace(0, count - 1, min(_NUM_TEXTS, count)).astype(int)):
        begin, end = shard.sentences[shard.documents[document : document + 2]]
        token_ids = shard.tokens[begin : min(end, begin + _TOKENS_PER_TEXT)].tolist()
        texts.append(tokenizer.decode(token_ids) + (" …" if end > begin + _TOKENS_PER_TEXT else ""))
    return texts
