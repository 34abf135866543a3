"""What a corpus holds, and what becomes of it in rows: to be looked at before it is trained on."""

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
_MAX_SHARDS = 4  # that are looked into, of as many as there are
_NUM_TEXTS = 3  # beginnings of documents that are shown
_TOKENS_PER_TEXT = 60  # pieces of each


@dataclasses.dataclass(frozen=True)
class PackingStatistics:
    """What passes over the sampled shards give in rows of `max_seq_length` pieces."""

    max_seq_length: int
    rows: int  # of a pass over the whole corpus
    nonpad_fraction: float  # share of pieces that are no padding
    pairs: float  # a row
    random_fraction: float  # share of pairs whose second sentence is random
    seen: tuple[float, ...]  # share of the text that was in a row after 1, 2, ... passes


@dataclasses.dataclass(frozen=True)
class CorpusStatistics:
    """A corpus; lengths, scripts and rows are of a sample of its training shards."""

    directory: epath.Path
    manifest: Manifest
    sampled_shards: tuple[str, ...]  # names of shards
    document_tokens: tuple[int, ...]  # at QUANTILES
    sentence_tokens: tuple[int, ...]
    scripts: tuple[tuple[str, float], ...]  # share of the pieces with letters, most frequent first
    rows: tuple[PackingStatistics, ...]
    texts: tuple[str, ...]  # how some documents begin


def compute_corpus_statistics(
    directory: epath.PathLike, seq_lens: Sequence[int] = (128, 512), passes: int = 3
) -> CorpusStatistics:
    """Looks into a corpus that `bertjax prepare` wrote.

    Raises:
      InputError: it is unfinished or damaged.
    """
    corpus = Corpus(directory, "train")
    shard_infos = corpus.shard_infos
    which = np.unique(
        np.linspace(0, len(shard_infos) - 1, min(_MAX_SHARDS, len(shard_infos))).astype(int)
    ).tolist()
    shards = [read_shard(corpus.directory, shard_infos[i]) for i in which]
    counts = np.zeros(len(corpus.tokenizer.tokens), np.int64)
    for shard in shards:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return CorpusStatistics(
        corpus.directory,
        corpus.manifest,
        tuple(shard_infos[i].name for i in which),
        _quantiles([np.diff(shard.sentences[shard.documents]) for shard in shards]),
        _quantiles([np.diff(shard.sentences) for shard in shards]),
        _scripts(corpus.tokenizer, counts),
        tuple(
            _packing_statistics(corpus, which, shards, max_seq_length, passes)
            for max_seq_length in seq_lens
        ),
        tuple(_sample_texts(corpus.tokenizer, shards[0])),
    )


def shard_imbalance(shard_infos: Sequence[ShardInfo]) -> float:
    """How much more the largest shard holds than the smallest: 0.02 is 2% more."""
    sizes = [info.tokens for info in shard_infos]
    return max(sizes) / min(sizes) - 1


def _quantiles(parts: list[np.ndarray]) -> tuple[int, ...]:
    found = np.quantile(np.concatenate(parts), QUANTILES, method="inverted_cdf")
    return tuple(int(value) for value in found)


def _scripts(tokenizer: Tokenizer, counts: np.ndarray) -> tuple[tuple[str, float], ...]:
    """By the first letter of each piece, whose Unicode name begins with its script."""
    found: Counter[str] = Counter()
    for token, count in zip(tokenizer.tokens, counts.tolist(), strict=True):
        letter = next((c for c in token if c.isalpha()), None)
        if count and letter:
            name = unicodedata.name(letter, "unknown").split()[0].title()
            found["Han" if name == "Cjk" else name] += count
    total = found.total()
    return tuple((script, count / total) for script, count in found.most_common())


def _packing_statistics(
    corpus: Corpus, which: Sequence[int], shards: Sequence[Shard], max_seq_length: int, passes: int
) -> PackingStatistics:
    options = PretrainingOptions(max_seq_length, 1)
    # Each shard is a stream of its own, so that others stay closed.
    source = CorpusSequences(
        corpus, options, len(corpus.shard_infos), which, 1, lambda make, size: make()
    )
    seen = [np.zeros(len(shard.tokens), bool) for shard in shards]
    shares = []
    rows = tokens = pairs = random_fraction = 0
    for number in range(passes):
        for mask, stream in zip(seen, which, strict=True):
            count = source.sequences_per_pass(stream)
            rows += count
            for part in source.parts(stream, number * count, count):
                mask[part.pairs.token_indices] = True
                tokens += int(part.pairs.lengths.sum())
                pairs += len(part.pairs)
                random_fraction += int(part.pairs.is_random.sum())
        shares.append(float(np.mean(np.concatenate(seen))))
    return PackingStatistics(
        max_seq_length,
        source.sequences_per_epoch,
        tokens / rows / max_seq_length,
        pairs / rows,
        random_fraction / pairs,
        tuple(shares),
    )


def _sample_texts(tokenizer: Tokenizer, shard: Shard) -> list[str]:
    count = len(shard.documents) - 1
    texts = []
    for document in np.unique(np.linspace(0, count - 1, min(_NUM_TEXTS, count)).astype(int)):
        begin, end = shard.sentences[shard.documents[document : document + 2]]
        some = shard.tokens[begin : min(end, begin + _TOKENS_PER_TEXT)].tolist()
        texts.append(tokenizer.decode(some) + (" …" if end > begin + _TOKENS_PER_TEXT else ""))
    return texts
