"""The command line: exit status, and one sentence for each thing that cannot be."""

import argparse
import contextlib
import errno
import gzip
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest
from conftest import LONG, bertjax, process_environment, sample_text, sample_vocabulary

from bertjax.cli import report, termination
from bertjax.cli.files import check_directory, open_output, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache
from bertjax.cli.main import _parser, find_subcommands, main
from bertjax.config.config_file import builtin_configs
from bertjax.config.loading import load_config
from bertjax.errors import RunError
from bertjax.tasks import registry
from bertjax.training.metrics_file import read_metrics
from bertjax.training.setup import make_trainer
from bertjax.workdir.workdir import claim_workdir
from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import atomic_write
from data_pipelines.vocabulary.tokenization import load_tokenizer

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"


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


@pytest.mark.parametrize("subcommand", find_subcommands())
def test_example_parses(subcommand: str) -> None:
    file = find_subcommands()[subcommand]
    program, *arguments = shlex.split(file.EXAMPLE)
    args, rest = _parser().parse_known_args(arguments)
    assert (program, arguments[0], rest, args.run) == ("bertjax", subcommand, [], file.run)


@pytest.mark.parametrize("subcommand", find_subcommands())
def test_options_have_help_and_default(subcommand: str) -> None:
    (subcommands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = subcommands.choices[subcommand]
    needed = [a for group in parser._mutually_exclusive_groups for a in group._group_actions]
    for action in parser._actions:
        said = (action.help or "").replace("%(default)s", str(action.default))
        meaning, default = re.fullmatch(r"(.*?)(?: \(([^()]+)\))?", said).groups()
        name = action.option_strings or action.dest
        assert meaning.count(" "), f"{name}: {said!r} says no meaning"
        if not (action.required or action in needed or action.nargs == 0):
            assert default, f"{name}: {said!r} does not end with its default in brackets"
            assert action.default in (None, "", []) or default == str(action.default), name


def test_repeated_options_add_up() -> None:
    read = _parser().parse_args
    given = read(["prepare", "--input", "a", "b", "--input", "c", "--vocab", "v", "--output", "o"])
    assert given.input == ["a", "b", "c"]
    assert read(["predict", "--checkpoint", "x", "--text", "a", "--text", "b"]).text == ["a", "b"]


def test_subcommands_are_listed_in_order() -> None:
    life = ["vocab", "prepare", "inspect", "preflight", "train", "evaluate", "predict", "convert"]
    subcommands = find_subcommands()
    assert [subcommand for subcommand in subcommands if subcommand in life] == life
    assert len({file.ORDER for file in subcommands.values()}) == len(subcommands)


def test_main_without_subcommand_prints_help(capsys) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert all(
        re.search(rf"^    {subcommand}\b", told, re.MULTILINE) for subcommand in find_subcommands()
    )
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == "bertjax 0.1.0\n"


def test_config_lists_prints_and_copies(capsys, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["config"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert listed.keys() == builtin_configs().keys()
    for name, file in builtin_configs().items():
        assert main(["config", name]) == 0
        assert capsys.readouterr().out == file.read_text()
        assert file.read_text().startswith(f'"""{listed[name]}\n')
    assert main(["config", "glue", "--output", "mine.py"]) == 0
    assert (tmp_path / "mine.py").read_text() == builtin_configs()["glue"].read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gleu"], "--config=gleu: there is no such configuration. Did you mean glue?"),
        (["--output", "mine.py"], "--output=mine.py: copies one configuration. Give its NAME"),
        (["glue", "--output", "mine.txt"], "--output=mine.txt: not a Python file"),
        (["glue", "--output", "here.py"], "--output=here.py: exists. Name another file"),
        (["glue", "--fields"], "--fields: lists all tasks. Leave glue out"),
    ],
)
def test_config_rejects_invalid_copies(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("before")
    assert message in refused("config", *arguments)
    assert os.listdir() == ["here.py"] and (tmp_path / "here.py").read_text() == "before"


def test_main_ends_silently_on_a_closed_pipe(tmp_path) -> None:
    given = "score", "squad", "--data", tmp_path / "no.json", "--predictions", tmp_path / "no.json"
    program = (
        "import sys, bertjax.cli.score as subcommand; from bertjax.cli.main import main;"
        "subcommand.run = lambda args: [print('x' * 999) for _ in range(9999)]; sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, given)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=process_environment(),
    )
    assert process.stdout and process.stderr
    process.stdout.readline()
    process.stdout.close()
    assert (process.stderr.read(), process.wait()) == (b"", 141)


def python(program: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_help_imports_nothing_slow() -> None:
    done = python(
        "import sys; from bertjax.cli.main import main\n"
        "try: main(['train', '--help'])\n"
        "finally: print([name for name in ('jax', 'numpy', 'tensorflow') if name in sys.modules])"
    )
    assert done.stdout.startswith("usage: bertjax train") and done.stdout.endswith("[]\n")


@pytest.mark.parametrize("error", ["ValueError", "KeyError", "FileNotFoundError", "TypeError"])
def test_main_keeps_tracebacks_of_faults(error: str) -> None:
    done = python(
        "import sys; from bertjax.cli import main, report\n"
        f"def run(args): raise {error}('by mistake')\n"
        "report.run = run\n"
        "sys.exit(main.main(['report', 'x']))"
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and f"{error}: " in done.stderr.splitlines()[-1]


class _Interrupted(RunError):
    status = 75


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("mend it"), 2),
        (RunError("mend it"), 1),
        (_Interrupted("mend it"), 75),
        (OSError(errno.ENOSPC, "mend it"), 1),
        (PermissionError(errno.EACCES, "mend it"), 1),
        (ConnectionResetError("mend it"), 1),
    ],
    ids=repr,
)
def test_main_reports_user_and_machine_errors_in_one_line(
    error: Exception, status: int, monkeypatch, capsys
) -> None:
    def run(args: object) -> None:
        raise error

    monkeypatch.setattr(report, "run", run)
    assert main(["report", "x"]) == status
    said = capsys.readouterr().err
    assert said.startswith("bertjax: ") and "mend it" in said and said.count("\n") == 1


def train(corpus: pathlib.Path, workdir: pathlib.Path, **overrides: object) -> list[object]:
    fields = {"model.vocab_size": 128, "data.workers": 1}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    flags = [f"--config.{name}={value}" for name, value in fields.items()]
    return ["train", "--config", f"{PRETRAIN}:smoke,data={corpus}", "--workdir", workdir, *flags]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model__vocab_size": 100}, r"128 pieces and model\.vocab_size=100: raise it"),
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
        ({"data__dir": "nowhere"}, r"nowhere does not exist.* run `bertjax prepare"),
        ({"init": "nowhere"}, r"there is no nowhere: give a workdir"),
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
    sentence = refused(*train(corpus, workdir, **overrides))
    assert re.search(message, sentence), sentence
    assert not workdir.exists()


def test_train_rejects_another_model_or_corpus_in_a_workdir(corpus, tmp_path, refused, text, vocab):
    workdir = tmp_path / "workdir"
    given = {"model.vocab_size": "128", "data.workers": "1"}
    config = load_config(f"{PRETRAIN}:smoke,data={corpus}", given, registry.data_fields())
    run = make_trainer(config, workdir)
    claim_workdir(workdir, run.config, run.task)
    assert "model.num_hidden_layers=2" in refused(
        *train(corpus, workdir, model__num_hidden_layers=3)
    )
    other = tmp_path / "other"
    assert main(["prepare", "--input", str(text), "--vocab", str(vocab), "--output", str(other),
                 "--workers", "1", "--eval-fraction", "0.1", "--num-shards", "8"]) == 0  # fmt: skip
    sentence = refused(*train(other, workdir))
    assert "a run on other data" in sentence and "Use another --workdir" in sentence


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


def test_prepare_rejects_invalid_text(tmp_path, refused, vocab) -> None:
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


def test_prepare_keeps_case_as_the_vocabulary(tmp_path, text) -> None:
    upper = tmp_path / "upper.txt"
    upper.write_text("\n".join([*sample_vocabulary()[:-1], "Ba"]) + "\n")
    assert main([*map(str, prepare(text, upper, tmp_path / "corpus"))]) == 0
    assert load_tokenizer(tmp_path / "corpus").cased


def test_vocab_rejects_invalid_arguments(tmp_path, refused, text, vocab) -> None:
    output = tmp_path / "corpus"
    assert "nowhere.txt" in refused(*prepare(text, tmp_path / "nowhere.txt", output))
    assert "cased" in refused(*prepare(text, vocab, output, "--cased"))
    upper = tmp_path / "upper.txt"
    upper.write_text("\n".join([*sample_vocabulary()[:-1], "Ba"]) + "\n")
    sentence = refused(*prepare(text, upper, output, "--no-cased"))
    assert "Ba" in sentence and "cased" in sentence
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "did you mean train"),
        (["report", "nowhere"], "nowhere"),
        (
            ["score", "cmrc", "--data", "d", "--predictions", "p", "--null-odds", "o"],
            "--null-odds: every question of CMRC has an answer",
        ),
        (["predict", "--checkpoint", "nowhere", "--input", "-", "--output", "-"], "nowhere"),
        (["train", "--workdir", "x"], "--config"),
        (["report", "x", "--config.seed=1"], "--config.seed=1: unknown argument. See --help"),
        (
            ["train", "--config", "x.py", "--workdir", "y", "--config.seed"],
            "--config.seed: no value. Write",
        ),
        (["train", "--config", "nowhere.py", "--workdir", "x"], "nowhere.py: no such file"),
        (["inspect", "--config", f"{PRETRAIN}:smoke", "--start", "-1"], "--start=-1: not a step"),
        (
            ["inspect", "--config", f"{PRETRAIN}:smoke", "--sequences", "0"],
            "--sequences=0: below 1",
        ),
        (
            [
                "inspect",
                "--config",
                f"{PRETRAIN}:smoke",
                "--num-processes",
                "2",
                "--process-id",
                "2",
            ],
            "--process-id=2: not below --num-processes=2. Count from 0",
        ),
        (["predict", "--checkpoint", "x", "--text", " "], "--text: empty. Write a text"),
        (
            ["predict", "--checkpoint", "x", "--input", "a.txt", "--output", "./a.txt"],
            "--output=./a.txt: is the input, which would be lost. Name another",
        ),
    ],
)
def test_main_rejects_invalid_arguments(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)


