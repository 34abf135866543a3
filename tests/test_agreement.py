"""Processes that disagree: every kind is named on both within a minute."""

import argparse
import contextlib
import functools
import importlib.metadata
import re
import time

import pytest
from conftest import TOKENIZER, sample_text
from program import Program

from bertjax.cli import sweep, train
from bertjax.cli.distributed import _facts
from bertjax.config.config import Config
from bertjax.mesh import agreement
from bertjax.mesh.agreement import check_agreement, describe_disagreement
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare


def test_describe_disagreement_names_fields_and_values() -> None:
    first = {"a": 1, "b": "x", "c": [1]}
    assert describe_disagreement([first, dict(first)]) == ""
    text = describe_disagreement([first, dict(first), {"a": 2, "b": "x", "d": "y" * 99}])
    assert text.startswith("a=1: process 2 has 2; c=[1]: process 2 has None; d=None: process 2 has")
    assert text.endswith(
        " Start the same command, with the same data and packages, in all processes."
    )
    many = {f"field{i}": "x" * 99 for i in range(40)}
    text = describe_disagreement([many, {}])
    assert "; 36 more differ." in text and len(text) < 500


def test_check_agreement_does_nothing_for_a_single_process() -> None:
    check_agreement({"a": object()}, 1)


def facts_of(command, *words: str) -> dict[str, object]:
    """Return what processes compare of a command with some arguments."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args(["--config", "glue", "--workdir", "runs/x", *words])
    args.subcommand = "test"
    return _facts(args, Config())


SEARCH = ["--search=tpe", "--range=a=1..2", "--trials=9"]


@pytest.mark.parametrize(
    ("words", "difference"),
    [
        (["--search=random", *SEARCH[1:]], "search='tpe': process 1 has 'random'"),
        ([*SEARCH, "--range=b=1..2"], "range=['a=1..2']: process 1 has ['a=1..2', 'b=1..2']"),
        ([*SEARCH, "--trials=8"], "trials=9: process 1 has 8"),
        ([*SEARCH, "--prune"], "prune=False: process 1 has True"),
    ],
)
def test_facts_have_the_options_of_a_search(words: list[str], difference: str) -> None:
    text = describe_disagreement([facts_of(sweep, *SEARCH), facts_of(sweep, *words)])
    assert text.startswith(f"{difference}.")


def test_facts_have_the_version_of_optuna_in_a_search_alone() -> None:
    assert "version of optuna" in facts_of(sweep, *SEARCH)
    assert "version of optuna" not in facts_of(sweep, "--grid=a=1,2")
    assert "version of optuna" not in facts_of(train)


def set_version() -> None:
    """Report another version of optax."""
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.0.1" if name == "optax" else version(name)


def set_code() -> None:
    """Report other source files."""
    agreement.code_digest = lambda: "changed"


def set_precision() -> None:
    """Change a setting of JAX."""
    import jax

    jax.config.update("jax_default_matmul_precision", "float32")


# Arguments of the second process, or a function that it calls first, and the sentence of both.
KINDS = {
    "checkpoints": (["--config.checkpoint_every=10"], "checkpoint_every=12: process 1 has 10"),
    "evaluations": (["--config.eval_every=10"], "eval_every=12: process 1 has 10"),
    "accumulation": (
        ["--config.gradient_accumulation_steps=2"],
        "gradient_accumulation_steps=1: process 1 has 2",
    ),
    "seed": (["--config.seed=7"], "seed=0: process 1 has 7"),
    "length": (["--config.steps=40"], "steps=30: process 1 has 40"),
    "model": (["--config.model.hidden_size=128"], "model.hidden_size=64: process 1 has 128"),
    "task": (["--config.data.objective=mlm"], "data.objective='mlm_nsp': process 1 has 'mlm'"),
    "data": (None, "digest of the data='.*': process 1 has '"),
    "package": (set_version, "version of optax='.*': process 1 has '0.0.1'"),
    "code": (set_code, "code of bertjax='.*': process 1 has 'changed'"),
    "setting": (set_precision, "jax_default_matmul_precision=None: process 1 has 'float32'"),
    "number": (["--num-processes", "3"], "--num-processes=2: process 1 has --num-processes=3"),
}


@pytest.mark.minutes
@pytest.mark.parametrize("kind", KINDS)
def test_disagreement_is_named_within_a_minute(corpus, tmp_path, kind: str) -> None:
    change, sentence = KINDS[kind]
    options = {"last_arguments": change} if isinstance(change, list) else {"begin_last": change}
    if kind == "data":
        text, other = tmp_path / "text.txt", tmp_path / "other"
        text.write_text(sample_text(seed=2, documents=400))
        prepare(
            [str(text)],
            TOKENIZER,
            other,
            CorpusOptions(eval_fraction=0.05, num_shards=8),
            workers=1,
        )
        options = {"last_arguments": [f"--config.data.dir={other}"]}
    start = time.monotonic()
    program = Program(corpus, tmp_path / "run", 2, **options)
    assert program.wait() == [2, 2], program.stderr
    assert time.monotonic() - start < 60
    for process_id in range(2):
        assert re.search(f"^bertjax: .*{sentence}", program.sentence(process_id))
    assert not (tmp_path / "run").exists()


def hang_at_step(step: int) -> None:
    """Let a process sleep before a step, outside of the devices."""
    from bertjax.training.throughput import Profiler

    plain = Profiler.before

    def before(self: Profiler, done: int, state: object) -> None:
        time.sleep(600 if done == step else 0)
        plain(self, done, state)

    Profiler.before = before


@pytest.mark.minutes
def test_watchdog_ends_all_processes_when_one_hangs(corpus, tmp_path) -> None:
    begin = functools.partial(hang_at_step, 14)
    program = Program(
        corpus, tmp_path / "run", 2, begin_last=begin, eval_every=30, watchdog_minutes=0.5
    )
    assert program.wait() == [75, 75], program.stderr
    for error in program.stderr:
        assert "no step, evaluation or save has finished for 0.5 minutes" in error
        assert "trainer.py" in error and "ended by the watchdog" in error
    assert "in before" in program.stderr[1]
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "run" / "lock.json").unlink()
