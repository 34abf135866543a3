"""Tests of pre-training batches, a function of the corpus, the options and the step alone."""

import dataclasses
import hashlib
import itertools
import pathlib
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from pretraining_corpora import (
    EVAL_DOCUMENTS,
    FIRST,
    TOKENIZER,
    TRAIN_DOCUMENTS,
    Batch,
    assert_equal,
    check_processes,
    documents_of,
    equal,
    join,
    options,
    restored,
    write_corpus,
)

from data_pipelines.corpus.shards import read_manifest, read_shard, write_manifest
from data_pipelines.errors import InputError
from data_pipelines.pretraining import corpus_sequences, sequences
from data_pipelines.pretraining import data as data_module
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer


@pytest.fixture
def corpus(tiny_corpus: pathlib.Path, small_chunks: None) -> pathlib.Path:
    return tiny_corpus


# ---------------------------------------------------------------- same seed, same bytes


def digest(batch: Batch) -> str:
    content = b"".join(array.tobytes() for array in batch.values())
    return hashlib.blake2b(content, digest_size=8).hexdigest()


@pytest.mark.seconds
@pytest.mark.parametrize("num_processes", [2, 4, 8, 16])
def test_batch_does_not_depend_on_the_number_of_processes(corpus, num_processes):
    check_processes(corpus, options(), num_processes, steps=(*range(51), 1_000_000))


def test_batch_does_not_depend_on_earlier_calls(corpus):
    data = PretrainingData(corpus, options())
    batches = [data.batch(step) for step in range(51)]
    for step in (50, 25, 0):
        assert_equal(PretrainingData(corpus, options()).batch(step), batches[step])


@pytest.mark.seconds
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


@pytest.mark.seconds
@pytest.mark.parametrize("split", ["train", "eval"])
def test_batches_do_not_depend_on_tensorflow(corpus, monkeypatch, split):
    pytest.importorskip("tensorflow")
    data = PretrainingData(corpus, options(workers=3), split)
    stop = None if split == "eval" else 20
    monkeypatch.setattr(data_module, "_uses_tf_data", lambda: False)
    batches = list(data.batches(2, stop))
    monkeypatch.setattr(data_module, "_uses_tf_data", lambda: True)
    for batch, other in zip(batches, data.batches(2, stop), strict=True):
        assert_equal(batch, other)
    assert len(batches) == (stop or data.steps) - 2


def test_dataset_has_static_shapes_and_no_end(corpus):
    pytest.importorskip("tensorflow")
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
        ({}, "e6a0dcdead4d528d"),
        ({"masking": "whole_word"}, "51e3ebda9a028552"),
        ({"masking": "span", "objective": "mlm"}, "3c48ed3dabd83da6"),
    ],
)
def test_batch_is_the_same_on_any_machine(corpus, fields, expected):
    """A change of these digests changes the data of every run."""
    assert digest(PretrainingData(corpus, options(**fields)).batch(3)) == expected


def test_eval_batch_is_the_same_on_any_machine(corpus):
    """A change of this digest changes the scores of every run."""
    assert digest(PretrainingData(corpus, options(), "eval").batch(1)) == "9499743687441f31"


# ---------------------------------------------------------------- several corpora

FIRST_DOCUMENTS, SECOND_DOCUMENTS = range(100), range(100, TRAIN_DOCUMENTS)


