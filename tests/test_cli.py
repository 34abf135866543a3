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
from conftest import LONG, bertjax, process_environment, sample_pieces, sample_text

from bertjax.cli import report, termination
from bertjax.cli.files import check_directory, open_output, read_lines
from bertjax.cli.jax_setup import enable_compilation_cache
from bertjax.cli.main import _parser, find_subcommands, main
from bertjax.config.config import load_config
from bertjax.config.config_file import builtin_configs
from bertjax.errors import RunError
from bertjax.tasks import registry
from bertjax.training.metric_writers import read_metrics
from bertjax.training.trainer import Trainer
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
    path.write_text("\n".join(sample_pieces()) + "\n")
    return path


@pytest.mark.parametrize("verb", find_subcommands())
def test_the_example_of_a_verb_is_one(verb: str) -> None:
    file = find_subcommands()[verb]
    program, *arguments = shlex.split(file.EXAMPLE)
    args, rest = _parser().parse_known_args(arguments)
    assert (program, arguments[0], rest, args.run) == ("bertjax", verb, [], file.run)


@pytest.mark.parametrize("verb", find_subcommands())
def test_every_option_says_what_it_means_and_what_holds_without_it(verb: str) -> None:
    (verbs,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    parser = verbs.choices[verb]
    needed = [a for group in parser._mutually_exclusive_groups for a in group._group_actions]
    for action in parser._actions:
        said = (action.help or "").replace("%(default)s", str(action.default))
        meaning, default = re.fullmatch(r"(.*?)(?: \(([^()]+)\))?", said).groups()
        name = action.option_strings or action.dest
        assert meaning.count(" "), f"{name}: {said!r} says no meaning"
        if not (action.required or action in needed or action.nargs == 0):
            assert default, f"{name}: {said!r} does not end with its default in brackets"
            assert action.default in (None, "", []) or default == str(action.default), name


def test_what_is_given_again_is_added() -> None:
    read = _parser().parse_args
    given = read(["prepare", "--input", "a", "b", "--input", "c", "--vocab", "v", "--output", "o"])
    assert given.input == ["a", "b", "c"]
    assert read(["predict", "--checkpoint", "x", "--text", "a", "--text", "b"]).text == ["a", "b"]


def test_verbs_are_listed_in_the_order_of_a_model_s_life() -> None:
    life = ["vocab", "prepare", "inspect", "preflight", "train", "evaluate", "predict", "convert"]
    verbs = find_subcommands()
    assert [verb for verb in verbs if verb in life] == life
    assert len({file.ORDER for file in verbs.values()}) == len(verbs)


def test_without_a_verb_all_of_them_are_told(capsys) -> None:
    assert main([]) == 2
    told = capsys.readouterr().err
    assert all(re.search(rf"^    {verb}\b", told, re.MULTILINE) for verb in find_subcommands())
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0 and capsys.readouterr().out == "bertjax 0.1.0\n"


def test_configurations_are_listed_printed_and_copied(capsys, tmp_path, monkeypatch) -> None:
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
        (["gleu"], "there is no configuration gleu: did you mean glue?"),
        (["--output", "mine.py"], "--output=mine.py is for one configuration: give its NAME"),
        (["glue", "--output", "mine.txt"], "--output=mine.txt is no Python file"),
        (["glue", "--output", "here.py"], "--output=here.py exists: name another file"),
        (["glue", "--fields"], "--fields is of all tasks: leave glue out"),
    ],
)
def test_a_copy_that_cannot_be_is_refused(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").write_text("before")
    assert message in refused("config", *arguments)
    assert os.listdir() == ["here.py"] and (tmp_path / "here.py").read_text() == "before"


def test_a_reader_that_has_enough_ends_a_command_in_silence(tmp_path) -> None:
    given = "score", "squad", "--data", tmp_path / "no.json", "--predictions", tmp_path / "no.json"
    program = (
        "import sys, bertjax.cli.score as verb; from bertjax.cli.main import main;"
        "verb.run = lambda args: [print('x' * 999) for _ in range(9999)]; sys.exit(main())"
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


def test_help_is_given_before_anything_slow_is_imported() -> None:
    done = python(
        "import sys; from bertjax.cli.main import main\n"
        "try: main(['train', '--help'])\n"
        "finally: print([name for name in ('jax', 'numpy', 'tensorflow') if name in sys.modules])"
    )
    assert done.stdout.startswith("usage: bertjax train") and done.stdout.endswith("[]\n")


@pytest.mark.parametrize("error", ["ValueError", "KeyError", "FileNotFoundError", "TypeError"])
def test_a_fault_of_ours_keeps_its_traceback(error: str) -> None:
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
def test_what_the_user_or_the_machine_caused_is_a_sentence(
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
            r"max_seq_length=600 is more than model\.max_position_embeddings=512: shorten",
        ),
        ({"data__mask_replace_prob": 0.9}, r"sum to 1\.1; make them sum to 1"),
        ({"batch_size": 12}, r"batch_size=12 does not divide over 8 devices .* multiple of 8"),
        (
            {"gradient_accumulation_steps": 2},
            r"batch_size=8 does not divide over 8 devices x accumulation=2",
        ),
        ({"sede": 3}, r"sede is no field of the configuration: did you mean seed"),
        (
            {"model__num_attention_heads": 3},
            r"num_attention_heads=3 does not divide hidden_size=64: choose",
        ),
        ({"data__dir": "nowhere"}, r"nowhere does not exist.* run `bertjax prepare"),
        ({"init": "nowhere"}, r"there is no nowhere: give a workdir"),
        ({"optimizer__name": "sgd"}, r"'sgd' and must be one of adamw"),
        ({"mesh__data": 3}, r"mesh data=3, .* does not fit 8 devices"),
        ({"steps": "soon"}, r"steps='soon' is no duration: write"),
        ({"max_seq_length": "long"}, r"max_seq_length='long' is a str: it must be int"),
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
    config = load_config(f"{PRETRAIN}:smoke,data={corpus}", given, registry.data_fields())
    run = Trainer(config, workdir)
    claim_workdir(workdir, run.config, run.task)
    assert "model.num_hidden_layers=2" in refused(
        *train(corpus, workdir, model__num_hidden_layers=3)
    )
    other = tmp_path / "other"
    assert main(["prepare", "--input", str(text), "--vocab", str(vocab), "--output", str(other),
                 "--workers", "1", "--eval-fraction", "0.1", "--shards", "8"]) == 0  # fmt: skip
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


def test_case_is_kept_as_the_vocabulary_keeps_it(tmp_path, text) -> None:
    upper = tmp_path / "upper.txt"
    upper.write_text("\n".join([*sample_pieces()[:-1], "Ba"]) + "\n")
    assert main([*map(str, prepare(text, upper, tmp_path / "corpus"))]) == 0
    assert load_tokenizer(tmp_path / "corpus").cased


def test_a_vocabulary_that_cannot_be_is_refused(tmp_path, refused, text, vocab) -> None:
    output = tmp_path / "corpus"
    assert "nowhere.txt" in refused(*prepare(text, tmp_path / "nowhere.txt", output))
    assert "cased" in refused(*prepare(text, vocab, output, "--cased"))
    upper = tmp_path / "upper.txt"
    upper.write_text("\n".join([*sample_pieces()[:-1], "Ba"]) + "\n")
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
            "leave --null-odds out",
        ),
        (["predict", "--checkpoint", "nowhere", "--input", "-", "--output", "-"], "nowhere"),
        (["train", "--workdir", "x"], "--config"),
        (["report", "x", "--config.seed=1"], "--config.seed=1 is no argument"),
        (["train", "--config", "x.py", "--workdir", "y", "--config.seed"], "has no value"),
        (["train", "--config", "nowhere.py", "--workdir", "x"], "no file nowhere.py"),
        (["inspect", "--config", f"{PRETRAIN}:smoke", "--start", "-1"], "--start=-1 is no step"),
        (
            ["inspect", "--config", f"{PRETRAIN}:smoke", "--rows", "0"],
            "--rows=0 must be at least 1",
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
            "--host=2 is none of --num-processes=2: count them from 0",
        ),
        (["predict", "--checkpoint", "x", "--text", " "], "--text is empty: write a text"),
        (
            ["predict", "--checkpoint", "x", "--input", "a.txt", "--output", "./a.txt"],
            "--output=./a.txt is the input, which would be lost: name another",
        ),
    ],
)
def test_a_command_that_cannot_be_is_refused(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)


