"""Training runs: logs, evaluation, predictions; interruptions and meshes change no result."""

import dataclasses
import functools
import json
import pathlib
import time

import jax
import numpy as np
import pytest
from etils import epath
from jax.sharding import NamedSharding
from pretraining_runs import LOSSES, losses, make_run_config, metrics, params_of, stop_at
from run_outputs import answers_of, events

from bertjax.checkpointing.lookup import find_checkpoint
from bertjax.inference.convert import convert
from bertjax.inference.predictor import Predictor
from bertjax.mesh import distributed
from bertjax.mesh.device_mesh import BATCH_SPEC, make_mesh
from bertjax.mesh.feed import to_global
from bertjax.mesh.sharding import tree_shardings
from bertjax.steps.step_functions import StepFunctions
from bertjax.steps.train_step import means, sums_and_gradient
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingEvalSet
from bertjax.training import setup
from bertjax.training.cadence import Cadence
from bertjax.training.evaluator import evaluate
from bertjax.training.initialization import PretrainedModel
from bertjax.training.setup import make_trainer
from bertjax.training.trainer import StoppedError
from bertjax.workdir.goodput import PARTS
from data_pipelines.pretraining import corpus_sequences


@pytest.fixture(scope="module")
def whole(corpus, tmp_path_factory) -> pathlib.Path:
    """Return the workdir of a run of 12 steps without interruption."""
    workdir = tmp_path_factory.mktemp("whole")
    make_trainer(make_run_config(corpus, tensorboard="examples+parameters"), workdir).train()
    return workdir


@pytest.mark.slow
def test_trainer_logs_evaluates_and_saves_when_each_is_due(whole) -> None:
    steps = [(m["step"], m["split"]) for m in metrics(whole)]
    train = [(step, "train") for step in (3, 6, 9, 12)]
    assert sorted(steps) == sorted([*train, (6, "eval"), (12, "eval")])
    names = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert names == ["00000004", "00000008", "00000012"]


@pytest.mark.slow
def test_trainer_reduces_the_loss(whole) -> None:
    curve = [m["mlm_loss"] for m in metrics(whole) if m["split"] == "train"]
    assert curve == sorted(curve, reverse=True) and curve[-1] < curve[0] - 0.3


@pytest.mark.slow
def test_tensorboard_shows_examples_and_parameters_if_configured(whole) -> None:
    values = [(e.step, v) for e in events(whole, "eval") for v in e.summary.value]
    summaries = {v.tag: v for step, v in values if step == 12}
    assert "⟦" in summaries["examples/text_summary"].tensor.string_val[0].decode()
    for name in ("encoder/blocks/1/feed_forward/up/kernel", "mlm/bias"):
        assert summaries[name].HasField("histo")
    assert [step for step, v in values if v.tag == "examples/text_summary"] == [6, 12]


@pytest.mark.slow
def test_batch_sizes_of_training_do_not_limit_evaluation_and_prediction(
    whole, corpus, monkeypatch
) -> None:
    fewer = make_run_config(corpus, batch_size=9, eval_batch_size=8, mesh__data=-1)
    scores = evaluate(fewer, whole).scores
    assert scores == evaluate(make_run_config(corpus, eval_batch_size=8), whole).scores
    monkeypatch.setattr(
        "bertjax.training.initialization.read_config",
        lambda *_: dataclasses.replace(fewer, gradient_accumulation_steps=3),
    )
    assert answers_of(whole, ["ba [MASK] do ."])


@pytest.mark.slow
def test_metrics_have_their_documented_fields(whole) -> None:
    train = {"step", "split", *LOSSES, "learning_rate", "sequences_per_second", "nonpad_fraction"}
    train |= {
        "tokens_per_second",
        "input_wait_fraction",
        "epoch",
        "goodput",
        *(f"{part}_fraction" for part in PARTS[1:]),
    }  # and no mfu: the peak of a CPU is unknown
    eval_fields = {"step", "split", *LOSSES, "mlm_perplexity"} - {"grad_norm"}
    for entry in metrics(whole):
        assert set(entry) == (train if entry["split"] == "train" else eval_fields)


