"""Masked pairs of create_pretraining_data.py become a corpus of the same pairs, masked anew."""

import importlib.util
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from pretraining_corpora import FIRST, TOKENIZER, assert_equal, options, restored
from tf1_files import StoredPair, draw_pairs, masked_features, serialize, write_records

from data_pipelines.corpus.filters import Filters
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import MAX_PAIR_LENGTH, read_manifest, read_shard
from data_pipelines.corpus.tf_examples import are_tf_examples, read_records
from data_pipelines.errors import InputError
from data_pipelines.pretraining.corpus_statistics import compute_corpus_statistics
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.text.sources import ReadOptions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="needs tensorflow"
)

LENGTH, COUNT = 32, 300
SPECIAL = {token: i for i, token in enumerate(TOKENIZER.tokens[:5])}
NO_EVAL = CorpusOptions(eval_fraction=0)


def features(pair: StoredPair, seed: int = 0) -> dict[str, list]:
    rng = np.random.default_rng(seed)
    return masked_features(pair, SPECIAL, len(TOKENIZER.tokens), LENGTH, rng)


@pytest.fixture(scope="module")
def pairs() -> list[StoredPair]:
    rng = np.random.default_rng(0)
    return draw_pairs(COUNT, range(FIRST, len(TOKENIZER.tokens)), LENGTH - 3, rng)


@pytest.fixture(scope="module")
def records(pairs) -> list[bytes]:
    return [serialize(features(pair, seed)) for seed, pair in enumerate(pairs)]


@pytest.fixture(scope="module")
def files(records, tmp_path_factory) -> list[str]:
    directory = tmp_path_factory.mktemp("examples")
    parts = {"a": records[:100], "b": [], "c": records[100:]}
    return [str(write_records(directory / f"{name}.tfrecord", x)) for name, x in parts.items()]


@pytest.fixture(scope="module")
def corpus(files, tmp_path_factory) -> pathlib.Path:
    directory = tmp_path_factory.mktemp("corpora") / "pairs"
    prepare(files, TOKENIZER, directory, CorpusOptions(eval_fraction=0.2, num_shards=3), workers=1)
    return directory


def pairs_of(batch: dict[str, np.ndarray]) -> Counter[StoredPair]:
    """Return the pairs of a batch before masking."""
    found: Counter[StoredPair] = Counter()
    for ids, segments, examples, labels in zip(
        restored(batch),
        *(batch[name] for name in ("token_type_ids", "example_ids", "next_sentence_labels")),
        strict=True,
    ):
        for example in range(1, examples.max() + 1):
            a, b = (ids[(examples == example) & (segments == kind)].tolist() for kind in (0, 1))
            assert (a[0], a[-1], b[-1]) == (SPECIAL["[CLS]"], SPECIAL["[SEP]"], SPECIAL["[SEP]"])
            found[StoredPair(tuple(a[1:-1]), tuple(b[:-1]), bool(labels[example - 1]))] += 1
    return found


