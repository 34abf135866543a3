"""Tests of pre-training batches, a function of the corpus, the options and the step alone."""

import dataclasses
import hashlib
import itertools
import pathlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import (
    Manifest,
    ShardWriter,
    read_manifest,
    read_shard,
    token_dtype,
    write_manifest,
)
from data_pipelines.errors import InputError
from data_pipelines.pretraining import corpus_sequences, sequences
from data_pipelines.pretraining.corpus_sequences import CorpusSequences
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import BATCH_ARRAYS, PretrainingOptions
from data_pipelines.pretraining.sequences import draw_sequences
from data_pipelines.vocabulary.tokenization import load_tokenizer
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
                writer.append(document)
            shard_infos[f"{split}_shards"].append(writer.close())
    tokenizer = TOKENIZER.fingerprint(), len(TOKENIZER.tokens)
    write_manifest(directory, Manifest(*tokenizer, {}, **shard_infos, totals={}))
    return directory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sections per document and several chunks per shard, as in a large corpus."""
    monkeypatch.setattr(sequences, "chunk_tokens", lambda max_seq_length: 1000)
    monkeypatch.setattr(sequences, "max_section_tokens", lambda max_seq_length: 150)


@pytest.fixture(autouse=True)
def small_chunks(request: pytest.FixtureRequest) -> None:
    if {"corpus", "two"} & set(request.fixturenames):
        request.getfixturevalue("small")


def options(batch_size: int = 16, **fields: Any) -> PretrainingOptions:
    return PretrainingOptions(
        **({"max_seq_length": 64, "batch_size": batch_size, "workers": 2} | fields)
    )


def assert_equal(one: Batch, other: Batch) -> None:
    assert list(one) == list(other) == list(BATCH_ARRAYS)
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def equal(one: Batch, other: Batch) -> bool:
    return all(np.array_equal(array, other[name]) for name, array in one.items())


def join(blocks: list[Batch]) -> Batch:
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def restored(batch: Batch) -> np.ndarray:
    """Return `input_ids` before masking."""
    input_ids = batch["input_ids"].copy()
    row, slot = np.nonzero(batch["masked_lm_weights"])
    input_ids[row, batch["masked_lm_positions"][row, slot]] = batch["masked_lm_ids"][row, slot]
    return input_ids


def documents_of(input_ids: np.ndarray) -> set[int]:
    return set(((input_ids[input_ids >= FIRST] - FIRST) // 2).tolist())


# ---------------------------------------------------------------- same seed, same bytes

STEPS = (*range(51), 1_000_000)


@pytest.mark.parametrize("num_processes", [2, 4, 8, 16])
def test_batch_does_not_depend_on_the_number_of_processes(corpus, num_processes):
    alone = PretrainingData(corpus, options())
    shared = [
        PretrainingData(corpus, options(), num_processes=num_processes, process_id=h)
        for h in range(num_processes)
    ]
    for step in STEPS:
        assert_equal(join([data.batch(step) for data in shared]), alone.batch(step))


def test_batch_does_not_depend_on_earlier_calls(corpus):
    read_on = PretrainingData(corpus, options())
    batches = [read_on.batch(step) for step in range(51)]
    for step in (50, 25, 0):
        assert_equal(PretrainingData(corpus, options()).batch(step), batches[step])


def test_batch_can_be_called_from_threads(corpus):
    data = PretrainingData(corpus, options())
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(data.batch, range(51)))
    for step in range(51):
        assert_equal(PretrainingData(corpus, options()).batch(step), batches[step])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 8])
def test_dataset_yields_batches_in_order(corpus, workers):
    data = PretrainingData(corpus, options(workers=workers))
    batches = list(data.dataset(25, 51).as_numpy_iterator())
    assert len(batches) == 26
    for step, batch in enumerate(batches, 25):
        assert_equal(batch, data.batch(step))


def test_dataset_has_static_shapes_and_no_end(corpus):
    data = PretrainingData(corpus, options(), num_processes=2)
    dataset = data.dataset()
    assert {name: tuple(spec.shape) for name, spec in dataset.element_spec.items()} == {
        name: array.shape for name, array in data.batch(0).items()
    }
    first = list(itertools.islice(dataset.as_numpy_iterator(), 2))
    assert_equal(first[1], data.batch(1))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "ed64299ad687af92"),
        ({"masking": "whole_word"}, "3e58d24503e6b4fe"),
        ({"masking": "span", "objective": "mlm"}, "739ec138a20cec66"),
    ],
)
def test_batch_is_the_same_on_any_machine(corpus, fields, expected):
    """A change of these digests changes the data of every run."""
    batch = PretrainingData(corpus, options(**fields)).batch(3)
    content = b"".join(array.tobytes() for array in batch.values())
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == expected


# ---------------------------------------------------------------- several corpora

FIRST_DOCUMENTS, SECOND_DOCUMENTS = range(100), range(100, TRAIN_DOCUMENTS)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two corpora with different documents; the second has few shards."""
    directory = tmp_path_factory.mktemp("corpora")
    write_corpus(directory / "one", train=FIRST_DOCUMENTS)
    write_corpus(directory / "other", shards=3, train=SECOND_DOCUMENTS)
    return f"{directory / 'one'}+{directory / 'other'}"


