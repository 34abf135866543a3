"""Invalid configurations, data and paths: one line that names the value, before compilation."""

import json
import os
import pathlib
import re
import resource
import shutil
import time

import pytest
from conftest import sample_text, sample_vocabulary
from etils import epath
from toy_tasks import EXPERIMENTS

from bertjax.cli.main import main
from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.training.setup import make_trainer
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.workdir import claim_workdir
from data_pipelines.vocabulary.tokenization import load_tokenizer

PRETRAIN = EXPERIMENTS / "pretraining.py"
EXPORT = ["export", "--checkpoint", "x", "--to", "onnx", "--output", "y"]
PREPARE = ["prepare", "--input", "x", "--vocab", "x", "--output", "y"]
SMOKE = ["--config", f"{PRETRAIN}:smoke"]
TEXT = ["--input", "text.txt"]


@pytest.fixture
def text(tmp_path) -> pathlib.Path:
    path = tmp_path / "text.txt"
    path.write_text(sample_text(seed=2, documents=40))
    return path


@pytest.fixture
def vocab(tmp_path) -> pathlib.Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(sample_vocabulary()) + "\n")
    return path


def train(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "data.workers": 1}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__vocab_size": 100},
            r"vocab_size=100: the vocabulary of .* has 128 tokens\. Raise it",
        ),
        (
            {"max_seq_length": 600},
            r"max_seq_length=600: is more than model\.max_position_embeddings=512\. Reduce",
        ),
        ({"data__mask_replace_prob": 0.95}, r"sum 1\.05 above 1\. Make the sum at most 1"),
        ({"batch_size": 12}, r"batch_size=12: does not divide over 8 devices .* multiple of 8"),
        (
            {"gradient_accumulation_steps": 2},
            r"batch_size=8: does not divide over 8 devices x gradient_accumulation_steps=2",
        ),
        ({"sede": 3}, r"sede=3: there is no such field\. Did you mean seed"),
        (
            {"model__num_attention_heads": 3},
            r"num_attention_heads=3: does not divide hidden_size=64\. Use",
        ),
        ({"data__dir": "nowhere"}, r"nowhere: does not exist\. .* `bertjax prepare"),
        ({"init": "nowhere"}, r"nowhere: does not exist\. Give a workdir"),
        ({"optimizer__name": "sgd"}, r"'sgd': is unknown\. Use one of adamw"),
        ({"mesh__data": 3}, r"mesh: data=3, .* does not fit 8 devices"),
        ({"steps": "soon"}, r"steps='soon': not a duration. Use"),
        ({"max_seq_length": "long"}, r"max_seq_length='long': is of type str\. Use int"),
    ],
)
def test_train_rejects_invalid_configurations(
    corpus, tmp_path, refused, overrides, message
) -> None:
    workdir = tmp_path / "workdir"
    error = refused(*train(corpus, workdir, **overrides))
    assert re.search(message, error), error
    assert not workdir.exists()


@pytest.mark.seconds
def test_train_rejects_another_model_or_corpus_in_a_workdir(corpus, tmp_path, refused, text, vocab):
    workdir = tmp_path / "workdir"
    fields = {"model.vocab_size": "128", "data.workers": "1"}
    config = load_config(f"{PRETRAIN}:smoke,data={corpus}", fields, registry.data_fields())
    trainer = make_trainer(config, workdir)
    with (
        WorkdirLock(epath.Path(workdir)) as lock,
        claim_workdir(lock, trainer.config, trainer.task),
    ):
        pass
    assert "model.num_hidden_layers=2" in refused(
        *train(corpus, workdir, model__num_hidden_layers=3)
    )
    other = tmp_path / "other"
    options = "--eval-fraction", 0.1, "--num-shards", 8
    assert main([*map(str, prepare(text, vocab, other, *options))]) == 0
    error = refused(*train(other, workdir))
    assert "a run on other data" in error and "Use another --workdir" in error


@pytest.mark.parametrize("damage", ["bit", "length", "missing", "manifest"])
def test_train_rejects_a_damaged_corpus(corpus, tmp_path, refused, damage) -> None:
    copy = tmp_path / "corpus"
    shutil.copytree(corpus, copy)
    shard = sorted(copy.glob("train-*"))[3]
    content = bytearray(shard.read_bytes())
    if damage == "bit":
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
    elif damage == "length":
        shard.write_bytes(content[:-2])
    elif damage == "missing":
        shard.unlink()
    else:
        (copy / "manifest.json").write_text("{")
    error = refused(*train(copy, tmp_path / "workdir"))
    assert (shard.name if damage != "manifest" else "manifest.json") in error
    assert "Prepare the corpus again." in error