@pytest.mark.slow
def test_throughput_counts_the_steps_in_flight_before_a_save(corpus, tmp_path, monkeypatch) -> None:
    def slow(metric_sums):
        time.sleep(0.1)  # as long as the devices need for the step
        return means(metric_sums)

    monkeypatch.setattr(setup, "means", slow)
    config = make_run_config(corpus, checkpoint_every=1, log_every=12, eval_every=12)
    make_trainer(config, tmp_path).train()
    rate = metrics(tmp_path)[0]["sequences_per_second"]
    assert 12 * config.batch_size / rate > 12 * 0.1


@pytest.fixture
def peak_at_six(whole, monkeypatch) -> None:
    """Give evaluations a score that is highest after six steps."""
    (loss,) = (m["loss"] for m in metrics(whole) if (m["step"], m["split"]) == (6, "eval"))
    make_evaluator = setup.make_evaluator

    def make(task, step_functions):
        def evaluator(members):
            evaluation = make_evaluator(task, step_functions)(members)
            peak = -abs(evaluation.scores["loss"] - loss)
            return evaluation._replace(scores=evaluation.scores | {"peak": peak})

        return evaluator

    monkeypatch.setattr(setup, "make_evaluator", make)
    monkeypatch.setattr(PretrainingEvalSet, "score_names", ("peak",))


@pytest.mark.minutes
def test_best_checkpoint_is_kept_and_used_whatever_the_interruptions(
    corpus, tmp_path, peak_at_six, monkeypatch
) -> None:
    config = make_run_config(
        corpus, best_metric="peak", max_to_keep=1, eval_every=2, checkpoint_every=100
    )
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for workdir, stops in ((whole, ()), (stopped, (0, 2, 5, 6, 9))):
        for step in stops:
            with monkeypatch.context() as patch:
                stop_at(step, patch)
                with pytest.raises(StoppedError):
                    make_trainer(config, workdir).train()
        make_trainer(config, workdir).train()
        saved = sorted((workdir / "checkpoints").iterdir())
        assert [path.name for path in saved] == ["00000006", "00000012"]
        for path in saved:
            theirs = params_of(whole / "checkpoints" / path.name, config)
            for a, b in zip(params_of(path, config), theirs, strict=True):
                np.testing.assert_array_equal(a, b)
    assert losses(stopped) == losses(whole)
    used = [find_checkpoint(stopped), PretrainedModel(stopped).path, Predictor(stopped).path]
    assert [path.name for path in used] == ["00000006"] * 3
    convert(stopped, tmp_path / "copy", "bertjax", "bertjax")
    assert json.loads((tmp_path / "copy" / "scores.json").read_text())["peak"] == 0


def test_cadence_in_seconds_asks_process_0_when_metrics_are_logged(corpus, monkeypatch) -> None:
    answers = iter([0, 1, 0])
    cadence = Cadence(make_run_config(corpus, checkpoint_every="30 minutes"), "checkpoint_every")
    monkeypatch.setattr(
        distributed, "broadcast_from_process_0", lambda make, size: (next(answers),)
    )
    assert [step for step in range(1, 12) if cadence.is_due(step)] == [6]
    assert next(answers, None) is None


@pytest.mark.slow
def test_checkpoints_at_intervals_in_seconds_change_no_loss(corpus, tmp_path, whole) -> None:
    make_trainer(
        make_run_config(corpus, checkpoint_every="0.0001 minutes", max_to_keep=9), tmp_path
    ).train()
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["00000003", "00000006", "00000009", "00000012"]
    assert losses(tmp_path) == losses(whole)