SMOKE = ["--config", f"{PRETRAIN}:smoke"]
TEXT = ["--input", "text.txt"]


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
        (["predict", "--checkpoint", "text.txt", *TEXT], "text.txt is no model"),
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
            "text.txt: 2 times in the inputs",
        ),
        (
            ["prepare", *TEXT, "--vocab", "lost", "--output", "text.txt/x"],
            "--output=text.txt/x: text.txt is a file",
        ),
        (
            ["prepare", *TEXT, "--vocab", "v", "--output", "x", "--workers", "-3"],
            "-3 is less than 0",
        ),
        (["prepare", *TEXT, "--vocab", "lost", "--output", "x"], "lost: no such vocabulary"),
        (["convert", "--to", "hf", "folder", "text.txt/x"], "DST=text.txt: is a file"),
        (["convert", "--to", "hf", "text.txt", "x"], "text.txt is no model"),
        (["report", "text.txt"], "text.txt/metrics.jsonl does not exist"),
    ],
)
def test_main_names_unusable_paths(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("ba do .\n")
    assert message in refused(*arguments)
    assert sorted(os.listdir()) == ["folder", "text.txt"] and not os.listdir("folder")


def test_evaluate_keeps_scores_of_another_evaluation(refused, tmp_path) -> None:
    config = load_config(f"{PRETRAIN}:smoke", {}, registry.data_fields())
    command = ["evaluate", *SMOKE, "--output", tmp_path, "--checkpoint"]
    about = tmp_path / "evaluation.json"
    about.write_text(json.dumps({"checkpoints": ["a/"], "config": config.to_dict()}))
    for arguments, complaint in [
        (["b"], f"--output={tmp_path}: holds the scores of a/. Name another"),
        (["a", "b"], "holds the scores of a/"),
        (
            ["a", "--config.max_seq_length=24"],
            "holds scores for max_seq_length=32, not 24",
        ),
        (["a", "--config.data.dir=other"], "holds scores for data.dir='', not 'other'"),
        (["a"], "there is no a"),  # the same evaluation again
        (["a", "--config.log_every=7"], "there is no a"),
    ]:
        assert complaint in refused(*command, *arguments)
    for content in (b"{", b"{}", b"[]", b"\xff"):  # of one that is not whole, nothing is lost
        about.write_bytes(content)
        assert "there is no b" in refused(*command, "b")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_read_lines_drops_a_byte_order_mark(mark: str, tmp_path) -> None:
    (tmp_path / "text.txt").write_text(f"{mark}ba\ndo\n")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(f"{mark}ba\ndo\n".encode()))
    for name in ("text.txt", "text.txt.gz"):
        assert list(read_lines(str(tmp_path / name))) == ["ba\n", "do\n"]
    assert parse_json(f'{mark}{{"ba": 1}}') == {"ba": 1}