def prepare(text: object, vocab: object, output: object, *flags: object) -> list[object]:
    paths = "--input", text, "--vocab", vocab, "--output", output
    return ["prepare", *paths, "--workers", 1, *flags]


def test_prepare_rejects_invalid_text(tmp_path, refused, vocab) -> None:
    output = tmp_path / "corpus"

    def error(content: bytes) -> str:
        path = tmp_path / "input.txt"
        path.write_bytes(content)
        return refused(*prepare(path, vocab, output))

    assert "nowhere.txt" in refused(*prepare(tmp_path / "nowhere.txt", vocab, output))
    assert "documents=0: a random next sentence needs another document" in error(b"")
    assert "documents=1: " in error(b"ba do . \nki lu .\n")
    not_utf8 = error(b"ba do .\n\nki \xff lu .\n")
    assert "input.txt" in not_utf8 and "byte 12" in not_utf8 and "UTF-8" in not_utf8
    assert not output.exists()


@pytest.fixture
def cased_vocab(tmp_path) -> pathlib.Path:
    path = tmp_path / "cased.txt"
    path.write_text("\n".join([*sample_vocabulary()[:-1], "Ba"]) + "\n")
    return path


def test_prepare_keeps_case_as_the_vocabulary(tmp_path, text, cased_vocab) -> None:
    assert main([*map(str, prepare(text, cased_vocab, tmp_path / "corpus"))]) == 0
    assert load_tokenizer(tmp_path / "corpus").cased