@pytest.mark.minutes
@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer__schedule": "one_cycle", "batch_size_rampup": 2, "batch_size": 16},
        {"optimizer__schedule": "wsd", "optimizer__cooldown": "50%", "optimizer__name": "muon"},
        {"data__mlm_probability": "0.5..0.1", "data__max_predictions_per_seq": None},
    ],
    ids=["one cycle, batch size ramp-up", "warm-up, stable, decay", "masking rate"],
)
def test_resumed_run_is_bit_identical_with_every_schedule(
    corpus, tmp_path, monkeypatch, fields
) -> None:
    whole, again = tmp_path / "whole", tmp_path / "again"
    make_trainer(make_run_config(corpus, **fields), whole).train()
    with monkeypatch.context() as patch:
        stop_at(7, patch)
        with pytest.raises(StoppedError):
            make_trainer(make_run_config(corpus, **fields), again).train()
    make_trainer(make_run_config(corpus, **fields), again).train()
    assert losses(again) == losses(whole)


@pytest.mark.minutes
def test_run_that_is_stopped_four_times_is_bit_identical(
    corpus, tmp_path, whole, monkeypatch
) -> None:
    for step in (0, 4, 7, 10):  # the first, after a checkpoint, after a log line, and between
        with monkeypatch.context() as patch:
            stop_at(step, patch)
            with pytest.raises(StoppedError, match=f"stopped at step {step + 1}"):
                make_trainer(make_run_config(corpus), tmp_path).train()
    make_trainer(make_run_config(corpus), tmp_path).train()
    assert losses(tmp_path) == losses(whole)
    for ours, theirs in zip(
        params_of(tmp_path, make_run_config(corpus)),
        params_of(whole, make_run_config(corpus)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_at_most_two_steps_are_in_flight(corpus, tmp_path, monkeypatch) -> None:
    """More steps in flight would delay a stop signal."""
    compile_train_step, all_metric_sums, late = StepFunctions.compile_train_step, [], []

    def counted(self: StepFunctions, *batch_size: int):
        step = compile_train_step(self, *batch_size)

        def counting(*arguments):
            late.extend(sums for sums in all_metric_sums[:-1] if not is_ready(sums))
            state, metric_sums = step(*arguments)
            all_metric_sums.append(metric_sums)
            return state, metric_sums

        return counting

    def is_ready(metric_sums) -> bool:
        return all(leaf.is_ready() for leaf in jax.tree.leaves(metric_sums))

    monkeypatch.setattr(StepFunctions, "compile_train_step", counted)
    make_trainer(
        make_run_config(corpus, log_every=12, eval_every=12, checkpoint_every=12), tmp_path
    ).train()
    assert len(all_metric_sums) == 12 and not late


@pytest.mark.slow
def test_complete_run_is_left_alone(corpus, whole) -> None:
    before = (whole / "metrics.jsonl").read_bytes()
    make_trainer(make_run_config(corpus), whole).train()
    assert (whole / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model__num_hidden_layers": 3},
            "model.num_hidden_layers=3: .* holds a run with model.num_hidden_layers=2",
        ),
        ({"seed": 1}, "seed=1: .* holds a run with seed=0"),
        ({"optimizer__learning_rate": 0.5}, "optimizer.learning_rate=0.001"),
        ({"data__masking": "whole_word"}, "data.masking='token'"),
        ({"steps": 13}, "steps=13: .* holds a run with steps=12"),
    ],
)
def test_workdir_of_another_run_is_rejected(corpus, whole, change, message) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(make_run_config(corpus, **change), whole)


@pytest.mark.slow
def test_resumable_fields_may_change(corpus, whole) -> None:
    make_trainer(
        make_run_config(corpus, log_every=1, checkpoint_every=6, mesh__data=4, mesh__fsdp=2), whole
    )
    make_trainer(make_run_config(corpus, max_to_keep=7, best_metric="loss"), whole)


@pytest.mark.slow
def test_run_is_initialized_from_another_run(corpus, tmp_path, whole) -> None:
    config = make_run_config(corpus, init=whole, optimizer__learning_rate=1e-9, steps=3)
    make_trainer(config, tmp_path).train()
    for ours, theirs in zip(params_of(tmp_path, config), params_of(whole, config), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-7)


