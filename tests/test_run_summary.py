"""Tests of the run summary, configuration warnings and the next commands, for every task."""

import dataclasses
import re
import shlex
import shutil
from types import SimpleNamespace

import pytest
from etils import epath
from pretraining_runs import make_run_config
from toy_tasks import KINDS, TOKENIZER, configuration

from bertjax.cli.main import _parser
from bertjax.config.config import Config
from bertjax.steps.step_functions import StepFunctions
from bertjax.tasks import registry
from bertjax.tasks.finetuning import FinetuningTask
from bertjax.tasks.pipeline import predict_arguments
from bertjax.training import run_summary
from bertjax.training.run_summary import config_warnings, summarize_result, summarize_run
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.parallel import usable_cores


def summary_lines(config: Config, step: int = 0) -> list[str]:
    task = registry.find_task(config.task)(config)
    config = task.config.resolve(task.examples_per_epoch)
    task.prepare(config.total_steps)
    step_functions = StepFunctions(config, task.objective)
    lines = summarize_run(config, task, step_functions, epath.Path("runs/x"), step, 1).splitlines()
    assert len(lines) <= 12
    return lines


@pytest.mark.seconds
def test_summary_has_a_line_a_topic(corpus) -> None:
    config = make_run_config(
        corpus, steps=1000, batch_size=16, gradient_accumulation_steps=2, optimizer__warmup=100
    )
    assert summary_lines(config) == [
        f"devices   8 cpu ({usable_cores()} cores), mesh data=8",
        "model     2 layers of 64, 149,890 parameters, float32; MLM head and NSP head",
        f"data      {corpus} (400 documents, 86,636 tokens); the run has 3.74 epochs",
        "batch     16 sequences of 32 tokens, 1 at once on a device",
        "memory    0.2 MiB a device for parameters and optimizer",
        "schedule  adamw at 0.001, linear, warm-up 100 steps, to 0 at step 1,000",
        "steps     1,000, metrics every 3, checkpoint every 4, evaluation every 6",
        "workdir   runs/x, new",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_summary_of_every_task(kind: str, toys) -> None:
    lines = dict(line.split(maxsplit=1) for line in summary_lines(configuration(kind, toys), 60))
    assert str(toys) in lines["data"] and "300 examples" in lines["data"]
    assert re.match(r"(16 examples in )?\d+ sequences of ", lines["batch"])
    assert lines["workdir"] == "runs/x, which has step 60" and "note" not in lines


@pytest.mark.seconds
def test_summary_names_the_best_checkpoint_by_a_score(corpus) -> None:
    for name, greater_is_better, extreme in (
        ("mlm_loss", None, "lowest"),
        ("mlm_accuracy", None, "highest"),
        ("mlm_accuracy", False, "lowest"),
    ):
        fields = {"best_metric": name, "greater_is_better": greater_is_better}
        lines = summary_lines(make_run_config(corpus, steps=1000, **fields))
        assert lines[-1] == f"best      the checkpoint with the {extreme} {name} is kept and used"


@pytest.mark.seconds
def test_summary_names_the_part_of_the_training_file_that_is_evaluated(toys, tmp_path) -> None:
    config = configuration("single_label", toys)
    shutil.copy(toys / "train.csv", tmp_path)
    fields = {"dir": str(tmp_path), "eval_file": ""}
    alone = dataclasses.replace(config, data={**config.data, **fields})
    lines = [summary_lines(configured) for configured in (config, alone)]
    whole, parts = (dict(line.split(maxsplit=1) for line in part)["data"] for part in lines)
    assert "eval split" not in whole
    found = re.search(
        r"\((\d+) examples, .* tokens\); (\d+) other examples of train\.csv are the eval split, "
        r"chosen by a hash of .* the same for every seed \(data\.eval_fraction=0\.1\); the run",
        parts,
    )
    assert found and sum(map(int, found.groups())) == 300


def test_summary_says_that_nothing_is_evaluated(toys, monkeypatch) -> None:
    monkeypatch.setattr(FinetuningTask, "eval_sets", lambda task: [])
    config = configuration("single_label", toys)
    (line,) = (line for line in summary_lines(config) if line.startswith("steps"))
    assert line.endswith(", no eval data") and "evaluation every" not in line


def warnings_of(corpus, **overrides: object) -> list[str]:
    config = make_run_config(corpus, **overrides).resolve()
    return list(
        config_warnings(config, SimpleNamespace(examples_per_epoch=1000, tokenizer=TOKENIZER))
    )


def test_config_warnings_name_early_stopping_without_enough_evaluations(corpus) -> None:
    fields = {"steps": 1000, "best_metric": "mlm_loss", "early_stopping": 3}
    assert warnings_of(corpus, **fields, eval_every=200) == []
    (never,) = warnings_of(corpus, **fields, eval_every=400)
    assert never.startswith("early_stopping=3 cannot end a run of 1,000 steps")


def test_config_warnings_name_embeddings_without_a_token(corpus) -> None:
    (unused,) = warnings_of(corpus, steps=1000, model__vocab_size=30522)
    assert unused.startswith("the vocabulary has ") and "the model 30,522 embeddings" in unused
    assert warnings_of(corpus, steps=1000, model__vocab_size=30522, init="x") == []


def test_config_warnings_name_a_fix(corpus) -> None:
    assert warnings_of(corpus, steps=1000) == []
    (warmup,) = warnings_of(corpus, steps=100, optimizer__warmup=100, optimizer__decay_steps=1000)
    assert warmup.startswith("the warm-up of 100 steps is longer than the run of 100")
    (decay,) = warnings_of(corpus, steps=100, optimizer__decay_steps=1000)
    assert "the run ends at 100, at 91% of the peak: --config.optimizer.decay_steps=0" in decay
    (epochs,) = warnings_of(corpus, steps=100_000)
    assert epochs.startswith("800 epochs are many")


def test_config_warnings_accept_a_decay_that_ends_in_a_second_phase(corpus) -> None:
    assert warnings_of(corpus, steps=900, optimizer__decay_steps=1000) == []


@pytest.mark.seconds
def test_summary_warns_of_bfloat16_on_a_gpu_without_it(corpus, monkeypatch) -> None:
    message = "a GPU has no units: use --config.model.dtype=float32 if it fits."
    monkeypatch.setattr(run_summary, "bfloat16_warning", lambda dtype, device: message)
    assert summary_lines(make_run_config(corpus))[-1] == f"note      {message}"


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_documents_of_single_sentences_are_warned_of_with_next_sentence_prediction(
    objective: str, tmp_path, caplog
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"ba do ki lu {'me ' * n}." for n in range(40)))
    prepare([str(text)], TOKENIZER, tmp_path / "corpus", CorpusOptions(eval_fraction=0), workers=1)
    task = registry.find_task("pretraining")(
        make_run_config(tmp_path / "corpus", data__objective=objective)
    )
    assert task.examples_per_epoch
    said = f"{tmp_path / 'corpus'} has 1.0 sentences a document: nearly all second sentences are"
    assert (said in caplog.text) == (objective == "mlm_nsp")


def test_result_names_the_next_commands(corpus) -> None:
    task = registry.find_task("pretraining")(make_run_config(corpus))
    text = summarize_result(
        epath.Path("my runs/x"), epath.Path("/my runs/x/checkpoints/00000020"), task
    )
    assert text.splitlines() == [
        "done; the model is in /my runs/x/checkpoints/00000020. Next:",
        "  bertjax evaluate --checkpoint 'my runs/x' --output 'my runs/x/scores'",
        "  bertjax predict --checkpoint 'my runs/x' --text 'The capital of France is [MASK].'",
        "  bertjax report 'my runs/x'",
        "  bertjax convert --to hf 'my runs/x' x-hf",
    ]


def test_sample_arguments_of_every_task_are_parsed(toys) -> None:
    for kind in KINDS:
        config = configuration(kind, toys)
        task = registry.find_task(config.task)(config)
        pipeline = task.pipeline_class(config)(task.objective, task.tokenizer, task.labels)
        sample = predict_arguments(pipeline.sample_input())
        arguments = ["predict", "--checkpoint", "x", *shlex.split(sample)]
        assert _parser().parse_known_args(arguments)[1] == []
