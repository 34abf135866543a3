"""Corpora of texts with entity spans, and pre-training that masks whole entities."""

import collections
import itertools
import json
import pathlib
import random

import numpy as np
import pytest
from conftest import TOKENIZER

from data_pipelines.corpus import spool as spool_module
from data_pipelines.corpus.annotated_text import record_batches
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.corpus.spool import Position
from data_pipelines.errors import InputError
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions
from data_pipelines.text.sources import ReadOptions

OPTIONS = CorpusOptions(eval_fraction=0.1, num_shards=2, read_options=ReadOptions(spans="entities"))
ENTITIES = ("ba do", "ki", "lu menos ra", "dokiba si.tu")  # of one to six tokens
OTHER = ("me", "no", "ve", "tume", "siravelu")


def annotate(*parts: tuple[str, str]) -> dict:
    """Return a line of texts, each with "entity" or "" for its kind, joined by spaces."""
    text, entities = "", []
    for part, kind in parts:
        start = len(text) + bool(text)
        text = f"{text} {part}" if text else part
        if kind:
            entities.append({"entity_group": kind, "score": 0.9, "word": part})
            entities[-1] |= {"start": start, "end": len(text)}
    return {"text": text, "entities": entities}


def write(path: pathlib.Path, *lines: dict) -> str:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """600 documents; a sixth of the words begin an entity."""
    draw, lines = random.Random(0), []
    for _ in range(600):
        parts = []
        for _ in range(draw.randrange(20, 90)):
            is_entity = draw.random() < 1 / 6
            parts.append((draw.choice(ENTITIES if is_entity else OTHER), "NAME" * is_entity))
            if draw.random() < 0.1:
                parts.append((f"{draw.choice(OTHER)}.", ""))
        lines.append(annotate(*parts))
    return write(tmp_path_factory.mktemp("source") / "entities.jsonl", *lines)


