"""What a run says of itself before it compiles and at its end, whatever its task."""

import os
import pathlib
import re
import shlex
from types import SimpleNamespace

import pytest
from etils import epath
from toy_tasks import KINDS, TOKENIZER, configuration, write_data

from bertjax.cli.main import _parser
from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.pipeline import predict_arguments
from bertjax.training.run_summary import config_warnings, summarize_result, summarize_run
from data_pipelines.corpus.prepare import prepare

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"


def make_run_config(corpus: pathlib.Path, **overrides: object) -> Config:
    fields = {"model.vocab_size": 128, "mesh.data": 8, "data.workers": 1}
    fields |= {name.replace("__", "."): value for name, value in overrides.items()}
    texts = {name: str(value) for name, value in fields.items()}
    return load_config(f"{PRETRAIN}:smoke,data={corpus}", texts, registry.data_fields())


def page(config: Config, step: int = 0) -> list[str]:
    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    task.prepare(config.total_steps)
    programs = StepFunctions(config, task.objective)
    lines = summarize_run(config, task, programs, epath.Path("runs/x"), step, 1).splitlines()
    assert len(lines) <= 12
    return lines


def test_it_tells_devices_model_data_rows_memory_schedule_and_workdir(corpus) -> None:
    config = make_run_config(
        corpus, steps=1000, batch_size=16, gradient_accumulation_steps=2, optimizer__warmup=100
    )
    assert page(config) == [
        f"devices   8 cpu ({os.cpu_count()} cores), mesh data=8",
        "model     2 layers of 64, 149,890 parameters, float32; MLM head and NSP head",
        f"data      {corpus} (400 documents, 86,636 tokens); the run sees 3.74 epochs",
        "rows      16 a step of 32 pieces, 1 at once on a device",
        "memory    0.2 MiB a device for parameters and optimizer",
        "schedule  adamw at 0.001, linear, warm-up 100 steps, to 0 at step 1,000",
        "steps     1,000, metrics every 5, checkpoint every 10, score every 10",
        "workdir   runs/x, new",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_every_task_has_the_page(kind: str, folder) -> None:
    told = dict(line.split(maxsplit=1) for line in page(configuration(kind, folder), step=60))
    assert str(folder) in told["data"] and "300 examples" in told["data"]
    assert re.match(r"16 (examples )?a step ", told["rows"])
    assert told["workdir"] == "runs/x, which has step 60" and "note" not in told


def oddities(corpus, **overrides: object) -> list[str]:
    config = make_run_config(corpus, **overrides).resolve()
    return list(config_warnings(config, SimpleNamespace(examples_per_epoch=1000)))


def test_what_is_odd_is_said_with_its_cure(corpus) -> None:
    assert oddities(corpus, steps=1000) == []
    (warm,) = oddities(corpus, steps=100, optimizer__warmup=100, optimizer__decay_steps=1000)
    assert warm.startswith("the warm-up of 100 steps is longer than the run of 100")
    (decay,) = oddities(corpus, steps=100, optimizer__decay_steps=1000)
    assert "the run ends at 100, with 91% of its peak: --config.optimizer.decay_steps=0" in decay
    (seen,) = oddities(corpus, steps=100_000)
    assert seen.startswith("800 epochs are many")


def test_a_first_phase_that_leaves_the_end_of_its_decay_to_a_second_is_not_odd(corpus) -> None:
    assert oddities(corpus, steps=900, optimizer__decay_steps=1000) == []


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_documents_of_single_sentences_are_odd_where_next_ones_are_learnt(
    objective: str, tmp_path, caplog
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"ba do ki lu {'me ' * n}." for n in range(40)))
    prepare([str(text)], TOKENIZER, tmp_path / "corpus", workers=1, eval_fraction=0)
    task = registry.find_task("pretraining")(
        make_run_config(tmp_path / "corpus", data__objective=objective)
    )
    assert task.examples_per_epoch
    said = f"{tmp_path / 'corpus'} has 1.0 sentences a document: nearly all second sentences are"
    assert (said in caplog.text) == (objective == "mlm_nsp")


def test_at_the_end_stand_the_commands_that_a_model_is_for(corpus) -> None:
    task = registry.find_task("pretraining")(make_run_config(corpus))
    said = summarize_result(
        epath.Path("my runs/x"), epath.Path("/my runs/x/checkpoints/00000020"), task
    )
    assert said.splitlines() == [
        "done; the model is in /my runs/x/checkpoints/00000020. Next:",
        "  bertjax evaluate --checkpoint 'my runs/x' --output 'my runs/x/scores'",
        "  bertjax predict --checkpoint 'my runs/x' --text 'The capital of France is [MASK].'",
        "  bertjax report 'my runs/x'",
        "  bertjax convert --to hf 'my runs/x' x-hf",
    ]


def test_what_a_task_may_be_asked_is_a_command_that_is_understood(folder) -> None:
    for kind in KINDS:
        config = configuration(kind, folder)
        task = registry.find_task(config.task)(config)
        pipeline = task.pipeline_class(config)(task.objective, task.tokenizer, task.labels)
        sample = predict_arguments(pipeline.sample_input())
        given = ["predict", "--checkpoint", "x", *shlex.split(sample)]
        assert _parser().parse_known_args(given)[1] == []
