"""The command line: exit status, and one sentence for each thing that cannot be."""

import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest
from conftest import bertjax, sample_pieces, sample_text

from bertjax.cli.main import main
from bertjax.runs.train import Run
from bertjax.tasks import registry
from bertjax.training.config import load_config

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretrain.py"
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """The programs that JAX has compiled since the test began, as a list that grows."""
    found: list[str] = []

    def listen(event: str, *_: object, **__: object) -> None:
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def refused(capsys, compilations):
    """Runs a command and returns the sentence that it is refused with."""

    def run(*arguments: object) -> str:
        capsys.readouterr()  # what earlier commands said
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as stop:  # argparse's way
            status = stop.code
        error = capsys.readouterr().err
        assert status == 2, error
        assert not compilations
        lines = error.splitlines()
        assert len(lines) == 1 and lines[0].startswith("bertjax: "), error
        return lines[0].removeprefix("bertjax: ")

    return run


@pytest.fixture
def text(tmp_path) -> pathlib.Path:
    path = tmp_path / "text.txt"
    path.write_text(sample_text(seed=2, documents=40))
    return path


@pytest.fixture
def vocab(tmp_path) -> pathlib.Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(sample_pieces()) + "\n")
    return path


def train(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "data.workers": 1}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__vocab_size": 100}, r"128 pieces and model\.vocab_size=100: raise it"),
        ({"seq_len": 600}, r"seq_len=600 is more than model\.max_positions=512: shorten"),
        ({"data__mask_share": 0.9}, r"sum to 1\.1; make them sum to 1"),
        ({"batch_size": 12}, r"batch_size=12 does not divide over 8 devices .* multiple of 8"),
        ({"accumulation": 2}, r"batch_size=8 does not divide over 8 devices x accumulation=2"),
        ({"sede": 3}, r"sede is no field of the configuration: did you mean seed"),
        ({"model__num_heads": 3}, r"num_heads=3 does not divide hidden_size=64: choose"),
        ({"data__dir": "nowhere"}, r"nowhere does not exist.* run `bertjax prepare"),
        ({"init": "nowhere"}, r"there is no nowhere: give a workdir"),
        ({"optimizer__name": "sgd"}, r"'sgd' and must be one of adamw"),
        ({"mesh__data": 3}, r"mesh data=3, .* does not fit 8 devices"),
        ({"steps": "soon"}, r"steps='soon' is no duration: write"),
        ({"seq_len": "long"}, r"seq_len='long' is a str: it must be int"),
    ],
)
def test_training_that_cannot_be_is_refused(corpus, tmp_path, refused, overrides, message) -> None:
    workdir = tmp_path / "workdir"
    sentence = refused(*train(corpus, workdir, **overrides))
    assert re.search(message, sentence), sentence
    assert not workdir.exists()


def test_another_model_or_corpus_in_a_workdir_is_refused(corpus, tmp_path, refused, text, vocab):
    workdir = tmp_path / "workdir"
    given = {"model.vocab_size": "128", "data.workers": "1"}
    Run(load_config(f"{PRETRAIN}:smoke,data={corpus}", given, registry.data_fields()), workdir)
    assert "model.num_layers=2" in refused(*train(corpus, workdir, model__num_layers=3))
    other = tmp_path / "other"
    assert main(["prepare", "--input", str(text), "--vocab", str(vocab), "--output", str(other),
                 "--workers", "1", "--held-out", "0.1", "--shards", "8"]) == 0  # fmt: skip
    sentence = refused(*train(other, workdir))
    assert "another corpus" in sentence and "use another --workdir" in sentence


@pytest.mark.parametrize("damage", ["bit", "length", "missing", "manifest"])
def test_a_damaged_corpus_is_refused(corpus, tmp_path, refused, damage) -> None:
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
    sentence = refused(*train(copy, tmp_path / "workdir"))
    assert (shard.name if damage != "manifest" else "manifest.json") in sentence
    assert "prepare the corpus again" in sentence