@pytest.mark.parametrize("name", [".", "folder/.."])
def test_prepare_rejects_an_output_without_a_name(
    tmp_path, monkeypatch, refused, text, vocab, name
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    error = refused(*prepare(text, vocab, name))
    assert error.endswith(f"{name}: not the name of a new directory. Choose one, such as corpus.")
    assert sorted(os.listdir()) == ["folder", "text.txt", "vocab.txt"]


def test_prepare_rejects_a_directory_with_several_splits(tmp_path, refused, text, vocab) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        shutil.copy(text, tmp_path / "data" / f"{split}-00000-of-00001.txt")
    error = refused(*prepare(tmp_path / "data", vocab, tmp_path / "corpus"))
    assert f"such as --input '{tmp_path}/data/train*'; for both, also" in error
    assert f"'{tmp_path}/data/validation*'." in error


def test_prepare_rejects_unsuitable_vocabularies(
    tmp_path, refused, text, vocab, cased_vocab
) -> None:
    output = tmp_path / "corpus"
    assert "nowhere.txt" in refused(*prepare(text, tmp_path / "nowhere.txt", output))
    assert "cased" in refused(*prepare(text, vocab, output, "--cased"))
    error = refused(*prepare(text, cased_vocab, output, "--no-cased"))
    assert "Ba" in error and "cased" in error
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean train"),
        (["report", "nowhere"], "nowhere"),
        (
            ["score", "cmrc", "--data", "d", "--predictions", "p", "--null-odds", "o"],
            "--null-odds: every question of CMRC and KorQuAD has an answer",
        ),
        (["predict", "--checkpoint", "nowhere", "--input", "-", "--output", "-"], "nowhere"),
        (["train", "--workdir", "x"], "--config"),
        (["report", "x", "--config.seed=1"], "--config.seed=1: unknown argument. See --help"),
        (
            ["train", "--config", "x.py", "--workdir", "y", "--config.seed"],
            "--config.seed: no value. Write",
        ),
        (["train", "--config", "nowhere.py", "--workdir", "x"], "nowhere.py: no such file"),
        (["inspect", *SMOKE, "--start", "-1"], "--start=-1: not a step"),
        (["inspect", *SMOKE, "--sequences", "0"], "--sequences=0: below 1"),
        (["inspect", *SMOKE, "--steps", "0"], "--steps=0: below 1. Give at least 1"),
        (["inspect", *SMOKE, "--steps", "-3"], "--steps=-3: below 1"),
        (
            ["inspect", *SMOKE, "--num-processes", "2", "--process-id", "2"],
            "--process-id=2: not below --num-processes=2. Count from 0",
        ),
        (["inspect", *SMOKE, "--params", "--output", "b.npz"], "--output: is about batches, not"),
        (["inspect", *SMOKE, "--output", "b.npz", "--sequences", "2"], "--output has all of them"),
        (
            [*EXPORT, "--min-agreement", "0.9"],
            "--min-agreement=0.9: is of --int8. Give FILE to it",
        ),
        (
            ["predict", "--checkpoint", "x", *SMOKE, "--save-logits", "l", "--return-all-scores"],
            "--output, --return-all-scores: are of predictions, not of --save-logits",
        ),
        (
            [*PREPARE, "--runner", "DirectRunner", "--workers", "8"],
            "--workers=8: --runner has its own. Leave it out",
        ),
        (["predict", "--checkpoint", "x", "--text", " "], "--text: empty. Write a text"),
        (
            ["predict", "--checkpoint", "x", "--field", "text=a", "--field", "text=b"],
            "--field=text=b: text has a value already. Give each key once",
        ),
        (
            ["predict", "--checkpoint", "x", "--input", "a.txt", "--output", "./a.txt"],
            "--output=./a.txt: is the input, which would be lost. Name another",
        ),
    ],
)
def test_main_rejects_invalid_arguments(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "--checkpoint", "c", "--input", "lost"], "lost: no such file"),
        (["predict", "--checkpoint", "c", "--input", "folder"], "folder: a directory"),
        (["predict", "--checkpoint", "c", *TEXT, "--output", "folder"], "folder: is a directory"),
        (
            ["predict", "--checkpoint", "c", *TEXT, "--output", "lost/x"],
            "lost/x: lost is not a directory",
        ),
        (["predict", "--checkpoint", "text.txt", *TEXT], "text.txt: not a model. Give a directory"),
        (["score", "squad", "--data", "lost", "--predictions", "p"], "lost: no such file"),
        (["score", "cmrc", "--data", "folder", "--predictions", "p"], "folder: a directory"),
        (["train", *SMOKE, "--workdir", "text.txt"], "--workdir=text.txt: is a file"),
        (
            ["train", *SMOKE, "--workdir", "text.txt/run"],
            "--workdir=text.txt/run: text.txt is a file",
        ),
        (["train", "--config", "folder", "--workdir", "x"], "folder: a directory"),
        (
            ["evaluate", *SMOKE, "--checkpoint", "c", "--output", "text.txt"],
            "--output=text.txt: is a file",
        ),
        (["inspect", *SMOKE, "--output", "lost/x.npz"], "lost/x.npz: lost is not a directory"),
        (
            ["preflight", *SMOKE, "--topology", "cpu:1", "--json", "folder"],
            "folder: is a directory",
        ),
        (["vocab", *TEXT, "--output", "text.txt"], "--output=text.txt: exists. Name another file"),
        (
            ["predict", "--checkpoint", "x", "--text", "a", "--output", "/dev/null"],
            "/dev/null: not a regular file",
        ),
        (
            ["predict", "--checkpoint", "c", *TEXT, "--output", "/proc/x"],
            "/proc/x: no files can be created in /proc",
        ),
        (["convert", "--to", "hf", "folder", "/sys/x"], "/sys: no files can be created in /sys"),
        (["vocab", *TEXT, "--output", "text.txt/vocab.txt"], "--output=text.txt: is a file"),
        (
            ["vocab", *TEXT, "*.txt", "--sampling-alpha", "0.7", "--output", "vocab.txt"],
            "text.txt: more than once in the inputs",
        ),
        (
            ["vocab", "--input", "*.txt", "--sampling-alpha", "0.7", "--output", "vocab.txt"],
            "--sampling-alpha=0.7: one --input has one fraction",
        ),
        (
            ["prepare", *TEXT, "--vocab", "lost", "--output", "text.txt/x"],
            "--output=text.txt/x: text.txt is a file",
        ),
        (
            ["prepare", *TEXT, "--vocab", "v", "--output", "x", "--workers", "-3"],
            "-3 is less than 0",
        ),
        (
            ["prepare", *TEXT, "--vocab", "lost", "--output", "x"],
            "lost: does not exist. Name a vocabulary",
        ),
        (["convert", "--to", "hf", "folder", "text.txt/x"], "DST=text.txt: is a file"),
        (["convert", "--to", "hf", "text.txt", "x"], "text.txt: not a model. Give a directory"),
        (["report", "folder"], "folder/metrics.jsonl: the file does not exist"),
    ],
)
def test_main_names_unusable_paths(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("ba do .\n")
    assert message in refused(*arguments)
    assert sorted(os.listdir()) == ["folder", "text.txt"] and not os.listdir("folder")


@pytest.mark.seconds
def test_evaluate_keeps_scores_of_another_evaluation(refused, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in ("a/checkpoints", "b/checkpoints", "other"):
        (tmp_path / directory).mkdir(parents=True)
    config = load_config(f"{PRETRAIN}:smoke", {}, registry.data_fields())
    command = ["evaluate", *SMOKE, "--output", tmp_path, "--checkpoint"]
    record = tmp_path / "evaluation.json"
    record.write_text(json.dumps({"checkpoints": ["a/"], "config": config.to_dict()}))
    for arguments, message in [
        (["b"], f"--output={tmp_path}: holds the scores of a/. Name another"),
        (["a", "b"], "holds the scores of a/"),
        (["a", "--config.max_seq_length=24"], "holds scores for max_seq_length=32, not 24"),
        (["a", "--config.data.dir=other"], "holds scores for data.dir='', not 'other'"),
        (["a"], "a: is neither a checkpoint nor"),  # the same evaluation again
        (["a", "--config.log_every=7"], "a: is neither a checkpoint nor"),
    ]:
        assert message in refused(*command, *arguments)
    for content in (b"{", b"{}", b"[]", b"\xff"):  # an incomplete record protects nothing
        record.write_bytes(content)
        assert "b: is neither a checkpoint nor" in refused(*command, "b")


def test_score_rejects_deeply_nested_json(tmp_path, refused) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    paths = "--data", tmp_path / "deep.json", "--predictions", tmp_path / "deep.json"
    assert "deep.json:1: not JSON (column 1: it is nested" in refused("score", "squad", *paths)


HUGE = (99_999_999, 10**15)


@pytest.mark.parametrize("number", HUGE)
@pytest.mark.parametrize(
    "words",
    [
        ["preflight", *SMOKE, "--topology", "cpu:N"],
        ["preflight", *SMOKE, "--topology", "v5e:NxN"],
        ["preflight", *SMOKE, "--topology", "v5p:NxNxN"],
        ["preflight", *SMOKE, "--topology", "h100:N"],
        ["preflight", *SMOKE, "--topology", "h100:Nx8"],
        ["preflight", *SMOKE, "--topology", "cpu:8", "--parallel-runs", "N"],
        ["train", *SMOKE, "--workdir", "new", "--config.mesh.data=N"],
        ["train", *SMOKE, "--workdir", "new", "--config.mesh.fsdp=N"],
        ["train", *SMOKE, "--workdir", "new", "--config.mesh.tensor=N"],
        ["train", *SMOKE, "--workdir", "new", "--config.data.workers=N"],
        ["train", *SMOKE, "--workdir", "new", "--num-processes", "N", "--process-id", "0"],
        ["sweep", *SMOKE, "--workdir", "new", "--seeds", "N"],
        ["sweep", *SMOKE, "--workdir", "new", "--runs-per-device", "N"],
        ["inspect", *SMOKE, "--num-processes", "N"],
        ["inspect", *SMOKE, "--steps", "N"],
        ["inspect", *SMOKE, "--start", "N"],
        ["vocab", *TEXT, "--output", "new", "--vocab-size", "N"],
        ["vocab", *TEXT, "--output", "new", "--workers", "N"],
        ["prepare", *TEXT, "--vocab", "vocab.txt", "--output", "new", "--num-shards", "N"],
        ["prepare", *TEXT, "--vocab", "vocab.txt", "--output", "new", "--workers", "N"],
    ],
    ids=lambda words: f"{words[0]} {words[-2]} {words[-1]}",
)
def test_huge_numbers_are_rejected_before_memory_is_allocated(
    corpus, tmp_path, monkeypatch, refused, text, vocab, words, number
) -> None:
    monkeypatch.chdir(tmp_path)
    smoke = f"{PRETRAIN}:smoke,data={corpus}"
    words = [smoke if word == SMOKE[1] else word.replace("N", str(number)) for word in words]
    words += ["--config.model.vocab_size=128"] * (smoke in words)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    error = refused(*words)
    assert str(number)[:8] in error.replace(",", ""), error
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10, error
    assert time.process_time() - start < 5, error
    assert not (tmp_path / "new").exists()
