"""The small encoder: its stages, and the corpus of sentences beside changed copies."""

import itertools
import json
import pathlib

import numpy as np
import pytest

from bertjax.config.loading import load_config
from bertjax.tasks import registry
from data_pipelines.corpus.shards import read_manifest, read_shard
from data_pipelines.vocabulary.tokenization import load_tokenizer
from experiments.small_encoder import scores
from experiments.small_encoder.__main__ import STAGES, make_stage
from experiments.small_encoder.pairs import draw_pairs, training_sentences
from experiments.small_encoder.scores import TASKS

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


@pytest.mark.parametrize("task", TASKS)
def test_an_encoder_at_random_has_the_shape_of_the_model(tmp_path, task: str) -> None:
    shape = dict.fromkeys(scores.SHAPE, 512) | {"num_attention_heads": 2, "num_hidden_layers": 3}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    settings = TASKS[task]
    fields = {**scores.SHARED, **settings.fields, **scores.model_fields("random", tmp_path, "")}
    config = load_config(settings.config.format(data="data"), fields, registry.data_fields())
    assert config.init == "" and config.data["vocab"] == str(tmp_path)
    assert {name: getattr(config.model, name) for name in shape} == shape


def test_table_has_mean_and_standard_deviation_of_the_seeds() -> None:
    rows = {"model": {"mrpc": [0.7, 0.8]}, "random": {"mrpc": [0.5]}, "upper": {"mrpc": []}}
    assert scores.format_table(rows) == (
        "|  | mrpc accuracy |\n| --- | --- |\n"
        "| model | 0.750 ± 0.071 |\n| random | 0.500 |\n| upper | failed |\n"
    )