SMOKE = ["--config", f"{PRETRAIN}:smoke"]
TEXT = ["--input", "text.txt"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "--checkpoint", "c", "--input", "lost"], "there is no file lost"),
        (["predict", "--checkpoint", "c", "--input", "folder"], "folder is a directory"),
        (["predict", "--checkpoint", "c", *TEXT, "--output", "folder"], "folder is a directory"),
        (["predict", "--checkpoint", "c", *TEXT, "--output", "lost/x"], "lie in lost, which is no"),
        (["predict", "--checkpoint", "text.txt", *TEXT], "text.txt is no model"),
        (["score", "squad", "--data", "lost", "--predictions", "p"], "there is no file lost"),
        (["score", "cmrc", "--data", "folder", "--predictions", "p"], "folder is a directory"),
        (["train", *SMOKE, "--workdir", "text.txt"], "--workdir=text.txt is a file"),
        (["train", *SMOKE, "--workdir", "text.txt/run"], "lies in text.txt, which is a file"),
        (["train", "--config", "folder", "--workdir", "x"], "folder is a directory"),
        (["evaluate", *SMOKE, "--checkpoint", "c", "--output", "text.txt"], "text.txt is a file"),
        (["inspect", *SMOKE, "--output", "lost/x.npz"], "lie in lost, which is no directory"),
        (["preflight", *SMOKE, "--topology", "cpu:1", "--json", "folder"], "is a directory"),
        (["vocab", *TEXT, "--output", "text.txt"], "--output=text.txt exists: name another file"),
        (
            ["predict", "--checkpoint", "x", "--text", "a", "--output", "/dev/null"],
            "/dev/null is no",
        ),
        (["predict", "--checkpoint", "c", *TEXT, "--output", "/proc/x"], "/proc/x lies in /proc"),
        (["convert", "--to", "hf", "folder", "/sys/x"], "lies in /sys, where no files can be made"),
        (["vocab", *TEXT, "--output", "text.txt/vocab.txt"], "text.txt is a file"),
        (
            ["vocab", *TEXT, "*.txt", "--sampling-alpha", "0.7", "--output", "vocab.txt"],
            "text.txt is an input 2 times",
        ),
        (["prepare", *TEXT, "--vocab", "lost", "--output", "text.txt/x"], "lies in text.txt"),
        (
            ["prepare", *TEXT, "--vocab", "v", "--output", "x", "--workers", "-3"],
            "-3 is less than 0",
        ),
        (["prepare", *TEXT, "--vocab", "lost", "--output", "x"], "there is no vocabulary at lost"),
        (["convert", "--to", "hf", "folder", "text.txt/x"], "text.txt is a file"),
        (["convert", "--to", "hf", "text.txt", "x"], "text.txt is no model"),
        (["report", "text.txt"], "text.txt/metrics.jsonl does not exist"),
    ],
)
def test_a_path_that_cannot_be_used_is_named(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("ba do .\n")
    assert message in refused(*arguments)
    assert sorted(os.listdir()) == ["folder", "text.txt"] and not os.listdir("folder")


def test_an_evaluation_is_not_written_over_by_another(refused, tmp_path) -> None:
    config = load_config(f"{PRETRAIN}:smoke", {}, registry.data_fields())
    command = ["evaluate", *SMOKE, "--output", tmp_path, "--checkpoint"]
    about = tmp_path / "evaluation.json"
    about.write_text(json.dumps({"checkpoints": ["a/"], "config": config.to_dict()}))
    for arguments, complaint in [
        (["b"], f"{tmp_path} has the scores of a/: give another --output"),
        (["a", "b"], "has the scores of a/"),
        (
            ["a", "--config.max_seq_length=24"],
            "has the scores by max_seq_length=32, and here it is 24",
        ),
        (["a", "--config.data.dir=other"], "has the scores by data.dir='', and here it is 'other'"),
        (["a"], "there is no a"),  # the same again, which goes on
        (["a", "--config.log_every=7"], "there is no a"),
    ]:
        assert complaint in refused(*command, *arguments)
    for content in (b"{", b"{}", b"[]", b"\xff"):  # of one that is not whole, nothing is lost
        about.write_bytes(content)
        assert "there is no b" in refused(*command, "b")


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(mark: str, tmp_path) -> None:
    (tmp_path / "text.txt").write_text(f"{mark}ba\ndo\n")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(f"{mark}ba\ndo\n".encode()))
    for name in ("text.txt", "text.txt.gz"):
        assert list(read_lines(str(tmp_path / name))) == ["ba\n", "do\n"]
    assert parse_json(f'{mark}{{"ba": 1}}') == {"ba": 1}