def prepare(text: object, vocab: object, output: object, *flags: object) -> list[object]:
    return [
        "prepare",
        "--input",
        text,
        "--vocab",
        vocab,
        "--output",
        output,
        "--workers",
        1,
        *flags,
    ]


def test_text_that_cannot_be_is_refused(tmp_path, refused, vocab) -> None:
    output = tmp_path / "corpus"

    def sentence(content: bytes) -> str:
        path = tmp_path / "input.txt"
        path.write_bytes(content)
        return refused(*prepare(path, vocab, output))

    assert "nowhere.txt" in refused(*prepare(tmp_path / "nowhere.txt", vocab, output))
    assert "empty" in sentence(b"") or "no document" in sentence(b"")
    assert "one document" in sentence(b"ba do . \nki lu .\n")
    wrong = sentence(b"ba do .\n\nki \xff lu .\n")
    assert "input.txt" in wrong and "byte 12" in wrong and "UTF-8" in wrong
    assert not output.exists()


def test_a_vocabulary_that_cannot_be_is_refused(tmp_path, refused, text, vocab) -> None:
    output = tmp_path / "corpus"
    assert "nowhere.txt" in refused(*prepare(text, tmp_path / "nowhere.txt", output))
    assert "cased" in refused(*prepare(text, vocab, output, "--cased"))
    upper = tmp_path / "upper.txt"
    upper.write_text("\n".join([*sample_pieces()[:-1], "Ba"]) + "\n")
    sentence = refused(*prepare(text, upper, output))
    assert "Ba" in sentence and "cased" in sentence
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean train"),
        (["report", "nowhere"], "nowhere"),
        (
            ["score", "cmrc", "--data", "d", "--predictions", "p", "--null-odds", "o"],
            "leave --null-odds out",
        ),
        (["predict", "--checkpoint", "nowhere", "--input", "-", "--output", "-"], "nowhere"),
        (["train", "--workdir", "x"], "--config"),
        (["report", "x", "--config.seed=1"], "--config.seed=1 is no argument"),
        (["train", "--config", "x.py", "--workdir", "y", "--config.seed"], "has no value"),
        (["train", "--config", "nowhere.py", "--workdir", "x"], "nowhere.py: no such"),
    ],
)
def test_a_command_that_cannot_be_is_refused(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)


def test_inspect_shows_masks_and_saves_batches(corpus, tmp_path, capsys) -> None:
    config = ["--config", f"{PRETRAIN}:smoke,data={corpus}", "--config.model.vocab_size=128"]
    assert main(["inspect", *config, "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "[CLS]" in shown and "[MASK]" in shown
    path = tmp_path / "batches.npz"
    assert main(["inspect", *config, "--steps", "3", "--start", "5", "--save", str(path)]) == 0
    arrays = np.load(path)
    assert arrays["token_ids"].shape == (3, 8, 32)
    assert main(["inspect", *config, "--params"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[-1].split()[0] == "total" and "encoder/embeddings/word" in "".join(table)


@pytest.mark.slow
def test_the_whole_way_from_text_to_filled_masks(tmp_path, text) -> None:
    """Every verb in a process of its own, as a user types them."""

    def run(*arguments: object, **options: object) -> str:
        done = bertjax(*arguments, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("vocab", "--input", text, "--size", 90, "--output", "vocab.txt")
    run("prepare", "--input", text, "--vocab", "vocab.txt", "--output", "corpus",
        "--workers", 2, "--held-out", 0.1)  # fmt: skip
    config = ["--config", f"{PRETRAIN}:smoke,data=corpus", "--config.model.vocab_size=90"]
    run("train", *config, "--workdir", "run")
    scores = json.loads(run("evaluate", *config, "--checkpoint", "run", "--output", "scores"))
    assert scores == json.loads((tmp_path / "scores" / "scores.json").read_text())
    answer = json.loads(
        run("predict", "--checkpoint", "run", "--input", "-", "--output", "-", input="ba [MASK] .")
    )
    assert len(answer["masks"]) == 1
    assert run("report", "run").strip().endswith(".html")