@pytest.fixture(scope="module")
def corpus(source, tmp_path_factory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    prepare([source], TOKENIZER, path, OPTIONS, workers=1)
    return path


def entities_of(corpus: pathlib.Path) -> list[list[str]]:
    """Return the entities of each document of the train split, from the tokens."""
    result = []
    for info in read_manifest(corpus).train_shards:
        shard = read_shard(corpus, info)
        texts = [TOKENIZER.decode(shard.tokens[a:b].tolist()) for a, b in shard.spans]
        ends = np.searchsorted(shard.spans[:, 0], shard.sentences[shard.documents])
        result += [texts[a:b] for a, b in itertools.pairwise(ends.tolist())]
    return result


def content(directory: pathlib.Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_prepare_stores_the_tokens_of_every_span(source, corpus) -> None:
    expected = []
    for line in map(json.loads, pathlib.Path(source).read_text().splitlines()):
        words = [entity["word"] for entity in line["entities"]]
        expected.append([TOKENIZER.decode(TOKENIZER.encode(word)) for word in words])
    stored = entities_of(corpus)
    assert len(stored) == read_manifest(corpus).train_shards[0].documents * 2
    remaining = sorted(expected)
    for entities in stored:
        remaining.remove(entities)
    assert len(remaining) == sum(info.documents for info in read_manifest(corpus).eval_shards)


@pytest.mark.seconds
def test_prepare_ends_no_sentence_within_a_span(tmp_path) -> None:
    """Neither at a stop, nor at a line end, nor at 64 tokens."""
    long = [("me no ve", "")] * 20
    lines = [
        annotate(("me", ""), ("No. Ba do! Ki", "NAME"), ("ve. Me", "")),
        annotate(("me", ""), ("ba\ndo\r\nki", "NAME"), ("ve\nme", "")),
        annotate(*long, (" ".join(["ba"] * 30), "NAME"), *long),
    ]
    options = CorpusOptions(0, num_shards=1, read_options=ReadOptions(spans="entities"))
    prepare([write(tmp_path / "a.jsonl", *lines)], TOKENIZER, tmp_path / "corpus", options)
    (info,) = read_manifest(tmp_path / "corpus").train_shards
    shard = read_shard(tmp_path / "corpus", info)
    assert np.diff(shard.spans, axis=1).ravel().tolist() == [6, 3, 30]
    cuts = shard.sentences[:, None]
    assert not ((shard.spans[:, 0] < cuts) & (cuts < shard.spans[:, 1])).any()
    assert np.diff(shard.documents).tolist() == [2, 2, 3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"text": "ba"}, "1: no list of spans in 'entities', of text. Name one by --spans"),
        ({"entities": []}, "1: no text in 'text', of entities. Name one by --field"),
        ({"text": "ba", "entities": [[0, 2]]}, r"1: \[0, 2\] is no span. Write an object"),
        ({"text": "ba", "entities": [{"start": 0, "end": 3}]}, "0 to 3 is not in the text of 2"),
        ({"text": "ba", "entities": [{"start": 1, "end": 1}]}, "1 to 1 is not in the text of 2"),
        ({"text": "b a", "entities": [{"start": 1, "end": 2}]}, "span 1 to 2 is blank"),
        (
            {"text": "ba do", "entities": [{"start": 0, "end": 2, "word": "do"}]},
            "span 0 to 2 is 'ba', not 'do'. Fix the offsets",
        ),
        (
            {"text": "ba do ki", "entities": [{"start": 3, "end": 8}, {"start": 0, "end": 5}]},
            "spans 0 to 5 and 3 to 8 overlap. Remove one",
        ),
        (
            {"text": "me. do kiba", "entities": [{"start": 4, "end": 9}]},
            "span 4 to 9, 'do ki', begins or ends within a word. Fix",
        ),
        (
            {"text": "dokiba", "entities": [{"start": 2, "end": 6}]},
            "span 2 to 6, 'kiba', begins or ends within a word. Fix",
        ),
        (
            {"text": "ba do \u200d", "entities": [{"start": 6, "end": 7}]},
            "has no tokens. Remove it",
        ),
    ],
    ids=str,
)
def test_prepare_rejects_spans(line: dict, message: str, tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", line, annotate(("ba", "NAME")), annotate(("ki", "")))
    with pytest.raises(InputError, match=message) as error:
        prepare([path], TOKENIZER, tmp_path / "corpus", OPTIONS, workers=1)
    assert str(error.value).startswith(f"{path}:1: ") and "\n" not in str(error.value)


def test_prepare_takes_texts_without_spans(tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", annotate(("ba do.", "")), annotate(("ki me no.", "")))
    options = CorpusOptions(0, num_shards=1, read_options=ReadOptions(spans="entities"))
    prepare([path], TOKENIZER, tmp_path / "corpus", options, workers=1)
    assert entities_of(tmp_path / "corpus") == [[], []]


@pytest.mark.seconds
def test_prepare_rejects_spans_of_other_inputs(tmp_path) -> None:
    with pytest.raises(InputError, match=r"^spans=entities: builtin has none\. Name files"):
        prepare(["builtin"], TOKENIZER, tmp_path / "corpus", OPTIONS, workers=1)


def test_prepare_skips_a_fraction_of_bad_lines(tmp_path, caplog) -> None:
    lines = [annotate(("ba do", "NAME"), (word, "")) for word in OTHER]
    path = write(tmp_path / "a.jsonl", *lines, {"text": "ba", "entities": [{}]})
    read_options = ReadOptions(max_bad_fraction=0.2, spans="entities")
    options = CorpusOptions(eval_fraction=0, num_shards=1, read_options=read_options)
    manifest = prepare([path], TOKENIZER, tmp_path / "corpus", options, workers=1)
    assert manifest.totals["documents"] == 5 and "1 of 6 records are bad" in caplog.text


def test_empty_documents_fill_batches(tmp_path) -> None:
    path = write(tmp_path / "a.jsonl", *[{"text": "", "entities": []}] * 10_000)
    start = Position(0, 0)
    batches = record_batches([path], ReadOptions(spans="entities"), start, collections.deque())
    assert max(map(len, batches)) < 5000


@pytest.mark.slow
def test_prepare_gives_equal_bytes_for_any_number_of_workers(source, corpus, tmp_path) -> None:
    prepare([source], TOKENIZER, tmp_path / "two", OPTIONS, workers=2)
    assert content(tmp_path / "two") == content(corpus)


@pytest.mark.seconds
def test_prepare_resumes_with_equal_bytes(source, corpus, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("data_pipelines.corpus.annotated_text._BATCH_CHARS", 1 << 12)
    monkeypatch.setattr(spool_module, "_SEGMENT_BYTES", 1 << 14)
    real, count = spool_module.Spool.commit_segment, itertools.count()

    def stop(self) -> None:
        real(self)
        if next(count) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spool_module.Spool, "commit_segment", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare([source], TOKENIZER, tmp_path / "corpus", OPTIONS, workers=1)
    read = []
    encode = spool_module.Spool.append

    def append(self, index, payload, position) -> None:
        read.append(position.documents)
        encode(self, index, payload, position)

    monkeypatch.setattr(spool_module.Spool, "append", append)
    prepare([source], TOKENIZER, tmp_path / "corpus", OPTIONS, workers=1)
    assert min(read) > 100  # not from the start
    assert content(tmp_path / "corpus") == content(corpus)


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_entities_are_masked_whole_at_the_stated_rate(objective: str, corpus) -> None:
    options = PretrainingOptions(64, 32, objective=objective, masking="entity", workers=1)
    data = PretrainingData(corpus, options)
    names = {tuple(TOKENIZER.encode(name)) for name in ENTITIES}
    masked = tokens = whole = entities = 0
    for step in range(8):
        batch = data.batch(step)
        ids = batch["input_ids"].copy()
        sequence, slot = np.nonzero(batch["masked_lm_weights"])
        column = batch["masked_lm_positions"][sequence, slot]
        ids[sequence, column] = batch["masked_lm_ids"][sequence, slot]
        chosen = np.zeros(ids.shape, bool)
        chosen[sequence, column] = True
        masked, tokens = masked + chosen.sum(), tokens + (batch["example_ids"] > 0).sum()
        special = np.isin(ids, (TOKENIZER.cls_id, TOKENIZER.sep_id, TOKENIZER.pad_id))
        assert not (chosen & special).any()
        # The words of entities occur only in them, so that a run of them is entities.
        for row, marks in zip(ids.tolist(), chosen.tolist(), strict=True):
            for name in names:
                if len(name) == 1:
                    continue
                for at in range(len(row) - len(name) + 1):
                    if tuple(row[at : at + len(name)]) == name:
                        assert len({*marks[at : at + len(name)]}) == 1, (row[at:], marks[at:])
                        whole, entities = whole + marks[at], entities + 1
    assert 0.13 < masked / tokens < 0.155
    assert 0.1 < whole / entities < 0.16, (whole, entities)


def test_entity_masking_needs_spans(tiny_corpus) -> None:
    options = PretrainingOptions(64, 8, masking="entity")
    with pytest.raises(InputError, match=r"^masking=entity: .* has no entity spans\. Prepare it "):
        PretrainingData(tiny_corpus, options)