def test_score_rejects_deeply_nested_json(tmp_path, refused) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    given = "--data", tmp_path / "deep.json", "--predictions", tmp_path / "deep.json"
    assert "deep.json:1: not JSON (column 1: it is nested" in refused("score", "squad", *given)


def test_main_reports_a_closed_stdout(tmp_path) -> None:
    program = (
        "import os; os.close(1); import sys; sys.stdout = None; import bertjax.cli.report as subcommand;"
        "from bertjax.cli.main import main; subcommand.run = lambda args: print('x');"
        "status = main(['report', 'x']); os.fstat(1); sys.exit(status)"
    )
    done = python(program)
    assert done.returncode == 1
    assert done.stderr.startswith("bertjax: standard output is closed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_during_start_exits_with_restart(number) -> None:
    command = [sys.executable, "-m", "bertjax", "inspect", "--params", *SMOKE]
    for seconds in (0.5, 1.0, 1.5):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, env=process_environment())
        time.sleep(seconds)
        process.send_signal(number)
        _, said = process.communicate()
        # Python itself may not have, or may have been at its own first module.
        begun = process.returncode != -number and b"init_import_site" not in said
        assert not begun or process.returncode in (0, 75)
        assert b"Traceback" not in said or not begun


def test_signal_ends_an_unresponsive_command(monkeypatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(termination, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(termination, "exit_stopped", ended.set)
    with termination.handle_signals() as stopped:
        with contextlib.suppress(KeyboardInterrupt):  # as a callback of C does
            signal.raise_signal(signal.SIGTERM)
        assert stopped.is_set() and ended.wait(LONG)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_signal_ends_a_command_inside_c_code() -> None:
    program = (
        "import hashlib, sys; from bertjax.cli import stopping; termination._SECONDS = 0.1\n"
        "with termination.stoppable():\n"
        "    try:\n"
        "        print('begun', flush=True)\n"
        "        hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)\n"  # minutes in C
        "    except KeyboardInterrupt:\n"  # the signal was sooner
        "        sys.exit(termination.report_stopped())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout and process.stdout.readline() == b"begun\n"
    process.terminate()
    _, said = process.communicate(timeout=LONG)
    assert process.returncode == 75 and b"run the same command again" in said


def test_full_disk_keeps_the_old_file_and_is_named(tmp_path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(OSError, match=r"No space left.*page\.html"), atomic_write(path) as draft:
        draft.write_text("<html>")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["page.html"]


def test_check_directory_follows_links_and_rejects_dangling_ones(tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(InputError, match="link: dangling link"):
        check_directory(tmp_path / "link" / "run", "--workdir")
    (tmp_path / "there").mkdir()
    check_directory(tmp_path / "link" / "run", "--workdir")


def test_read_lines_rejects_binary_input(tmp_path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ba\n\xff\n")
    with pytest.raises(InputError, match=r"text\.txt: byte 3 is not UTF-8. Convert it"):
        list(read_lines(str(tmp_path / "text.txt")))


def test_open_output_replaces_nothing_on_failure(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(KeyError), open_output(str(path)) as sink:
        sink.write("after")
        raise KeyError
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `tpu`")
def test_missing_tpu_logs_nothing() -> None:
    done = bertjax("inspect", "--params", *SMOKE)
    assert done.returncode == 0 and done.stderr == ""


@pytest.fixture
def unset():
    """Where compiled programs are kept is not said, whatever the environment says."""
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.parametrize(
    ("workdir", "hosts", "place"),
    [
        (None, 1, "CACHE/bertjax/compiled"),
        ("run", 1, "CACHE/bertjax/compiled"),
        ("gs://bucket/run", 1, "gs://bucket/run/compiled"),
        ("gs://bucket/run", 16, "gs://bucket/run/compiled"),
        ("run", 16, "run/compiled"),
        (None, 16, None),
    ],
)
def test_compilation_cache_is_visible_to_all_processes(
    workdir: str | None, hosts: int, place: str | None, unset, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "process_count", lambda: hosts)
    before = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    enable_compilation_cache(workdir)
    jax.config.update("jax_persistent_cache_enable_xla_caches", before)
    expected = place and place.replace("CACHE", str(tmp_path))
    assert jax.config.values["jax_compilation_cache_dir"] == expected


def test_compilation_cache_is_off_without_a_writable_directory(
    unset, tmp_path, monkeypatch
) -> None:
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", pathlib.Path("relative")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        enable_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] is None


@pytest.mark.slow
def test_cached_program_gives_the_same_results(corpus, tmp_path) -> None:
    environment = process_environment() | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"  # however busy the machine is
    del environment["JAX_COMPILATION_CACHE_DIR"]
    kept, losses = [], []
    for run in ("first", "second"):
        arguments = train(corpus, tmp_path / run, steps=3, log_every=1, model__num_hidden_layers=1)
        command = [sys.executable, "-m", "bertjax", *map(str, arguments)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        kept.append(sorted(path.name for path in (tmp_path / "cache").rglob("*-cache")))
        losses.append([line["loss"] for line in read_metrics(tmp_path / run)])
    assert kept[0] and kept[0] == kept[1]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_inspect_prints_masks_and_saves_batches(corpus, tmp_path, capsys) -> None:
    config = ["--config", f"{PRETRAIN}:smoke,data={corpus}", "--config.model.vocab_size=128"]
    assert main(["inspect", *config, "--steps", "1"]) == 0
    shown = capsys.readouterr().out
    assert "[CLS]" in shown and "[MASK]" in shown
    assert shown.count(" row ") == 4 and "4 rows more, which --rows shows" in shown
    path = tmp_path / "batches.npz"
    assert main(["inspect", *config, "--steps", "3", "--start", "5", "--output", str(path)]) == 0
    arrays = np.load(path)
    assert arrays["input_ids"].shape == (3, 8, 32)
    assert main(["inspect", *config, "--params"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[-1].split()[0] == "total" and "encoder/embeddings/word" in "".join(table)


@pytest.mark.slow
def test_text_to_filled_masks(tmp_path, text) -> None:
    """Every subcommand in a process of its own, as a user types them."""

    def run(*arguments: object, **options: object) -> str:
        done = bertjax(*arguments, cwd=tmp_path, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("vocab", "--input", text, "--vocab-size", 90, "--output", "vocab.txt")
    run("prepare", "--input", text, "--vocab", "vocab.txt", "--output", "corpus",
        "--workers", 2, "--eval-fraction", 0.1)  # fmt: skip
    config = ["--config", f"{PRETRAIN}:smoke,data=corpus", "--config.model.vocab_size=90"]
    run("train", *config, "--workdir", "run")
    scores = json.loads(run("evaluate", *config, "--checkpoint", "run", "--output", "scores"))
    assert scores == json.loads((tmp_path / "scores" / "scores.json").read_text())
    answer = json.loads(
        run("predict", "--checkpoint", "run", "--input", "-", "--output", "-", input="ba [MASK] .")
    )
    assert len(answer["masks"]) == 1
    asked = ["--checkpoint", "run", "--question", "ba?", "--context", "ba do"]
    said = bertjax("predict", *asked, cwd=tmp_path).stderr
    assert "This model fills [MASK]s" in said and said.endswith("[MASK].'\n")
    assert run("report", "run").strip().endswith(".html")
