"""The small encoder: its stages, and the corpus of sentences beside changed copies."""

import itertools
import pathlib

import numpy as np
import pytest

from bertjax.config.loading import load_config
from bertjax.tasks import registry
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.small_encoder.__main__ import STAGES, make_stage
from experiments.small_encoder.pairs import draw_pairs, training_sentences

SENTENCES = [" ".join(f"{letter}{i}" for i in range(10)) for letter in "abcdef"]


def test_every_stage_starts_from_the_one_before() -> None:
    workdir, data = pathlib.Path("run"), pathlib.Path("data")
    stages = [make_stage(name, workdir, data)[1] for name in STAGES]
    assert [fields.get("init") for fields in stages] == [None, "run/clm", "run/mlm"]
    assert stages[-1]["data.dir"] == "data/corpus+data/pairs"


@pytest.mark.parametrize("name", STAGES)
def test_the_fields_of_a_stage_are_valid_together(name: str) -> None:
    name, fields = make_stage(name, pathlib.Path("run"), pathlib.Path("data"))
    config = load_config(name, {**fields, "init": ""}, registry.data_fields())
    assert registry.make_objective(config).config.model.num_hidden_layers == 6


def test_a_fifth_of_the_words_of_a_copy_are_those_of_another_sentence() -> None:
    pairs = list(draw_pairs(iter(SENTENCES)))
    assert [sentence for sentence, _ in pairs] == SENTENCES[1:]
    for previous, (sentence, copy) in zip(SENTENCES, pairs, strict=False):
        words = zip(sentence.split(), copy.split(), strict=True)
        changed = [new for old, new in words if old != new]
        assert len(changed) == 2 and set(changed) <= set(previous.split())


def test_copies_are_the_same_in_every_run() -> None:
    assert list(draw_pairs(iter(SENTENCES))) == list(draw_pairs(iter(SENTENCES)))


def test_sentences_are_those_of_the_training_split(corpus) -> None:
    tokenizer, known = load_tokenizer(corpus), set()
    for info in read_manifest(corpus).train_shards:
        shard = read_shard(corpus, info)
        for start, stop in itertools.pairwise(shard.sentences.tolist()):
            known.add(tokenizer.decode(shard.tokens[start:stop].tolist()))
    drawn = list(training_sentences(corpus))
    assert drawn and set(drawn) <= known
    assert np.all([len(sentence.split()) >= 8 for sentence in drawn])
