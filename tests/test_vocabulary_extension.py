"""Tests of `bertjax vocab --extend`: a model with more tokens, and what it keeps."""

import dataclasses
import itertools
import json
import pathlib
import pydoc_data.topics
import re

import numpy as np
import pytest
from conftest import SYLLABLES, sample_text, sample_vocabulary
from etils import epath
from model_files import CONFIG, write_hf
from random_models import draw_model
from tokenizers import Tokenizer

from bertjax.cli.main import main
from bertjax.formats.detection import find_format
from bertjax.formats.loading import read_embedding_model, read_model
from bertjax.formats.model_card import escape_markdown
from bertjax.formats.sentence_transformers import find_pooling_config, write_modules
from bertjax.formats.tensors import NumpyModel, PoolingConfig
from bertjax.inference.convert import _Source, _write, convert
from bertjax.inference.model import Model
from bertjax.inference.vocabulary_extension import extend_model, write_extended_model
from bertjax.mesh.sharding import named_leaves
from data_pipelines.vocabulary.added_tokens import AddedToken
from data_pipelines.vocabulary.counting import count_words, wordpiece_splitters
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.training import sentencepiece_from_counts, wordpiece_from_counts
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

TOPICS = [
    re.sub(r"\n\s*\n", "\n", text.strip()) for _, text in sorted(pydoc_data.topics.topics.items())
]
WORD, BIAS = "encoder/embeddings/word", "mlm/bias"


def draw(tokenizer: WordPieceTokenizer, *heads: str, rows: int = 0) -> NumpyModel:
    config = dataclasses.replace(CONFIG, vocab_size=len(tokenizer.tokens) + rows)
    return draw_model(config, tokenizer, *heads)


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> pathlib.Path:
    """Directory with a model, the text of its domain, and the model with 200 more tokens."""
    path = tmp_path_factory.mktemp("extended")
    counts = count_words("\n".join(TOPICS[::3]).split("\n"), *wordpiece_splitters(cased=False))
    tokens = wordpiece_from_counts(counts, 2000)
    tokens[120] = "@GENE$"
    tokenizer = WordPieceTokenizer(tokens, cased=False, added_tokens=[AddedToken("@GENE$")])
    write_hf(draw(tokenizer, "pooler", "mlm", "nsp", rows=24), path / "old")
    (path / "text.txt").write_text("\n\n".join(TOPICS))
    command = ["vocab", "--extend", path / "old", "--input", path / "text.txt", "--add", 200]
    assert main([*map(str, command), "--output", str(path / "new"), "--workers", "0"]) == 0
    return path


@pytest.mark.seconds
def test_extend_keeps_ids_heads_and_old_rows(extended) -> None:
    old, new = read_model(extended / "old"), read_model(extended / "new")
    assert old.tokenizer and new.tokenizer
    changed = [
        i
        for i, (a, b) in enumerate(zip(old.tokenizer.tokens, new.tokenizer.tokens, strict=False))
        if a != b
    ]
    assert changed == [*range(1, 100)]  # [unusedN]; the others follow, in rows that were padding
    assert len(new.tokenizer.tokens) == 2000 + 200 - 99
    assert new.config == dataclasses.replace(old.config, vocab_size=2101)
    old_arrays, new_arrays = dict(named_leaves(old.params)), dict(named_leaves(new.params))
    assert old_arrays.keys() == new_arrays.keys()
    for name, array in old_arrays.items():
        larger = new_arrays[name]
        if name in (WORD, BIAS):
            assert len(larger) == 2101
            rows = [0, *range(100, 2000)]
            assert np.array_equal(larger[rows], array[rows])
        else:
            assert np.array_equal(larger, array)


