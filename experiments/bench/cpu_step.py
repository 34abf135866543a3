"""How much faster a training step is than that of `transformers` under PyTorch, on the same CPU.

    python -m experiments.bench.cpu_step [--peer-python PYTHON] [--cores N]

One update of BERT-Mini (4 layers, hidden size 256, 4 heads, 30,522 pieces) in float32: 32 rows of
128 pieces, 20 of them masked, dropout 0.1, gradient clipping, AdamW. The peer is
`transformers.BertForPreTraining` as it comes, eager and under `torch.compile`, with PyTorch's fused
AdamW. Each runs in a process of its own on the same cores, and they take turns, so that whatever
else the machine does falls on all of them; the ratio is the median over the rounds. Processor time
is the sum over the cores. PYTHON needs torch and transformers (extra [bench]); it may be the
interpreter of another environment.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench.alternating_runs import serve_measurements, take_turns
from experiments.bench.torch_peer import decayed

BATCH_SIZE, LENGTH, MAX_PREDICTIONS, PIECES = 32, 128, 20, 30522
LAYERS, HIDDEN, HEADS = 4, 256, 4
RATE = 1e-4
PEERS = {"eager": "PyTorch eager", "compiled": "PyTorch compiled"}
NAMES = {"bertjax": "bertjax"} | PEERS


def make_batch(
    rows: int = BATCH_SIZE, length: int = LENGTH, slots: int = MAX_PREDICTIONS
) -> dict[str, np.ndarray]:
    """Full rows of random pieces, one pair each: what packing gives, nearly."""
    draw = np.random.Generator(np.random.Philox(key=0)).random
    input_ids = (1000 + np.floor(draw((rows, length)) * (PIECES - 1000))).astype(np.int32)
    chosen = 1 + np.sort(np.argsort(draw((rows, length - 1)))[:, :slots])
    targets = np.take_along_axis(input_ids, chosen, 1)
    np.put_along_axis(input_ids, chosen, 103, 1)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    return {
        "input_ids": input_ids,
        "token_type_ids": (positions >= length // 2).astype(np.int32),
        "example_ids": np.ones((rows, length), np.int32),
        "position_ids": positions,
        "masked_lm_positions": chosen.astype(np.int32),
        "masked_lm_ids": targets,
        "masked_lm_weights": np.ones((rows, slots), np.float32),
        "cls_positions": np.zeros((rows, 1), np.int32),
        "next_sentence_labels": (draw((rows, 1)) < 0.5).astype(np.int32),
        "next_sentence_weights": np.ones((rows, 1), np.float32),
    }


def peer_inputs(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The batch as `BertForPreTraining` takes it."""
    labels = np.full(batch["input_ids"].shape, -100)
    np.put_along_axis(labels, batch["masked_lm_positions"], batch["masked_lm_ids"], 1)
    return {
        "input_ids": batch["input_ids"],
        "token_type_ids": batch["token_type_ids"],
        "labels": labels,
        "next_sentence_label": batch["next_sentence_labels"][:, 0],
    }


def bertjax_step() -> Callable[[], object]:
    """A function that makes one update, as `bertjax train` does."""
    import jax

    from bertjax.config.optimizer_config import OptimizerConfig
    from bertjax.model.bert import BertWithHeads
    from bertjax.model.bert_config import BertConfig
    from bertjax.model.heads import head_sums
    from bertjax.steps.optimizer import make_optimizer
    from bertjax.steps.train_step import Sums, TrainState, init_state, make_train_step

    model: Any = BertWithHeads(BertConfig(PIECES, LAYERS, HIDDEN, HEADS), ("mlm", "nsp"))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=RATE))
    batch = jax.device_put(make_batch())

    def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array | None) -> Sums:
        rngs = None if key is None else {"dropout": key}
        logits = model.apply({"params": params}, batch, deterministic=key is None, rngs=rngs)
        return head_sums(logits, batch)

    @jax.jit
    def start(key: jax.Array) -> TrainState:
        params = model.init(key, batch, deterministic=True)["params"]
        return init_state(params, jax.eval_shape(loss, params, batch, None), optimizer)

    seed_key = jax.random.key(0)
    update = jax.jit(make_train_step(loss, optimizer, seed_key=seed_key), donate_argnums=0)
    state = start(jax.random.key(0))

    def step() -> object:
        nonlocal state
        state, sums = update(state, batch)
        return jax.block_until_ready((state, sums))

    return step


def peer_step(compiled: bool, threads: int) -> Callable[[], object]:
    """A function that makes one update of the peer."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=PIECES,
            num_hidden_layers=LAYERS,
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            intermediate_size=4 * HIDDEN,
        )
    ).train()
    optimizer = torch.optim.AdamW(decayed(model), lr=RATE, eps=1e-6, fused=True)
    batch = make_batch()
    inputs = peer_inputs(batch) | {"attention_mask": batch["example_ids"]}
    tensors = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    forward = torch.compile(model) if compiled else model

    def step() -> object:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(**tensors).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3, help="steps a round")
    parser.add_argument("--work", choices=NAMES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    if args.work == "bertjax":
        return serve_measurements(bertjax_step)
    if args.work:
        return serve_measurements(lambda: peer_step(args.work == "compiled", args.cores))

    commands = {
        name: [
            *(args.peer_python if name in PEERS else sys.executable, __file__),
            *("--work", name, "--cores", str(args.cores)),
        ]
        for name in NAMES
    }
    found = []
    for costs in take_turns(commands, args.rounds, args.steps, warm_up=3):
        found.append(costs)
        rates = (f"{NAMES[name]} {BATCH_SIZE / cost.wall:.1f}" for name, cost in costs.items())
        print(f"round {len(found)} of {args.rounds}, sequences/s: " + ", ".join(rates), flush=True)
    print(f"\n{'':18}{'sequences/s':>12}{'processor s/step':>18}{'bertjax is faster by':>24}")
    for name, label in NAMES.items():
        wall, cpu_seconds = (statistics.median(costs[name][i] for costs in found) for i in (0, 1))
        ratios = (
            statistics.median(costs[name][i] / costs["bertjax"][i] for costs in found)
            for i in (0, 1)
        )
        times = "{:.2f} ({:.2f} processor)".format(*ratios) if name in PEERS else ""
        print(f"{label:18}{BATCH_SIZE / wall:12.1f}{cpu_seconds:18.2f}{times:>24}")


if __name__ == "__main__":
    main()