@pytest.mark.parametrize("num_processes", [2, 4, 8, 16])
def test_mixture_does_not_depend_on_the_number_of_processes(two, num_processes):
    chosen = options(sampling_alpha=0.5)
    alone = PretrainingData(two, chosen)
    shared = [
        PretrainingData(two, chosen, num_processes=num_processes, process_id=h)
        for h in range(num_processes)
    ]
    for step in (0, 1, 40, 1000, 1_000_000):
        assert_equal(join([data.batch(step) for data in shared]), alone.batch(step))


def test_mixture_has_the_proportions_of_its_weights(two):
    data = PretrainingData(two, options(mixture_weights="1+3"))
    assert data.mixture_proportions == {"one": 0.25, "other": 0.75}
    is_first = []
    for step in range(256):  # a whole block of each of 16 streams
        for input_ids in restored(data.batch(step)):
            is_first.append(documents_of(input_ids) <= set(FIRST_DOCUMENTS))
            assert is_first[-1] or documents_of(input_ids) <= set(SECOND_DOCUMENTS)  # no mixed pair
    assert np.mean(is_first) == pytest.approx(0.25, abs=0.02)


def test_mixture_covers_all_corpora(two):
    data = PretrainingData(two, options())
    seen = set()
    for step in range(-(-data.sequences_per_epoch // 16) + 10):
        seen |= documents_of(restored(data.batch(step)))
    assert len(seen) >= 0.98 * TRAIN_DOCUMENTS


def test_mixture_rejects_incompatible_corpora(two, tmp_path):
    one = two.split("+")[0]
    with pytest.raises(
        InputError, match=r"one: another corpus has the name one\. Rename one of the"
    ):
        PretrainingData(f"{one}+{one}", options())
    with pytest.raises(InputError, match=r"^mixture_weights=1\+2\+3: 3 weights for 2 corpora"):
        PretrainingData(two, options(mixture_weights="1+2+3"))
    other = write_corpus(tmp_path / "third")
    tokenizer = WordPieceTokenizer([*TOKENIZER.tokens, "more"], cased=False)
    tokenizer.save(other)
    manifest = dataclasses.replace(
        read_manifest(other), tokenizer_fingerprint=tokenizer.fingerprint()
    )
    write_manifest(other, manifest)
    with pytest.raises(
        InputError, match=r"third: prepared with another tokenizer than .*one\. Prepare both"
    ):
        PretrainingData(f"{one}+{other}", options())


# ---------------------------------------------------------------- epochs


def test_epochs_have_equal_length_and_differ(corpus):
    """With a batch of 1, the step is the index of the sequence."""
    data = PretrainingData(corpus, options(batch_size=1))
    epoch = data.sequences_per_epoch
    same = [equal(data.batch(row), data.batch(row + epoch)) for row in range(0, epoch, 7)]
    assert not any(same)


def test_sequences_of_an_epoch_have_different_masks(corpus):
    """Full sequences of one pair would have equal positions if they shared random numbers."""
    data = PretrainingData(corpus, options(batch_size=1, packing=False))
    batches = [data.batch(row) for row in range(data.sequences_per_epoch)]
    full = [batch["masked_lm_positions"] for batch in batches if batch["example_ids"].all()]
    assert len(full) > 100
    assert len({positions.tobytes() for positions in full}) == len(full)


@pytest.mark.parametrize("dupe_factor", [1, 3])
def test_dupe_factor_repeats_epochs(corpus, dupe_factor):
    data = PretrainingData(corpus, options(batch_size=1, dupe_factor=dupe_factor))
    epoch = data.sequences_per_epoch
    for row in range(0, epoch, 7):
        assert_equal(data.batch(row), data.batch(row + dupe_factor * epoch))
        for between in range(1, dupe_factor):
            assert not equal(data.batch(row), data.batch(row + between * epoch))


def test_seed_changes_the_batches(corpus):
    one, other = (PretrainingData(corpus, options(seed=seed)) for seed in (1, 2))
    assert one.sequences_per_epoch == other.sequences_per_epoch
    assert not equal(one.batch(0), other.batch(0))


@pytest.mark.parametrize("packing", [True, False])
def test_epochs_cover_the_corpus(corpus, packing):
    data = PretrainingData(corpus, options(batch_size=1, packing=packing))
    epoch = range(data.sequences_per_epoch)
    seen = set().union(*(documents_of(restored(data.batch(row))) for row in epoch))
    assert len(seen) > 0.97 * TRAIN_DOCUMENTS
    for row in epoch:
        seen |= documents_of(restored(data.batch(row + len(epoch))))
    assert seen == set(range(TRAIN_DOCUMENTS))


def test_batch_without_packing_has_one_pair_per_sequence(corpus):
    data = PretrainingData(corpus, options(packing=False))
    batch = data.batch(0)
    assert batch["example_ids"].max() == 1 and batch["next_sentence_weights"].shape == (16, 1)
    assert data.sequences_per_epoch > PretrainingData(corpus, options()).sequences_per_epoch


@pytest.mark.parametrize(("shards", "repeats"), [(3, 1), (8, 1), (24, 1), (8, 20)])
def test_streams_pass_over_all_shards_equally_often(tmp_path, small, shards, repeats):
    """Holds too if a document is longer than a shard should be and shards are unequal."""
    corpus = write_corpus(tmp_path, shards, sizes=[10] * 6, repeats=repeats)
    data = PretrainingData(corpus, options())
    passes = 12
    counts = np.zeros(shards)
    for step in range(passes * data.sequences_per_epoch // 16):
        for row in restored(data.batch(step)):
            (shard,) = {document % shards for document in documents_of(row)}
            counts[shard] += 1
    counts /= [info.tokens for info in read_manifest(corpus).train_shards]
    # Counts are whole numbers: 31 instead of 30 sequences of a shard.
    assert counts.max() / counts.min() < (1.02 if repeats == 1 else 1.05)


@pytest.mark.parametrize("shards", [1, 3])
def test_streams_that_share_shards_read_each_sequence_once(tmp_path, small, shards):
    """The random numbers of its masks identify a sequence."""
    corpus = corpus_sequences.Corpus(write_corpus(tmp_path, shards), "train")

    def read(streams: int, count: int) -> list[bytes]:
        source = CorpusSequences(
            corpus, options(), streams, range(streams), 16, lambda make, size: make()
        )
        return [
            draws.tobytes()
            for stream in range(streams)
            for packed in source.packed_pairs(stream, 0, count)
            for draws in packed.draws
        ]

    count = PretrainingData(tmp_path, options()).sequences_per_epoch
    identities = read(5, count)
    assert sorted(identities) == sorted(read(1, 5 * count))
    assert len(set(identities)) == len(identities)


def test_batch_draws_from_all_parts_of_a_single_shard(tmp_path, small):
    """A chunk has some ten documents, so one or two chunks would give few."""
    data = PretrainingData(write_corpus(tmp_path, shards=1), options())
    counts = [len(documents_of(restored(data.batch(step)))) for step in range(20)]
    assert np.mean(counts) > 30


def test_batch_makes_the_chunks_of_all_streams_only_in_the_first_step(tmp_path, small, monkeypatch):
    data = PretrainingData(write_corpus(tmp_path, shards=4), options(batch_size=4))
    calls = []
    monkeypatch.setattr(
        corpus_sequences, "draw_sequences", lambda *a: calls.append(a) or draw_sequences(*a)
    )
    counts = []
    for step in range(3 * data.sequences_per_epoch // 4):
        before = len(calls)
        data.batch(step)
        counts.append(len(calls) - before)
    assert counts[0] >= 4 == data.num_streams
    assert max(counts[1:]) <= 2


# ---------------------------------------------------------------- content of a batch


@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_next_sentence_labels_are_1_if_b_is_of_another_document(corpus, masking):
    data = PretrainingData(corpus, options(masking=masking))
    labels = []
    for step in range(20):
        batch = data.batch(step)
        input_ids = restored(batch)
        for row, slot in zip(*np.nonzero(batch["next_sentence_weights"]), strict=True):
            here = batch["example_ids"][row] == slot + 1
            a, b = (
                documents_of(input_ids[row][here & (batch["token_type_ids"][row] == type_id)])
                for type_id in (0, 1)
            )
            assert len(a) == len(b) == 1
            assert batch["next_sentence_labels"][row, slot] == (a != b)
            labels.append(a != b)
    assert 0.5 < np.mean(labels) < 0.65


def test_single_segments_have_no_b_and_no_label(corpus):
    batch = PretrainingData(corpus, options(objective="mlm")).batch(0)
    assert not batch["token_type_ids"].any() and not batch["next_sentence_weights"].any()
    assert not batch["next_sentence_labels"].any()
    pairs = batch["example_ids"].max(axis=1)
    assert ((batch["input_ids"] == TOKENIZER.sep_id).sum(axis=1) == pairs).all()
    assert (batch["masked_lm_weights"].sum(axis=1) > 0).all()


@pytest.mark.parametrize(
    "fields", [{"max_seq_length": 8}, {"max_predictions_per_seq": 1}, {"mlm_probability": 1.0}]
)
def test_batch_with_extreme_options(corpus, fields):
    data = PretrainingData(corpus, options(**fields))
    for step in range(3):
        batch = data.batch(step)
        assert (batch["masked_lm_weights"].sum(axis=1) > 0).all()
        assert (batch["example_ids"][:, 0] == 1).all()


# ---------------------------------------------------------------- eval split


def read(data: PretrainingData) -> Batch:
    assert data.steps is not None
    return join([data.batch(step) for step in range(data.steps)])


def test_eval_split_is_finite_and_fixed(corpus):
    """It does not depend on the batch size or the seed; only padding follows it."""
    data = PretrainingData(corpus, options(), "eval")
    batch = read(data)
    assert data.steps == -(-data.sequences_per_epoch // 16)
    assert_equal(read(data), batch)
    for other in (
        PretrainingData(corpus, options(batch_size=10), "eval"),
        PretrainingData(corpus, options(seed=9), "eval"),
        PretrainingData(corpus, options(dupe_factor=2), "eval"),
    ):
        other_batch = read(other)
        filled = data.sequences_per_epoch
        assert_equal(
            *({name: a[:filled] for name, a in arrays.items()} for arrays in (batch, other_batch))
        )
        assert not any(array[filled:].any() for array in other_batch.values())


@pytest.mark.parametrize("num_processes", [2, 8])
def test_eval_split_is_shared_by_processes(corpus, num_processes):
    alone = PretrainingData(corpus, options(), "eval")
    shared = [
        PretrainingData(corpus, options(), "eval", num_processes=num_processes, process_id=h)
        for h in range(num_processes)
    ]
    for step in range(alone.steps):
        assert_equal(join([data.batch(step) for data in shared]), alone.batch(step))


def test_eval_split_has_all_eval_documents_and_no_other(corpus):
    batch = read(PretrainingData(corpus, options(), "eval"))
    eval_documents = range(TRAIN_DOCUMENTS, TRAIN_DOCUMENTS + EVAL_DOCUMENTS)
    assert documents_of(restored(batch)) == set(eval_documents)


def test_eval_split_has_each_token_once(tmp_path, monkeypatch):
    """Sequences with room for whole documents cut nothing, so every token can be counted."""
    monkeypatch.setattr(sequences, "chunk_tokens", lambda max_seq_length: 5000)
    corpus = write_corpus(tmp_path, eval_shards=1)
    data = PretrainingData(corpus, options(max_seq_length=1024, short_seq_prob=0), "eval")
    batch = read(data)
    input_ids = restored(batch)
    counts = np.zeros(TRAIN_DOCUMENTS + EVAL_DOCUMENTS, int)
    for row, slot in zip(*np.nonzero(batch["next_sentence_weights"]), strict=True):
        is_text = batch["example_ids"][row] == slot + 1
        if batch["next_sentence_labels"][row, slot]:
            is_text &= batch["token_type_ids"][row] == 0
        text = input_ids[row][is_text & (input_ids[row] >= FIRST)]
        counts += np.bincount((text - FIRST) // 2, minlength=len(counts))
    expected = np.zeros_like(counts)
    for info in read_manifest(corpus).eval_shards:
        tokens = read_shard(corpus, info).tokens.astype(int)
        expected += np.bincount((tokens - FIRST) // 2, minlength=len(expected))
    assert counts.tolist() == expected.tolist()


def test_eval_split_ends(corpus):
    data = PretrainingData(corpus, options(), "eval")
    assert len(list(data.dataset())) == data.steps
    for step in (-1, data.steps):
        with pytest.raises(IndexError, match=f"step={step}: the eval split has {data.steps} steps"):
            data.batch(step)


def test_corpus_may_lack_an_eval_split(tmp_path):
    PretrainingData(write_corpus(tmp_path, eval_shards=0), options()).batch(0)
    with pytest.raises(InputError, match=r"no eval documents\. Prepare it again"):
        PretrainingData(tmp_path, options(), "eval")


# ---------------------------------------------------------------- invalid input


def test_process_opens_only_its_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_sequences, "SAMPLE_TOKENS", 1)  # of the first shard only
    directory = write_corpus(tmp_path, sizes=[10] * 6)
    expected = PretrainingData(directory, options(), num_processes=4, process_id=3).batch(5)
    for shard in range(1, 6):
        (directory / f"train-{shard}.tokens").unlink()
    assert_equal(
        PretrainingData(directory, options(), num_processes=4, process_id=3).batch(5), expected
    )
    with pytest.raises(InputError, match=r"train-4\.tokens: missing"):
        PretrainingData(directory, options(), num_processes=4, process_id=2)


def test_damaged_shard_is_rejected(tmp_path):
    directory = write_corpus(tmp_path)
    path = directory / "train-7.tokens"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train-7\.tokens: damaged"):
        PretrainingData(directory, options())


def test_another_tokenizer_is_rejected(tmp_path):
    directory = write_corpus(tmp_path)
    WordPieceTokenizer([*TOKENIZER.tokens, "more"], cased=False).save(directory)
    with pytest.raises(InputError, match="prepared with another tokenizer than the one in this"):
        PretrainingData(directory, options())


def test_shard_of_one_document_is_rejected(tmp_path):
    directory = write_corpus(tmp_path, shards=TRAIN_DOCUMENTS)
    with pytest.raises(
        InputError, match=r"train-0\.tokens: documents=1, and a random second sentence"
    ):
        PretrainingData(directory, options())
    PretrainingData(directory, options(objective="mlm")).batch(0)


@pytest.mark.parametrize(
    ("batch_size", "num_processes", "process_id", "message"),
    [
        (15, 2, 0, r"batch_size=15: not divisible by num_processes=2\. Use a multiple of 2"),
        (16, 2, 2, r"process_id=2: not in 0\.\.1 with num_processes=2"),
    ],
)
def test_processes_that_cannot_share_the_batch_are_rejected(
    corpus, batch_size, num_processes, process_id, message
):
    with pytest.raises(InputError, match=message):
        PretrainingData(
            corpus, options(batch_size), num_processes=num_processes, process_id=process_id
        )


def test_unknown_split_is_rejected(corpus):
    with pytest.raises(ValueError, match="split='test': unknown split"):
        PretrainingData(corpus, options(), "test")


def test_directory_that_is_no_corpus_is_rejected(tmp_path):
    with pytest.raises(InputError, match="not a finished corpus"):
        PretrainingData(tmp_path, options())


# ---------------------------------------------------------------- real text


@pytest.fixture(scope="module")
def wiki(data_dir, tmp_path_factory) -> pathlib.Path:
    tokenizer = load_tokenizer(data_dir / "vocab" / "bert-base-uncased-vocab.txt")
    directory = tmp_path_factory.mktemp("wiki") / "corpus"
    prepare([str(data_dir / "text" / "wiki_en.txt.xz")], tokenizer, directory, workers=1)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("max_seq_length", [128, 512])
def test_real_text_fills_sequences(wiki, max_seq_length):
    data = PretrainingData(wiki, PretrainingOptions(max_seq_length, 256))
    batches = [data.batch(step) for step in range(0, data.sequences_per_epoch // 256, 4)]
    assert np.mean([batch["example_ids"] > 0 for batch in batches]) >= 0.98
    labels = sum(batch["next_sentence_labels"].sum() for batch in batches)
    assert 0.5 < labels / sum(batch["next_sentence_weights"].sum() for batch in batches) < 0.6


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["token", "whole_word", "span"])
def test_masks_of_real_text(wiki, masking):
    """A million predictions: replaced within 0.002, exact counts, no special token, whole words."""
    data = PretrainingData(wiki, PretrainingOptions(128, 256, masking=masking))
    is_continuation = data.tokenizer.is_continuation
    inputs: list[np.ndarray] = []
    targets: list[np.ndarray] = []
    broken = joins = 0
    for step in itertools.count():
        batch = data.batch(step)
        row, slot = np.nonzero(batch["masked_lm_weights"])
        at = batch["masked_lm_positions"][row, slot]
        inputs.append(batch["input_ids"][row, at])
        targets.append(batch["masked_lm_ids"][row, slot])
        lengths, counts = np.zeros((2, 256, 9), int)
        np.add.at(lengths, (np.arange(256)[:, None], batch["example_ids"]), 1)
        np.add.at(counts, (row, batch["example_ids"][row, at]), 1)
        expected = np.minimum(20, np.maximum(1, np.rint(0.15 * lengths)))
        real = (lengths > 0) & (np.arange(9) > 0)
        assert (counts == expected)[real].all()
        if masking == "whole_word":
            input_ids = restored(batch)
            chosen = np.zeros(input_ids.shape, bool)
            chosen[row, at] = True
            inside = is_continuation[input_ids[:, 1:]] & (
                input_ids[:, :-1] != data.tokenizer.sep_id
            )
            inside &= input_ids[:, :-1] != data.tokenizer.cls_id
            broken += np.count_nonzero((chosen[:, 1:] != chosen[:, :-1])[inside])
            joins += np.count_nonzero(inside)
        if sum(map(len, inputs)) >= 1_000_000:
            break
    assert broken <= 0.002 * joins  # where no remaining word fits
    shown, target = np.concatenate(inputs), np.concatenate(targets)
    tokenizer = data.tokenizer
    special = [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]
    assert not np.isin(target, special).any()
    random = (shown != tokenizer.mask_id) & (shown != target)
    assert np.mean(shown == tokenizer.mask_id) == pytest.approx(0.8, abs=0.002)
    assert np.mean(shown == target) == pytest.approx(0.1, abs=0.002)
    assert np.mean(random) == pytest.approx(0.1, abs=0.002)
    assert np.isin(shown[random], tokenizer.text_token_ids).all()


@pytest.mark.slow
def test_any_step_is_reached_in_seconds(wiki):
    began = time.perf_counter()
    PretrainingData(wiki, PretrainingOptions(128, 256)).batch(1_000_000)
    assert time.perf_counter() - began < 100  # the batches before it would take days


@pytest.mark.slow
def test_real_text_does_not_depend_on_processes_or_the_first_step(wiki):
    chosen = PretrainingOptions(128, 64)
    alone = PretrainingData(wiki, chosen)
    for num_processes in (2, 8):
        shared = [
            PretrainingData(wiki, chosen, num_processes=num_processes, process_id=h)
            for h in range(num_processes)
        ]
        for step in (0, 25, 50, 1_000_000):
            assert_equal(join([data.batch(step) for data in shared]), alone.batch(step))
    again = PretrainingData(wiki, dataclasses.replace(chosen, workers=8))
    for step, batch in enumerate(again.dataset(25, 51).as_numpy_iterator(), 25):
        assert_equal(batch, alone.batch(step))
