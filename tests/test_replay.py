"""Replays of steps: digests, flipped bits, and results that do not change."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_tasks
from conftest import in_test_all
from pretraining_runs import make_run_config
from program import Program
from run_outputs import metrics

from bertjax.checkpointing.checkpointer import Checkpointer
from bertjax.errors import CorruptionError
from bertjax.steps import replay as replay_module
from bertjax.steps.compilation import compiler_options
from bertjax.steps.digests import digest
from bertjax.steps.replay import Replay
from bertjax.steps.step_functions import StepFunctions
from bertjax.training.setup import make_trainer
from data_pipelines.errors import InputError


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32])
def test_digest_changes_with_every_bit_and_with_the_order(dtype) -> None:
    arrays = {"a": jnp.arange(6).reshape(2, 3).astype(dtype), "b": jnp.zeros(4, dtype)}
    compute = jax.jit(digest)
    before = int(compute(arrays))
    assert before == int(compute(arrays))
    bits = np.dtype(f"uint{8 * arrays['a'].dtype.itemsize}")
    digests = []
    for name, array in arrays.items():
        for index in range(array.size):
            for bit in range(8 * bits.itemsize):
                changed = np.asarray(array).copy()
                changed.view(bits).flat[index] ^= bits.type(1 << bit)
                digests.append(int(compute(arrays | {name: jnp.asarray(changed)})))
    assert len(digests) == 10 * 8 * bits.itemsize and before not in digests
    swapped = arrays | {"a": arrays["a"][::-1]}
    assert int(compute(swapped)) != before


def flip_bit(array: jax.Array, device: jax.Device) -> jax.Array:
    """Return a replicated array with another bit on one device."""
    parts = []
    for shard in array.addressable_shards:
        data = np.asarray(shard.data).copy()
        if shard.device == device:
            data.view(np.uint32).flat[0] ^= np.uint32(1 << 20)
        parts.append(jax.device_put(data, shard.device))
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(8, 1, 1), *in_test_all(((2, 2, 2),))])
def test_replay_names_the_device_with_a_flipped_bit(corpus, tmp_path, monkeypatch, sizes) -> None:
    names = ("mesh__data", "mesh__fsdp", "mesh__tensor")
    config = make_run_config(corpus, replay_every=5, **dict(zip(names, sizes, strict=True)))
    trainer = make_trainer(config, tmp_path)
    compile_replay, calls = StepFunctions.compile_replay_step, []

    def compile_faulty(self: StepFunctions, batch_size: int):
        replay = compile_replay(self, batch_size)

        def compute(params, step, batch, constants):
            calls.append(int(step))
            if len(calls) == 4:  # the second computation of the second replay, in step 10
                bias = params["mlm"]["bias"]
                assert bias.sharding.is_fully_replicated
                faulty = flip_bit(bias, jax.devices()[3])
                params = params | {"mlm": params["mlm"] | {"bias": faulty}}
            return replay(params, step, batch, constants)

        return compute

    monkeypatch.setattr(StepFunctions, "compile_replay_step", compile_faulty)
    with pytest.raises(CorruptionError, match=r"^step 10: .* differ on device 3 of process 0, whi"):
        trainer.train()
    assert calls == [4, 4, 9, 9]
    assert trainer.checkpointer.all_steps()[-1] == 8  # before the doubtful step


def flip_on_last_device() -> None:
    """Compute the gradient of step 10 the second time from a flipped bit, on the last device."""
    compile_replay, calls = StepFunctions.compile_replay_step, []

    def compile_faulty(self: StepFunctions, batch_size: int):
        replay = compile_replay(self, batch_size)

        def compute(params, step, batch, constants):
            calls.append(int(step))
            bias = params["mlm"]["bias"]
            bias = flip_bit(bias, jax.local_devices()[-1]) if len(calls) == 4 else bias
            return replay(params | {"mlm": params["mlm"] | {"bias": bias}}, step, batch, constants)

        return compute

    StepFunctions.compile_replay_step = compile_faulty  # type: ignore[method-assign]


@pytest.mark.minutes
def test_replay_names_process_and_device_of_two_processes(corpus, tmp_path) -> None:
    program = Program(
        corpus,
        tmp_path / "run",
        2,
        checkpoint_every=4,
        replay_every=5,
        begin_last=flip_on_last_device,
    )
    assert program.wait() == [1, 1], program.stderr
    for process_id in range(2):
        sentence = program.sentence(process_id)
        named = re.search(r"bertjax: step 10: .* differ on device \d+ of process 1, whi", sentence)
        assert named, program.stderr[process_id]
    assert Checkpointer(tmp_path / "run" / "checkpoints").all_steps()[-1] == 8


@pytest.mark.minutes
def test_replay_does_not_change_the_run(corpus, tmp_path) -> None:
    fields = {"gradient_accumulation_steps": 2, "batch_size_rampup": 2, "batch_size": 32}
    for name, every in (("plain", 0), ("replayed", 1)):
        make_trainer(make_run_config(corpus, replay_every=every, **fields), tmp_path / name).train()
    assert metrics(tmp_path / "plain") == metrics(tmp_path / "replayed")


@pytest.mark.slow
def test_replay_of_fine_tuning_has_the_sequences_of_its_batches(toys, tmp_path) -> None:
    fields = {"steps": 2, "batch_size": 12, "log_every": 1, "optimizer.warmup": 1}
    fields |= {"eval_every": 2, "checkpoint_every": 2}
    config = toy_tasks.configuration("single_label", toys, replay_every=1, **fields)
    trainer = make_trainer(config, tmp_path)
    trainer.train()
    assert [*trainer._replay._compiled] == [trainer.step_functions.objective.batch_size] != [12]


def test_replay_rejects_nondeterministic_gpus_and_sweeps(monkeypatch) -> None:
    class Device:
        platform = "gpu"

    class Functions:
        mesh = type("Mesh", (), {"devices": np.array([Device()])})

    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    with pytest.raises(InputError, match="replay_every=5: GPUs add in any order"):
        Replay(5, Functions())
    Replay(0, Functions())
    monkeypatch.setenv("XLA_FLAGS", "--x --xla_gpu_deterministic_ops=true")
    Replay(5, Functions())
    monkeypatch.setattr(replay_module, "ParallelStepFunctions", Functions)
    with pytest.raises(InputError, match="replay_every=5: a sweep trains several runs"):
        Replay(5, Functions())


def test_sdc_checker_is_an_option_of_the_tpu_compiler() -> None:
    with pytest.raises(InputError, match="sdc_checker=True: the devices are cpus"):
        compiler_options(jax.devices()[0], sdc_checker=True)
    tpu = type("Tpu", (), {"platform": "tpu", "device_kind": "TPU v5 lite"})()
    assert compiler_options(tpu, sdc_checker=True)["xla_tpu_enable_sdc_checker"] is True
    assert "xla_tpu_enable_sdc_checker" not in compiler_options(tpu)
