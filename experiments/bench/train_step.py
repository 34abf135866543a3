"""Train step of BERT-Mini on a CPU, compared with PyTorch.

    python -m experiments.bench.train_step --peer-python PYTHON

One update on 32 full sequences of 128 tokens, one sentence pair each, in float32 with dropout 0.1,
gradient clipping and AdamW. The peer is `transformers.BertForPreTraining`, eager and under
`torch.compile`, with PyTorch's fused AdamW. It computes the vocabulary's logits at every token,
bertjax at the masked ones. bertjax is also measured with a device for each core, which share the
sequences of a batch (JAX_NUM_CPU_DEVICES=2), and the peer with glibc's settings of bertjax, which
keep freed memory. Programs take turns; figures are medians over the rounds. PYTHON is an
interpreter with torch and transformers (extra [bench]).

`experiments.bench.accelerator` measures the same step on accelerators.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Work
from experiments.bench.peers import torch_pretraining

MODEL_SIZES = {  # layers, hidden size
    "tiny": (2, 128),
    "mini": (4, 256),
    "base": (12, 768),
    "large": (24, 1024),
}
NUM_PREDICTIONS = {128: 20, 512: 80}
EAGER, COMPILED = "PyTorch, eager", "PyTorch, compiled"
SPLIT, EAGER_KEPT = "bertjax, a device a core", "PyTorch, eager, memory kept"
# What `keep_freed_memory` sets.
KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1", "MALLOC_ARENA_MAX": "1"}
VOCAB_SIZE = 30522
MASK_ID, FIRST_TOKEN_ID = 103, 1000

Case = tuple[str, int, int]  # model, tokens of a sequence, sequences
CASE: Case = ("mini", 128, 32)


def make_config(case: Case, dtype: str, **overrides: Any) -> Any:
    """Return the resolved configuration of bertjax's run."""
    model, length, batch_size = case
    fields = {"batch_size": batch_size, "packing": False, "model.dtype": dtype, **overrides}
    phase = 1 if length == 128 else 2
    return harness.load(f"pretraining:model={model},phase={phase}", fields).resolve(None)


def make_batch(case: Case, seed: int = 0, padded: bool = False) -> dict[str, np.ndarray]:
    """Return sequences of random tokens, one sentence pair each; small ids are more frequent.

    Args:
      case: sizes.
      seed: seed of the tokens.
      padded: end a tenth of the sequences in their second half, as google-research/bert shortens a
        tenth of them; by default all are full, which is close to packed ones.
    """
    _, length, batch_size = case
    draw = np.random.Generator(np.random.Philox(key=seed)).random
    ranks = np.floor(draw((batch_size, length)) ** 3 * (VOCAB_SIZE - FIRST_TOKEN_ID))
    order = draw((batch_size, length - 1))
    labels = (draw((batch_size, 1)) < 0.5).astype(np.int32)
    position_ids = np.tile(np.arange(length, dtype=np.int32), (batch_size, 1))
    is_short = padded & (draw((batch_size, 1)) < 0.1)
    ends = np.where(is_short, np.floor(length * (1 + draw((batch_size, 1))) / 2), length)
    is_token = position_ids < ends
    masked = np.argsort(order + ~is_token[:, 1:], kind="stable")[:, : NUM_PREDICTIONS[length]]
    masked = 1 + np.sort(masked)
    input_ids = np.where(is_token, FIRST_TOKEN_ID + ranks, 0).astype(np.int32)
    masked_ids = np.take_along_axis(input_ids, masked, 1)
    np.put_along_axis(input_ids, masked, MASK_ID, 1)
    return {
        "input_ids": input_ids,
        "token_type_ids": (is_token & (position_ids >= length // 2)).astype(np.int32),
        "example_ids": is_token.astype(np.int32),
        "position_ids": position_ids,
        "masked_lm_positions": masked.astype(np.int32),
        "masked_lm_ids": masked_ids,
        "masked_lm_weights": np.ones(masked.shape, np.float32),
        "cls_positions": np.zeros((batch_size, 1), np.int32),
        "next_sentence_labels": labels,
        "next_sentence_weights": np.ones((batch_size, 1), np.float32),
    }


class BertjaxStep:
    """The update that `bertjax train` makes, with its state.

    Args:
      config: resolved configuration.
      num_devices: devices of the mesh.

    Attributes:
      objective: objective of the configuration.
      compiled: the compiled train step.
    """

    def __init__(self, config: Any, num_devices: int = 1) -> None:
        import jax

        from bertjax.steps.step_functions import StepFunctions
        from bertjax.tasks import registry

        self.objective = registry.make_objective(config)
        functions = StepFunctions(config, self.objective, jax.devices()[:num_devices])
        self.compiled, self._constants = functions.compile_train_step(), functions.constants()
        self._sharding, self._state = functions.batch_sharding, functions.init()

    def to_device(self, batch: dict[str, np.ndarray]) -> Any:
        """Return the batch on the device."""
        import jax

        return jax.device_put(batch, self._sharding)

    def update(self, batch: Any) -> Any:
        """Make an update with a batch of `to_device`; return the metric sums, perhaps not ready."""
        self._state, sums = self.compiled(self._state, batch, self._constants)
        return sums

    def repeat(self, batch: dict[str, np.ndarray]) -> Work:
        """Return a function that makes an update with always the same batch."""
        import jax

        on_device = self.to_device(batch)
        return lambda: functools.partial(jax.block_until_ready, self.update(on_device))


def make_torch_step(case: Case, compiled: bool, cores: int) -> Work:
    """Return a function that makes an update of the peer."""
    batch = make_batch(case)
    return torch_pretraining.make_step(*MODEL_SIZES[case[0]], batch, compiled, cores, "cpu")


def main() -> None:
    parser = harness.make_parser(__doc__, rounds=7)
    parser.add_argument("--steps", type=int, default=10, help="steps before waiting for their end")
    args = parser.parse_args()
    harness.limit_cores(args.cores)

    def make_bertjax_step(num_devices: int) -> Work:
        return BertjaxStep(make_config(CASE, "float32"), num_devices).repeat(make_batch(CASE))

    programs: dict[str, Callable[[], Work]] = {
        BERTJAX: functools.partial(make_bertjax_step, 1),
        SPLIT: functools.partial(make_bertjax_step, args.cores),
        EAGER: functools.partial(make_torch_step, CASE, False, args.cores),
        EAGER_KEPT: functools.partial(make_torch_step, CASE, False, args.cores),
        COMPILED: functools.partial(make_torch_step, CASE, True, args.cores),
    }
    harness.serve_measurements(args, programs)

    commands = {name: harness.worker_command(args, name) for name in programs}
    environments = {SPLIT: {"JAX_NUM_CPU_DEVICES": str(args.cores)}, EAGER_KEPT: KEPT}
    rounds = harness.take_turns(commands, args.rounds, args.steps, 3, environments)
    harness.print_comparison("BERT-Mini, 128 tokens", "sequences", CASE[2], rounds)


if __name__ == "__main__":
    main()