@pytest.mark.slow
def test_init_of_another_shape_is_rejected(corpus, tmp_path, whole) -> None:
    with pytest.raises(ValueError, match="Configure the model"):
        make_trainer(make_run_config(corpus, init=whole, model__hidden_size=32), tmp_path)
    assert not (tmp_path / "run.json").exists()


@pytest.mark.slow
def test_evaluation_of_a_checkpoint_has_the_scores_of_the_run(corpus, whole) -> None:
    scores = evaluate(make_run_config(corpus), whole).scores
    last = metrics(whole)[-1]
    for name, value in scores.items():
        assert last[name] == pytest.approx(value, rel=1e-6)


@pytest.mark.slow
def test_evaluation_reads_eval_shards_only(corpus, whole, monkeypatch) -> None:
    opened, real = [], corpus_sequences.read_shard
    monkeypatch.setattr(
        corpus_sequences,
        "read_shard",
        lambda path, info: opened.append(info.name) or real(path, info),
    )
    evaluate(make_run_config(corpus), whole)
    assert opened and all(name.startswith("eval-") for name in opened)


@pytest.mark.slow
def test_predictions_fill_every_mask(corpus, whole) -> None:
    answers = answers_of(whole, ["ba [MASK] do [MASK] .", "[MASK]"])
    assert [len(answer["masks"]) for answer in answers] == [2, 1]
    for answer in answers:
        assert "[MASK]" not in answer["sequence"]
        for guesses in answer["masks"]:
            probabilities = [guess["score"] for guess in guesses]
            assert probabilities == sorted(probabilities, reverse=True)
            assert sum(probabilities) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[MASK]", "no mask"], "line 2: there is no"),
        (["ba " * 600 + "[MASK]"], "line 1: the text has 6"),
    ],
)
def test_invalid_line_to_fill_is_named(whole, lines, message) -> None:
    with pytest.raises(ValueError, match=message):
        answers_of(epath.Path(whole), lines)


@pytest.mark.slow
def test_gradient_is_the_same_in_microbatches_and_on_eight_devices(corpus) -> None:
    """The 32 sequences have different numbers of masked tokens."""
    config = make_run_config(corpus, batch_size=32)
    task = registry.find_task("pretraining")(config)
    batch = {name: array.copy() for name, array in next(iter(task.train_batches(0, 1))).items()}
    batch["masked_lm_weights"][:7, 2:] = 0
    counts = batch["masked_lm_weights"].sum(axis=1)
    assert len(set(counts.reshape(-1, 4).sum(axis=0))) > 1  # microbatches differ in masked tokens
    assert len(set(counts.reshape(8, -1).sum(axis=1))) > 1  # and so do devices
    objective = task.objective
    params = objective.init_params(jax.random.key(0))

    def loss(params, batch, key):
        return objective.sums(objective.apply(params, batch, key, {}), batch)

    def gradient(params, batch, gradient_accumulation_steps=1):
        return sums_and_gradient(loss, params, batch, None, gradient_accumulation_steps)

    whole_sums, whole = jax.jit(gradient)(params, batch)
    part_sums, parts = jax.jit(functools.partial(gradient, gradient_accumulation_steps=4))(
        params, batch
    )
    mesh = make_mesh(8, 1, 1)
    rows = to_global(batch, NamedSharding(mesh, BATCH_SPEC))
    assert {shard.data.shape[0] for shard in rows["input_ids"].addressable_shards} == {4}
    device_sums, devices = jax.jit(gradient)(
        jax.device_put(params, tree_shardings(mesh, params)), rows
    )
    for name, pair in whole_sums.items():
        np.testing.assert_allclose(part_sums[name], pair, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(device_sums[name], pair, rtol=1e-5, err_msg=name)
    size = np.sqrt(sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(whole)))
    for others in (parts, devices):
        for ours, theirs in zip(jax.tree.leaves(whole), jax.tree.leaves(others), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * size)