@pytest.mark.seconds
def test_extend_embeds_new_tokens_as_the_mean_of_what_they_replace(extended) -> None:
    old, new = read_model(extended / "old"), read_model(extended / "new")
    assert old.tokenizer and new.tokenizer
    for id_ in (1, 2, 99, 2000, 2100):
        token = new.tokenizer.tokens[id_]
        body = token.removeprefix("##")
        ids = old.tokenizer.encode(body)
        if body != token:
            continue
        for name in (WORD, BIAS):
            rows, larger = (dict(named_leaves(model.params))[name] for model in (old, new))
            np.testing.assert_allclose(larger[id_], rows[ids].mean(axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.seconds
def test_extend_with_normal_embeddings() -> None:
    tokens = [*SPECIAL_TOKENS, "a", *(f"##{char}" for char in "bcdefghijk")]
    config = dataclasses.replace(CONFIG, vocab_size=len(tokens), initializer_range=0.5)
    model = draw_model(config, WordPieceTokenizer(tokens, cased=False), "mlm")
    names = [f"a{a}{b}" for a in "bcdefghijk" for b in "bcdefghijk"]
    extended, ids = extend_model(model, names, "normal")
    again, _ = extend_model(model, names, "normal")
    word = extended.params["encoder"]["embeddings"]["word"][ids]
    assert abs(word.std() - 0.5) < 0.02 and abs(word.mean()) < 0.02
    assert not extended.params["mlm"]["bias"][ids].any()
    assert np.array_equal(word, again.params["encoder"]["embeddings"]["word"][ids])


@pytest.mark.seconds
def test_extend_keeps_the_vectors_of_texts_without_new_tokens(extended) -> None:
    old, new = Model(extended / "old"), Model(extended / "new")
    lines = [line for text in TOPICS for line in text.split("\n") if line.strip()]
    kept = [line for line in lines if old.tokenizer.encode(line) == new.tokenizer.encode(line)]
    kept = [line for line in kept if len(old.tokenizer.encode(line)) < 14][:8]
    assert len(kept) == 8
    assert old.encode(kept).tobytes() == new.encode(kept).tobytes()
    token = next(token for token in new.tokenizer.tokens[2000:] if token.isalpha())
    assert old.encode(token).tobytes() != new.encode(token).tobytes()


@pytest.mark.seconds
def test_extend_writes_a_tokenizer_that_tokenizers_reads_the_same(extended) -> None:
    new = read_model(extended / "new").tokenizer
    assert new is not None
    compiled = Tokenizer.from_file(str(extended / "new" / "tokenizer.json"))
    lines = [line for text in TOPICS for line in text.split("\n") if line.strip()][:1999]
    lines.append("the @GENE$ of isinstance() and @gene$")
    expected = [encoding.ids for encoding in compiled.encode_batch(lines, add_special_tokens=False)]
    assert [new.encode(line) for line in lines] == expected
    ids = set(itertools.chain(*expected))
    assert len(ids & {*range(1, 100), *range(2000, 2101)}) > 100


@pytest.mark.seconds
def test_extend_reports_tokens_per_word(extended, capsys) -> None:
    command = ["vocab", "--extend", extended / "new", "--input", extended / "text.txt", "--add", 90]
    assert main([*map(str, command), "--output", str(extended / "again"), "--workers", "0"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "90 tokens added, 0 of them in place of [unusedN], 2,191 in all: " in first
    assert second.startswith("Tokens per word on 10% of the documents, which chose none (")
    new, again = (read_model(extended / name).tokenizer for name in ("new", "again"))
    held_out = [text for i, text in enumerate(TOPICS) if i * 0.6180339887498949 % 1 < 0.1]
    sizes = [sum(len(t.encode(text)) for text in held_out) for t in (new, again)]
    assert f"({1 - sizes[1] / sizes[0]:.1%} fewer)" in second


TEXT = ["--input", "text.txt", "--output", "new"]
EXTEND = ["--extend", "model", "--add", "3"]


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*TEXT, "--extend", "model"], "--add=None: no number of new tokens"),
        ([*TEXT, "--extend", "model", "--add", "0"], "--add=0: no number of new tokens"),
        ([*TEXT, "--extend", "model", "--add", "-5"], "--add=-5: no number of new tokens"),
        ([*TEXT, "--extend", "model", "--add", "many"], "invalid int value: 'many'"),
        ([*TEXT, "--extend", "model", "--add", "1000000"], "add=1000000: only "),
        ([*TEXT, "--extend", "lost", "--add", "3"], "lost: does not exist"),
        ([*TEXT, "--extend", "empty", "--add", "3"], "empty: not a model"),
        ([*TEXT, "--extend", "no_vocab", "--add", "3"], "no_vocab: has no vocabulary"),
        (
            [*TEXT, "--extend", "sentencepiece", "--add", "3"],
            "sentencepiece: has a SentencePiece model",
        ),
        ([*TEXT, *EXTEND, "--vocab-size", "99"], "--vocab-size=99: --extend keeps what the model"),
        ([*TEXT, *EXTEND, "--kind", "bpe"], "--kind=bpe: --extend keeps"),
        ([*TEXT, *EXTEND, "--cased"], "--cased=True: --extend keeps"),
        ([*TEXT, *EXTEND, "--sampling-alpha", "0.5"], "--sampling-alpha=0.5: --extend keeps"),
        ([*TEXT, *EXTEND, "--new-embeddings", "zero"], "'zero' is unknown"),
        ([*TEXT, "--add", "3"], "--add=3: needs --extend"),
        ([*TEXT, "--new-embeddings", "mean"], "--new-embeddings=mean: needs --extend"),
        (["--input", "text.txt", "--output", "model", *EXTEND], "model: exists. Name another"),
        (["--input", "text.txt", "--output", "text.txt", *EXTEND], "--output=text.txt: is a file"),
        (["--input", "one.txt", "--output", "new", *EXTEND], "--input: too few documents to hold"),
        (["--input", "none.txt", "--output", "new", *EXTEND], "too few documents"),
        (["--input", "lost.txt", "--output", "new", *EXTEND], "lost.txt"),
        ([*TEXT, *EXTEND, "--sample", "0%"], "--sample=0%: not in"),
    ],
)
def test_extend_rejects(arguments, message, refused, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = WordPieceTokenizer(sample_vocabulary(), cased=False)
    for name in ("model", "no_vocab", "sentencepiece"):
        write_hf(draw(tokenizer), tmp_path / name)
    for name in ("no_vocab", "sentencepiece"):
        for file in (tmp_path / name).glob("*o*.txt"), (tmp_path / name).glob("tokenizer*"):
            [path.unlink() for path in file]
    counts = {syllable * 2: 9 for syllable in SYLLABLES}
    content = sentencepiece_from_counts(counts, 40, kind="bpe", cased=False)
    (tmp_path / "sentencepiece" / "spm.model").write_bytes(content)
    (tmp_path / "empty").mkdir()
    text = sample_text(seed=3, documents=30)
    (tmp_path / "text.txt").write_text(text)
    (tmp_path / "one.txt").write_text(text.replace("\n\n", "\n"))
    (tmp_path / "none.txt").write_text("")
    before = {path: path.stat() for path in sorted(tmp_path.rglob("*"))}
    assert message in refused("vocab", "--workers", "0", *arguments)
    after = {path: path.stat() for path in sorted(tmp_path.rglob("*"))}
    assert [*before] == [*after]
    assert all(before[p].st_mtime_ns == after[p].st_mtime_ns for p in before if p.is_file())


@pytest.mark.seconds
def test_extend_records_model_text_and_tokens_per_word(extended, tmp_path) -> None:
    (change,) = read_model(extended / "new").history
    text = extended / "text.txt"
    start = f"vocabulary: 200 tokens added to {extended / 'old'} for {text}: "
    assert re.fullmatch(re.escape(start) + r"\d\.\d+ tokens per word before, \d\.\d+ after", change)
    convert(extended / "new", tmp_path / "copy", "hf", "hf")
    assert read_model(tmp_path / "copy").history == (change,)
    for name in (extended / "new", tmp_path / "copy"):
        assert f"## History\n\n1. {escape_markdown(change)}\n" in (name / "README.md").read_text()


def test_extend_writes_what_transformers_names(extended) -> None:
    files = {path.name for path in (extended / "new").iterdir()}
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files == names | {"vocab.txt", "README.md"}
    config = json.loads((extended / "new" / "config.json").read_text())
    assert (config["vocab_size"], config["architectures"]) == (2101, ["BertForPreTraining"])


@pytest.mark.seconds
@pytest.mark.parametrize("format_name", ["hf", "bertjax"])
def test_extend_keeps_the_length_at_which_training_cut_texts(format_name, tmp_path) -> None:
    letters = [*SPECIAL_TOKENS, *"abc", *(f"##{letter}" for letter in "abc")]
    model = draw(WordPieceTokenizer(letters, cased=False), "pooler", "sequence_classification")
    write_hf(dataclasses.replace(model, max_seq_length=16), tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "bertjax", "hf", "bertjax")
    documents = [["abc cab " * 5]] * 40
    source, output = tmp_path / format_name, tmp_path / "new"
    write_extended_model(source, output, lambda: iter(documents), "text", num_tokens=2)
    new = read_model(output)
    assert new.max_seq_length == 16
    assert new.tokenizer and {"abc", "cab"} <= {*new.tokenizer.tokens}


@pytest.fixture(scope="module", params=["hf", "bertjax"])
def embedding_model(request, tmp_path_factory) -> pathlib.Path:
    """A directory of sentence-transformers with a linear layer, or a checkpoint of embeddings."""
    path = tmp_path_factory.mktemp("embeddings")
    letters = [*SPECIAL_TOKENS, *"abc", *(f"##{letter}" for letter in "abc")]
    write_hf(draw(WordPieceTokenizer(letters, cased=False)), path / "hf")
    random = np.random.default_rng(0)
    projection = {"kernel": random.normal(size=(CONFIG.hidden_size, 8)), "bias": np.ones(8)}
    projection = {name: array.astype(np.float32) for name, array in projection.items()}
    pooling = PoolingConfig(epath.Path(path), "max", True, 16, query_prompt="a: ")
    write_modules(epath.Path(path / "hf"), pooling, CONFIG.hidden_size, projection)
    if request.param == "bertjax":
        model = read_embedding_model(path / "hf", "hf")
        _write(_Source(model, "", {}), epath.Path(path / "bertjax"), "bertjax")
    return path / request.param


@pytest.mark.seconds
def test_extend_keeps_pooling_prompts_and_projection_of_embeddings(
    embedding_model, tmp_path
) -> None:
    documents = [["abc cab " * 5]] * 40
    new = tmp_path / "new"
    write_extended_model(embedding_model, new, lambda: iter(documents), "text", num_tokens=2)
    before, after = (find_pooling_config(path) for path in (embedding_model, new))
    assert before and after == before._replace(model=new)
    assert (after.pooling, after.normalize, after.max_seq_length) == ("max", True, 16)
    assert (after.query_prompt, after.projection_size) == ("a: ", 8)
    old_embeddings, embeddings = (Model(path).encode(["a b"]) for path in (embedding_model, new))
    assert embeddings.shape == (1, 8) and np.array_equal(embeddings, old_embeddings)
    assert "SentenceTransformer" in (new / "README.md").read_text()


@pytest.mark.seconds
def test_commands_print_the_pooling_that_they_do_not_keep(
    embedding_model, tmp_path, capsys
) -> None:
    names = ("pooling=max", "normalize", "projection_size=8", "query_prompt='a: '")
    commands = {tmp_path / "program": ["export", "--to", "stablehlo", "--checkpoint"]}
    if find_format(embedding_model) == "hf":
        commands[tmp_path / "own"] = ["convert", "--to", "bertjax"]
    for output, command in commands.items():
        options = ["--output"] if command[0] == "export" else []
        assert main([*command, str(embedding_model), *options, str(output)]) == 0
        assert capsys.readouterr().out.endswith(
            f"{output} has no pooling configuration: give `bertjax embed` {embedding_model}. "
            f"Not kept: {', '.join(names)}.\n"
        )
