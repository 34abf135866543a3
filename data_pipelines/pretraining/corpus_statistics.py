"""What a corpus holds, and what becomes of it in rows: to be looked at before it is trained on."""

import dataclasses
import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from etils import epath

from data_pipelines.corpus.records import Manifest, Shard, ShardInfo, read_shard
from data_pipelines.pretraining.corpus_sequences import Corpus, CorpusRows
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.vocabulary.tokenization import Tokenizer

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_SHARDS = 4  # that are looked into, of as many as there are
_TEXTS = 3  # beginnings of documents that are shown
_SHOWN = 60  # pieces of each


@dataclasses.dataclass(frozen=True)
class RowsSurvey:
    """What passes over the sampled shards give in rows of `seq_len` pieces."""

    seq_len: int
    rows: int  # of a pass over the whole corpus
    filled: float  # share of pieces that are no padding
    pairs: float  # a row
    random: float  # share of pairs whose second sentence is random
    seen: tuple[float, ...]  # share of the text that was in a row after 1, 2, ... passes


@dataclasses.dataclass(frozen=True)
class Survey:
    """A corpus; lengths, scripts and rows are of a sample of its training shards."""

    directory: epath.Path
    manifest: Manifest
    sampled: tuple[str, ...]  # names of shards
    document_pieces: tuple[int, ...]  # at QUANTILES
    sentence_pieces: tuple[int, ...]
    scripts: tuple[tuple[str, float], ...]  # share of the pieces with letters, most frequent first
    rows: tuple[RowsSurvey, ...]
    texts: tuple[str, ...]  # how some documents begin


def survey(
    directory: epath.PathLike, seq_lens: Sequence[int] = (128, 512), passes: int = 3
) -> Survey:
    """Looks into a corpus that `bertjax prepare` wrote.

    Raises:
      InputError: it is unfinished or damaged.
    """
    corpus = Corpus(directory, "train")
    infos = corpus.infos
    which = np.unique(np.linspace(0, len(infos) - 1, min(_SHARDS, len(infos))).astype(int)).tolist()
    shards = [read_shard(corpus.directory, infos[i]) for i in which]
    counts = np.zeros(len(corpus.tokenizer.pieces), np.int64)
    for shard in shards:
        counts += np.bincount(shard.tokens, minlength=len(counts))
    return Survey(
        corpus.directory,
        corpus.manifest,
        tuple(infos[i].name for i in which),
        _quantiles([np.diff(shard.sentences[shard.documents]) for shard in shards]),
        _quantiles([np.diff(shard.sentences) for shard in shards]),
        _scripts(corpus.tokenizer, counts),
        tuple(_in_rows(corpus, which, shards, seq_len, passes) for seq_len in seq_lens),
        tuple(_beginnings(corpus.tokenizer, shards[0])),
    )


def unevenness(infos: Sequence[ShardInfo]) -> float:
    """How much more the largest shard holds than the smallest: 0.02 is 2% more."""
    sizes = [info.tokens for info in infos]
    return max(sizes) / min(sizes) - 1


def _quantiles(parts: list[np.ndarray]) -> tuple[int, ...]:
    found = np.quantile(np.concatenate(parts), QUANTILES, method="inverted_cdf")
    return tuple(int(value) for value in found)


def _scripts(tokenizer: Tokenizer, counts: np.ndarray) -> tuple[tuple[str, float], ...]:
    """By the first letter of each piece, whose Unicode name begins with its script."""
    found: Counter[str] = Counter()
    for piece, count in zip(tokenizer.pieces, counts.tolist(), strict=True):
        letter = next((c for c in piece if c.isalpha()), None)
        if count and letter:
            name = unicodedata.name(letter, "unknown").split()[0].title()
            found["Han" if name == "Cjk" else name] += count
    total = found.total()
    return tuple((script, count / total) for script, count in found.most_common())


def _in_rows(
    corpus: Corpus, which: Sequence[int], shards: Sequence[Shard], seq_len: int, passes: int
) -> RowsSurvey:
    options = PretrainingOptions(seq_len, 1)
    # Each shard is a stream of its own, so that others stay closed.
    source = CorpusRows(corpus, options, len(corpus.infos), which, 1, lambda make, size: make())
    seen = [np.zeros(len(shard.tokens), bool) for shard in shards]
    shares = []
    rows = pieces = pairs = random = 0
    for number in range(passes):
        for mask, stream in zip(seen, which, strict=True):
            count = source.rows_of(stream)
            rows += count
            for part in source.parts(stream, number * count, count):
                mask[part.pairs.sources] = True
                pieces += int(part.pairs.lengths.sum())
                pairs += len(part.pairs)
                random += int(part.pairs.is_random.sum())
        shares.append(float(np.mean(np.concatenate(seen))))
    return RowsSurvey(
        seq_len,
        source.rows_per_epoch,
        pieces / rows / seq_len,
        pairs / rows,
        random / pairs,
        tuple(shares),
    )


def _beginnings(tokenizer: Tokenizer, shard: Shard) -> list[str]:
    count = len(shard.documents) - 1
    texts = []
    for document in np.unique(np.linspace(0, count - 1, min(_TEXTS, count)).astype(int)):
        begin, end = shard.sentences[shard.documents[document : document + 2]]
        some = shard.tokens[begin : min(end, begin + _SHOWN)].tolist()
        texts.append(tokenizer.decode(some) + (" …" if end > begin + _SHOWN else ""))
    return texts