@pytest.fixture(scope="module")
def two_corpora(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two corpora with different documents; the second has few shards."""
    directory = tmp_path_factory.mktemp("corpora")
    write_corpus(directory / "one", train=FIRST_DOCUMENTS)
    write_corpus(directory / "other", shards=3, train=SECOND_DOCUMENTS)
    return f"{directory / 'one'}+{directory / 'other'}"


@pytest.fixture
def two(two_corpora: str, small_chunks: None) -> str:
    return two_corpora


@pytest.mark.seconds
@pytest.mark.parametrize("num_processes", [2, 4, 8, 16])
def test_mixture_does_not_depend_on_the_number_of_processes(two, num_processes):
    steps = (0, 1, 40, 1000, 1_000_000)
    check_processes(two, options(sampling_alpha=0.5), num_processes, steps=steps)


@pytest.mark.seconds
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


def test_corpus_may_have_the_separator_in_its_name(corpus, tmp_path):
    renamed = shutil.copytree(corpus, tmp_path / "c++" / "a+b")
    assert_equal(
        PretrainingData(renamed, options()).batch(3), PretrainingData(corpus, options()).batch(3)
    )


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
        InputError,
        match=r"third: prepared with another tokenizer than .*one: it has 667 tokens, not 666\.",
    ):
        PretrainingData(f"{one}+{other}", options())


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
    check_processes(corpus, options(), num_processes, "eval")


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
    for sequence, slot in zip(*np.nonzero(batch["next_sentence_weights"]), strict=True):
        is_text = batch["example_ids"][sequence] == slot + 1
        if batch["next_sentence_labels"][sequence, slot]:
            is_text &= batch["token_type_ids"][sequence] == 0
        text = input_ids[sequence][is_text & (input_ids[sequence] >= FIRST)]
        counts += np.bincount((text - FIRST) // 2, minlength=len(counts))
    expected = np.zeros_like(counts)
    for info in read_manifest(corpus).eval_shards:
        tokens = read_shard(corpus, info).tokens.astype(int)
        expected += np.bincount((tokens - FIRST) // 2, minlength=len(expected))
    assert counts.tolist() == expected.tolist()


def test_eval_split_ends(corpus):
    data = PretrainingData(corpus, options(), "eval")
    assert len(list(data.batches())) == data.steps
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


@pytest.mark.seconds
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


def test_directory_that_is_no_corpus_is_rejected(tmp_path):
    with pytest.raises(InputError, match="not a finished corpus"):
        PretrainingData(tmp_path, options())


# ---------------------------------------------------------------- masking rate that changes


def scheduled(corpus, rate="0.4..0.1", total_steps=40, slots=None, **processes) -> PretrainingData:
    fields = {"mlm_probability": rate, "max_predictions_per_seq": slots}
    data = PretrainingData(corpus, options(objective="mlm", **fields), **processes)
    data.total_steps = total_steps
    return data


def test_masking_rate_changes_linearly_and_shapes_do_not(corpus):
    data = scheduled(corpus)
    shapes = {name: array.shape for name, array in data.batch(0).items()}
    assert shapes["masked_lm_ids"] == (16, 4 * -(-0.4 * 64 // 4))
    for step, rate in [(0, 0.4), (10, 0.325), (20, 0.25), (39, 0.1075), (40, 0.1), (400, 0.1)]:
        batch = data.batch(step)
        masked = batch["masked_lm_weights"].sum() / (batch["example_ids"] > 0).sum()
        assert masked == pytest.approx(rate, abs=0.015), step
        assert {name: array.shape for name, array in batch.items()} == shapes


def test_masking_rate_changes_no_sequence(corpus):
    # With few slots, predictions limit the examples of a sequence, too.
    data, constant = scheduled(corpus, slots=16), scheduled(corpus, rate=0.4, slots=16)
    for step in (0, 7, 39):
        np.testing.assert_array_equal(restored(data.batch(step)), restored(constant.batch(step)))
    assert_equal(data.batch(0), constant.batch(0))
    assert_equal(scheduled(corpus, rate="0.4..0.4", slots=16).batch(31), constant.batch(31))


@pytest.mark.seconds
def test_masking_rate_depends_on_the_step_alone(corpus):
    data = scheduled(corpus)
    batches = [data.batch(step) for step in range(40)]
    for step in (39, 20, 3):
        assert_equal(scheduled(corpus).batch(step), batches[step])
        parts = [scheduled(corpus, num_processes=4, process_id=i).batch(step) for i in range(4)]
        assert_equal(join(parts), batches[step])
    assert not equal(scheduled(corpus, total_steps=80).batch(20), batches[20])
    for batch, other in zip(data.batches(30, 34), batches[30:34], strict=True):
        assert_equal(batch, other)