@pytest.mark.parametrize("packing", [True, False])
def test_both_splits_have_the_stored_pairs_once(corpus, pairs, packing: bool) -> None:
    chosen = options(8, max_seq_length=LENGTH + 8, packing=packing)
    held_out = PretrainingData(corpus, chosen, "eval")
    assert held_out.steps
    eval_pairs = sum((pairs_of(held_out.batch(i)) for i in range(held_out.steps)), Counter())
    train = PretrainingData(corpus, chosen)
    assert COUNT // 5 // 2 < eval_pairs.total() < COUNT // 5 * 2
    train_pairs = Counter(pairs) - eval_pairs
    seen: Counter[StoredPair] = Counter()
    for step in range(4 * train.sequences_per_epoch // 8):
        batch = train.batch(step)
        seen += pairs_of(batch)
        masked = batch["masked_lm_weights"].sum(axis=1)
        assert (masked > 0).all()
    assert seen.keys() == train_pairs.keys()
    assert eval_pairs + train_pairs == Counter(pairs)


def test_masks_are_drawn_anew_in_each_epoch(corpus) -> None:
    data = PretrainingData(corpus, options(8, max_seq_length=LENGTH, packing=False))
    masks: dict[StoredPair, set[bytes]] = {}
    for step in range(4 * data.sequences_per_epoch // 8):
        batch = data.batch(step)
        for i in range(8):
            row = {name: array[i : i + 1] for name, array in batch.items()}
            (pair,) = pairs_of(row)
            masks.setdefault(pair, set()).add(row["masked_lm_positions"].tobytes())
    assert np.mean([len(places) > 1 for places in masks.values()]) > 0.8


def test_prepare_counts_pairs_and_random_ones(corpus, pairs) -> None:
    manifest = read_manifest(corpus)
    tokens = sum(len(pair.a) + len(pair.b) for pair in pairs)
    totals = {name: manifest.totals[name] for name in ("documents", "sentences", "tokens")}
    assert totals == {"documents": COUNT, "sentences": 2 * COUNT, "tokens": tokens}
    text = " ".join(TOKENIZER.decode([*pair.a, *pair.b]) for pair in pairs)
    assert abs(manifest.totals["text_bytes"] - len(text)) <= COUNT
    assert manifest.options[MAX_PAIR_LENGTH] == 3 + max(len(p.a) + len(p.b) for p in pairs)
    infos = [*manifest.train_shards, *manifest.eval_shards]
    documents = sum(len(read_shard(corpus, info).documents) - 1 for info in infos)
    assert documents == sum(1 + pair.is_random for pair in pairs)
    assert compute_corpus_statistics(corpus).packing[0].random_fraction == pytest.approx(
        0.5, abs=0.1
    )


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_other_objectives_read_the_texts(corpus, pairs, objective: str) -> None:
    """Texts of a pair are one segment if the second follows."""
    chosen = options(8, max_seq_length=LENGTH, objective=objective, short_seq_prob=0.0)
    batch = PretrainingData(corpus, chosen).batch(0)
    assert not batch["token_type_ids"].any()
    joined = {pair.a + pair.b for pair in pairs if not pair.is_random}
    apart = {text for pair in pairs if pair.is_random for text in (pair.a, pair.b)}
    tokens = restored(batch) if objective == "mlm" else batch["input_ids"]
    for row, examples in zip(tokens, batch["example_ids"], strict=True):
        for example in range(1, examples.max() + 1):
            segment = tuple(row[examples == example].tolist())
            assert segment[1:-1] in joined | apart, (segment, objective)


@pytest.mark.slow
def test_prepare_writes_the_same_with_workers_and_after_a_kill(
    files, tmp_path, monkeypatch
) -> None:
    from data_pipelines.corpus import spool, tf_examples

    monkeypatch.setattr(tf_examples, "_BATCH_BYTES", 1 << 12)
    monkeypatch.setattr(spool, "_SEGMENT_BYTES", 1 << 10)
    one = prepare(files, TOKENIZER, tmp_path / "one", NO_EVAL, workers=1)
    assert prepare(files, TOKENIZER, tmp_path / "two", NO_EVAL, workers=2).digest() == one.digest()
    read = tf_examples.read_records

    def interrupted(path: Any, skip: int = 0) -> Any:
        for record in read(path, skip):
            if record.location.endswith("c.tfrecord record 150"):
                raise KeyboardInterrupt
            yield record

    monkeypatch.setattr(tf_examples, "read_records", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(files, TOKENIZER, tmp_path / "three", NO_EVAL, workers=1)
    monkeypatch.setattr(tf_examples, "read_records", read)
    third = prepare(files, TOKENIZER, tmp_path / "three", NO_EVAL, workers=1)
    assert third.digest() == one.digest()


def test_dedup_drops_pairs_with_other_masks(pairs, tmp_path) -> None:
    twice = [serialize(features(pair, seed)) for pair in pairs[:20] for seed in (1, 2)]
    path = write_records(tmp_path / "twice", twice)
    chosen = CorpusOptions(eval_fraction=0, dedup=True)
    assert (
        prepare([str(path)], TOKENIZER, tmp_path / "out", chosen, workers=1).totals["documents"]
        == 20
    )


def test_read_records_reads_what_tensorflow_wrote(records, files) -> None:
    found = [record.content for path in files for record in read_records(path)]
    assert found == records
    assert [r.content for r in read_records(files[0], 98)] == records[98:100]
    assert are_tf_examples(files) and not are_tf_examples(["builtin", files[1]])


def test_damaged_files_are_named_with_the_record(records, tmp_path) -> None:
    whole = write_records(tmp_path / "whole", records[:3]).read_bytes()
    path = tmp_path / "damaged"
    size = len(records[0]) + 16
    for length in (size + 3, size + 12, size + 40, len(whole) - 1):
        path.write_bytes(whole[:length])
        number = 1 + length // size if length < 2 * size else 3
        with pytest.raises(InputError, match=rf"damaged record {number}: is cut off\."):
            list(read_records(path))
    for place in (size + 1, size + 9, size + 12, size + 200, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        number = 2 if place < 2 * size else 3
        with pytest.raises(
            InputError, match=rf"damaged record {number}: damaged, another checksum"
        ):
            list(read_records(path))


PAIR = StoredPair((FIRST, FIRST + 1), (FIRST + 2,), is_random=True)


def changed(**values: list) -> dict[str, list]:
    return features(PAIR) | values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"input_ids": [2]}, "no feature input_mask, only input_ids"),
        (changed(masked_lm_weights=[1]), "no feature masked_lm_weights, only"),
        (changed(input_mask=[1]), "input_mask and segment_ids do not fit"),
        (changed(input_mask=[0, 1] * (LENGTH // 2)), "input_mask and segment_ids do not fit"),
        (changed(masked_lm_ids=[1]), "masked_lm_ids and masked_lm_weights do not fit"),
        (changed(masked_lm_positions=[LENGTH - 1] * 5), "not those of text"),
        (changed(masked_lm_positions=[-1] * 5), "not those of text"),
        (changed(next_sentence_labels=[2]), "not one label"),
        (changed(next_sentence_labels=[]), "not one label"),
        (changed(segment_ids=[0] * LENGTH), "segment_ids are not 0 and 1"),
        (changed(input_ids=[1] * LENGTH), "with this vocabulary"),
        (changed(masked_lm_ids=[SPECIAL["[MASK]"]] * 5), "with this vocabulary"),
        (changed(masked_lm_ids=[SPECIAL["[SEP]"]] * 5), "with this vocabulary"),
        (changed(masked_lm_ids=[len(TOKENIZER.tokens)] * 5), "has ids beyond the 666 tokens"),
        (changed(masked_lm_ids=[-7] * 5), "has ids beyond the 666 tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_prepare_rejects_other_examples(content: dict, message: str, tmp_path) -> None:
    good = serialize(features(PAIR))
    path = write_records(tmp_path / "some", [good, serialize(content)])
    with pytest.raises(InputError, match=rf"some record 2: .*{message}"):
        prepare([str(path)], TOKENIZER, tmp_path / "out", NO_EVAL, workers=1)
    assert [file.name for file in tmp_path.iterdir()] == ["some"]


def test_prepare_rejects_records_of_another_kind(tmp_path) -> None:
    path = write_records(tmp_path / "some", [b"\xff\xff\xff"])
    with pytest.raises(InputError, match=r"some record 1: not a tf\.train\.Example"):
        prepare([str(path)], TOKENIZER, tmp_path / "out", NO_EVAL, workers=1)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (
            CorpusOptions(filters=Filters(near_dedup=True)),
            "near_dedup=True: tf_examples are no text",
        ),
        (CorpusOptions(read_options=ReadOptions(field="b")), "field=b: tf_examples are no text"),
        (CorpusOptions(read_options=ReadOptions(max_bad_fraction=0.1)), "max_bad_fraction=0.1: tf"),
    ],
)
def test_prepare_rejects_options_of_text(files, chosen, message: str, tmp_path) -> None:
    with pytest.raises(InputError, match=message):
        prepare(files, TOKENIZER, tmp_path / "out", chosen, workers=1)


def test_prepare_rejects_text_beside_examples(files, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("A text.\n")
    for others in (["builtin"], [str(tmp_path / "text.txt")]):
        with pytest.raises(InputError, match=r"text, and .* has tf_examples"):
            prepare([*files, *others], TOKENIZER, tmp_path / "out", NO_EVAL, workers=1)


def test_training_rejects_options_that_stored_pairs_cannot_follow(corpus) -> None:
    with pytest.raises(InputError, match=r"max_seq_length=16: .* has pairs of \d+ tokens"):
        PretrainingData(corpus, options(8, max_seq_length=16))
    with pytest.raises(
        InputError, match=r"short_seq_prob=0\.2: the pairs of .* are those of tf_ex"
    ):
        PretrainingData(corpus, options(8, max_seq_length=LENGTH, short_seq_prob=0.2))


def test_eval_split_of_pairs_is_warned_of(files, tmp_path, caplog) -> None:
    prepare(files, TOKENIZER, tmp_path / "out", workers=1)
    assert "the pairs of a document may be in both splits" in caplog.text


def test_batches_do_not_depend_on_processes(corpus) -> None:
    chosen = options(8, max_seq_length=LENGTH)
    whole = PretrainingData(corpus, chosen).batch(3)
    parts = [PretrainingData(corpus, chosen, "train", 2, i).batch(3) for i in range(2)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in whole}
    assert_equal(joined, whole)
