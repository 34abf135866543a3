"""TPU compiler's estimate of the train step, compared with that of `transformers`.

    python -m experiments.bench.tpu_compile --peer-python PYTHON [--max-seq-length 512 --batch 16]

One data-parallel update of BERT-Large in bfloat16 with dropout, gradient clipping and AdamW.
bertjax compiles what `bertjax train` runs, with its compiler options. The peer is
`FlaxBertForPreTraining` of `transformers` 4.57 (the last with JAX models), with parameters and
optimizer replicated on every chip, as in its examples. It computes the vocabulary's logits at every
position, bertjax at the masked ones; it draws one attention dropout mask for all sequences and
heads.

Cycles are those of one chip without its links, whose time is reported separately. bertjax's include
preflight's charge for a kernel that the compiler does not count. Each step is compiled in its own
process. PYTHON is an interpreter with `transformers<5`, flax, optax and `jax[tpu]`.
"""

import json
from typing import Any

from experiments.bench import harness
from experiments.bench.harness import BERTJAX

GIB = 2**30
NUM_LAYERS, HIDDEN_SIZE = 24, 1024
PEER = "transformers"


def analyze_bertjax(topology: str, layers: int, length: int, per_chip: int) -> dict[str, Any]:
    """Return cycles, seconds on links and bytes per chip of bertjax's step."""
    from bertjax.preflight.analysis import preflight
    from bertjax.preflight.topology import Topology

    target = Topology(topology)
    fields = {
        "max_seq_length": length,
        "batch_size": per_chip * target.chips,
        "model.num_hidden_layers": layers,
    }
    config = harness.load(f"pretraining:model=large,phase={1 if length == 128 else 2}", fields)
    train = preflight(config, target, train_only=True).train
    return {
        "cycles": train.estimated_cycles,
        "charged": train.custom_kernel_cycles,
        "collective_seconds": train.estimated_collective_seconds,
        "bytes": train.hbm_bytes,
    }


def analyze_transformers(topology: str, layers: int, length: int, per_chip: int) -> dict[str, Any]:
    """Return the same of the peer's step."""
    import jax
    import jax.numpy as jnp
    import optax
    import transformers
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from bertjax.mesh.memory import program_bytes
    from bertjax.preflight.hlo import find_collectives, instruction_costs, parse_hlo
    from bertjax.preflight.topology import Topology

    target = Topology(topology)
    devices = target.devices()
    mesh = Mesh(devices, ("data",))
    replicated = NamedSharding(mesh, PartitionSpec())
    sharded = NamedSharding(mesh, PartitionSpec("data"))
    config = transformers.BertConfig(
        num_hidden_layers=layers,
        hidden_size=HIDDEN_SIZE,
        num_attention_heads=HIDDEN_SIZE // 64,
        intermediate_size=4 * HIDDEN_SIZE,
    )
    model = transformers.FlaxBertForPreTraining(
        config, input_shape=(1, length), dtype=jnp.bfloat16, _do_init=False
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-4, eps=1e-6, weight_decay=0.01)
    )

    def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        logits = model(**inputs, params=params, dropout_rng=key, train=True)
        entropy = optax.softmax_cross_entropy_with_integer_labels
        mlm = entropy(logits.prediction_logits.astype(jnp.float32), batch["labels"].clip(0))
        nsp = entropy(logits.seq_relationship_logits.astype(jnp.float32), batch["next_sentence"])
        is_masked = batch["labels"] >= 0
        return (mlm * is_masked).sum() / is_masked.sum() + nsp.mean()

    def step(params: Any, opt_state: Any, batch: Any, seed: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, batch, jax.random.key(seed))
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    params = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, length)))
    batch_size = per_chip * len(devices)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    batch = dict.fromkeys(names, jax.ShapeDtypeStruct((batch_size, length), jnp.int32))
    batch["next_sentence"] = jax.ShapeDtypeStruct((batch_size,), jnp.int32)

    def with_sharding(tree: Any, sharding: NamedSharding) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    seed = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    opt_state = with_sharding(jax.eval_shape(optimizer.init, params), replicated)
    arguments = with_sharding(params, replicated), opt_state, with_sharding(batch, sharded), seed
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=replicated)
    compiled = jitted.lower(*arguments).compile()
    module = parse_hlo(compiled.as_text() or "")
    bytes_sent = sum(c.bytes_sent * c.count for c in find_collectives(module))
    return {
        "cycles": sum(cost.count * cost.cycles for cost in instruction_costs(module)),
        "charged": 0,
        "collective_seconds": bytes_sent / target.bandwidth,
        "bytes": program_bytes(compiled),
    }


def main() -> None:
    parser = harness.make_parser(__doc__)
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--layers", type=int, default=NUM_LAYERS)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32, help="sequences per chip")
    args = parser.parse_args()
    if args.worker:
        analyze = analyze_bertjax if args.worker == BERTJAX else analyze_transformers
        print(json.dumps(analyze(args.topology, args.layers, args.max_seq_length, args.batch)))
        return

    figures = {
        name: harness.read_reply(harness.worker_command(args, name), JAX_PLATFORMS="cpu")
        for name in (BERTJAX, PEER)
    }
    print(f"BERT-Large, {args.layers} layers, {args.topology}")
    print(f"{args.batch} sequences of {args.max_seq_length} tokens per chip\n")
    print(f"{'':14}{'million cycles':>15}{'charged':>9}{'ms on links':>13}{'GiB per chip':>14}")
    for name, cost in figures.items():
        print(
            f"{name:14}{cost['cycles'] / 1e6:15.1f}{cost['charged'] / 1e6:9.1f}"
            f"{1e3 * cost['collective_seconds']:13.1f}{cost['bytes'] / GIB:14.1f}"
        )
    cycles, size = (figures[BERTJAX][key] / figures[PEER][key] for key in ("cycles", "bytes"))
    print(f"{'ratio':14}{cycles:15.2f}{'':22}{size:14.2f}")


if __name__ == "__main__":
    main()
