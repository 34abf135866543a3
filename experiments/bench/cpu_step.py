"""Train step on a CPU, compared with that of `transformers` under PyTorch.

    python -m experiments.bench.cpu_step [--peer-python PYTHON] [--cores N]

One update of BERT-Mini (4 layers, hidden size 256, 4 heads, 30,522 tokens) in float32: 32 sequences
of 128 tokens, 20 of them masked, dropout 0.1, gradient clipping, AdamW. The peer is
`transformers.BertForPreTraining`, eager and under `torch.compile`, with PyTorch's fused AdamW. The
speedup is the median over the rounds. PYTHON is an interpreter with torch and transformers (extra
[bench]).
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

from experiments.bench.harness import (
    BERTJAX,
    comparison_table,
    limit_cores,
    make_parser,
    serve_measurements,
    take_turns,
)
from experiments.bench.peers import torch_peer
from experiments.bench.peers.pretraining_batch import VOCAB_SIZE, make_batch

BATCH_SIZE, LENGTH, NUM_PREDICTIONS = 32, 128, 20
SIZE = (4, 256, 4)  # layers, hidden size, heads
EAGER, COMPILED = "PyTorch, eager", "PyTorch, compiled"


def make_bertjax_step() -> Callable[[], object]:
    """Return a function that makes one update, as `bertjax train` does."""
    import jax

    from bertjax.config.optimizer_config import OptimizerConfig
    from bertjax.model.bert import BertWithHeads
    from bertjax.model.bert_config import BertConfig
    from bertjax.model.heads import head_sums
    from bertjax.steps.optimizer import make_optimizer
    from bertjax.steps.train_step import Sums, TrainState, init_state, make_train_step

    model: Any = BertWithHeads(BertConfig(VOCAB_SIZE, *SIZE), ("mlm", "nsp"))
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-4))
    batch = jax.device_put(make_batch(BATCH_SIZE, LENGTH, NUM_PREDICTIONS))

    def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array | None) -> Sums:
        rngs = None if key is None else {"dropout": key}
        logits = model.apply({"params": params}, batch, deterministic=key is None, rngs=rngs)
        return head_sums(logits, batch)

    @jax.jit
    def init(key: jax.Array) -> TrainState:
        params = model.init(key, batch, deterministic=True)["params"]
        return init_state(params, jax.eval_shape(loss, params, batch, None), optimizer)

    train_step = make_train_step(loss, optimizer, seed_key=jax.random.key(0))
    update = jax.jit(train_step, donate_argnums=0)
    state = init(jax.random.key(0))

    def step() -> object:
        nonlocal state
        state, sums = update(state, batch)
        return jax.block_until_ready((state, sums))

    return step


def make_torch_step(compiled: bool, cores: int) -> Callable[[], object]:
    """Return the same of the peer."""
    import torch

    torch.set_num_threads(cores)
    batch = make_batch(BATCH_SIZE, LENGTH, NUM_PREDICTIONS)
    return torch_peer.make_pretraining_step(*SIZE, batch, device="cpu", compiled=compiled)


def main() -> None:
    parser = make_parser(__doc__, rounds=7)
    parser.add_argument("--steps", type=int, default=3, help="steps a round")
    args = parser.parse_args()
    limit_cores(args.cores)
    if args.worker == BERTJAX:
        return serve_measurements(make_bertjax_step)
    if args.worker:
        compiled = args.worker == COMPILED
        return serve_measurements(functools.partial(make_torch_step, compiled, args.cores))

    commands = {
        name: [python, __file__, "--worker", name, f"--cores={args.cores}"]
        for name, python in (
            (BERTJAX, sys.executable),
            (EAGER, args.peer_python),
            (COMPILED, args.peer_python),
        )
    }
    rounds = []
    for costs in take_turns(commands, args.rounds, args.steps, warm_up=3):
        rounds.append(costs)
        rates = (f"{name} {BATCH_SIZE / cost.wall:.1f}" for name, cost in costs.items())
        print(f"round {len(rounds)} of {args.rounds}, sequences/s: {', '.join(rates)}", flush=True)
    print("\n".join(comparison_table("", "sequences", BATCH_SIZE, rounds)))
    return None


if __name__ == "__main__":
    main()