def test_json_that_is_nested_too_deeply_is_refused_by_its_name(tmp_path, refused) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    given = "--data", tmp_path / "deep.json", "--predictions", tmp_path / "deep.json"
    assert "deep.json is no JSON (line 1, column 1: it is nested" in refused(
        "score", "squad", *given
    )


def test_a_closed_standard_output_is_told(tmp_path) -> None:
    program = (
        "import os; os.close(1); import sys; sys.stdout = None; import bertjax.cli.report as verb;"
        "from bertjax.cli.main import main; verb.run = lambda args: print('x');"
        "status = main(['report', 'x']); os.fstat(1); sys.exit(status)"
    )
    done = python(program)
    assert done.returncode == 1
    assert done.stderr.startswith("bertjax: standard output is closed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_command_begins_is_a_sentence_and_asks_for_another_try(number) -> None:
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


def test_a_command_that_does_not_heed_a_signal_is_ended(monkeypatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(termination, "_GRACE_SECONDS", 0.01)
    monkeypatch.setattr(termination, "exit_stopped", ended.set)
    with termination.handle_signals() as stopped:
        with contextlib.suppress(KeyboardInterrupt):  # as a callback of C does
            signal.raise_signal(signal.SIGTERM)
        assert stopped.is_set() and ended.wait(LONG)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.slow
def test_so_is_one_that_computes_and_looks_at_no_signal() -> None:
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


def test_a_disk_that_is_full_costs_no_file_and_is_named(tmp_path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")
    with pytest.raises(OSError, match=r"No space left.*page\.html"), atomic_write(path) as draft:
        draft.write_text("<html>")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["page.html"]


def test_a_link_to_a_directory_is_one_and_a_link_to_nothing_is_refused(tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(InputError, match="link is a link to what does not exist"):
        check_directory(tmp_path / "link" / "run", "--workdir")
    (tmp_path / "there").mkdir()
    check_directory(tmp_path / "link" / "run", "--workdir")


def test_lines_that_are_not_text_are_refused(tmp_path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ba\n\xff\n")
    with pytest.raises(InputError, match=r"text\.txt: byte 3 is not UTF-8; convert the file"):
        list(read_lines(str(tmp_path / "text.txt")))


def test_output_that_was_not_written_to_its_end_replaces_nothing(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(KeyError), open_output(str(path)) as sink:
        sink.write("after")
        raise KeyError
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `tpu`")
def test_a_machine_without_tpus_is_not_complained_of() -> None:
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
def test_all_hosts_see_where_compiled_programs_are_kept(
    workdir: str | None, hosts: int, place: str | None, unset, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "process_count", lambda: hosts)
    before = jax.config.values["jax_persistent_cache_enable_xla_caches"]
    enable_compilation_cache(workdir)
    jax.config.update("jax_persistent_cache_enable_xla_caches", before)
    expected = place and place.replace("CACHE", str(tmp_path))
    assert jax.config.values["jax_compilation_cache_dir"] == expected


def test_a_place_that_cannot_be_written_to_keeps_nothing(unset, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for cache in (tmp_path / "file", pathlib.Path("relative")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        enable_compilation_cache()
        assert jax.config.values["jax_compilation_cache_dir"] is None


@pytest.mark.slow
def test_a_program_is_compiled_once_and_gives_the_same_when_it_is_found(corpus, tmp_path) -> None:
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
def test_inspect_shows_masks_and_saves_batches(corpus, tmp_path, capsys) -> None:
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
def test_the_whole_way_from_text_to_filled_masks(tmp_path, text) -> None:
    """Every verb in a process of its own, as a user types them."""

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
