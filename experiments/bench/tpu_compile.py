"""What the TPU compiler expects of our train step and of that of `transformers`, side by side.

    python -m experiments.bench.tpu_compile --peer-python PYTHON [--max-seq-length 512 --rows 16]

One update of BERT-Large in bfloat16 with dropout, gradient clipping and AdamW, data parallel: ours
is what `bertjax train` runs, its compiler options included; theirs `FlaxBertForPreTraining` of
`transformers` 4.57 (the last with JAX models) as it comes, with whole parameters and optimizer on
every chip, as its examples train. Theirs scores every piece of the vocabulary at every position,
ours at the slots of the recipe; theirs drops one mask of attention for all rows and heads.

Cycles are those of a chip without its links, whose time is told apart. Ours are charged for a
kernel that the compiler does not see (`bertjax preflight`). Each is compiled in a process of its
own; PYTHON is the interpreter of an environment with `transformers<5`, flax, optax and `jax[tpu]`.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

GIB = 2**30
LAYERS, HIDDEN, HEADS, PIECES = 24, 1024, 16, 30522


def ours(topology: str, layers: int, length: int, rows: int) -> dict[str, Any]:
    """Cycles and bytes a chip of our step."""
    from bertjax.config.loading import load_config
    from bertjax.preflight.analysis import preflight
    from bertjax.preflight.topology import Topology
    from bertjax.tasks import registry

    recipe = pathlib.Path(__file__).parents[1] / "pretraining.py"
    target = Topology(topology)
    fields = {
        "max_seq_length": length,
        "batch_size": rows * target.chips,
        "model.num_hidden_layers": layers,
        "model.hidden_dropout_prob": 0.1,
        "model.attention_probs_dropout_prob": 0.1,
    }
    text = {name: str(value) for name, value in fields.items()}
    phase = 1 if length == 128 else 2
    config = load_config(f"{recipe}:model=large,phase={phase}", text, registry.data_fields())
    verdict = preflight(config, target, train_only=True)
    return {
        "cycles": verdict.train.estimated_cycles,
        "charged": verdict.train.custom_kernel_cycles,
        "collective_seconds": verdict.train.estimated_collective_seconds,
        "bytes": verdict.train.hbm_bytes,
    }


def measure_transformers(topology: str, layers: int, length: int, rows: int) -> dict[str, Any]:
    """The same of theirs."""
    import jax
    import jax.numpy as jnp
    import optax
    import transformers
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from bertjax.preflight.hlo import read_program
    from bertjax.preflight.topology import Topology

    target = Topology(topology)
    devices = target.devices()
    mesh = Mesh(devices, ("data",))
    whole, split = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec("data")))
    model = transformers.FlaxBertForPreTraining(
        transformers.BertConfig(
            vocab_size=PIECES,
            num_hidden_layers=layers,
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            intermediate_size=4 * HIDDEN,
        ),
        input_shape=(1, length),
        dtype=jnp.bfloat16,
        _do_init=False,
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(1e-4, eps=1e-6, weight_decay=0.01)
    )

    def mean(losses: jax.Array, weights: jax.Array) -> jax.Array:
        return (losses * weights).sum() / weights.sum()

    def loss(params: Any, batch: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        logits = model(**inputs, params=params, dropout_rng=key, train=True)
        entropy = optax.softmax_cross_entropy_with_integer_labels
        mlm = entropy(logits.prediction_logits.astype(jnp.float32), batch["labels"].clip(0))
        nsp = entropy(logits.seq_relationship_logits.astype(jnp.float32), batch["next_sentence"])
        return mean(mlm, batch["labels"] >= 0) + nsp.mean()

    def step(params: Any, opt_state: Any, batch: Any, seed: jax.Array) -> Any:
        key = jax.random.key(seed)
        value, gradient = jax.value_and_grad(loss)(params, batch, key)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value

    def shapes(tree: Any, sharding: NamedSharding) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree
        )

    params = jax.eval_shape(lambda: model.init_weights(jax.random.key(0), (1, length)))
    number = rows * len(devices)
    array = jax.ShapeDtypeStruct((number, length), jnp.int32)
    names = ("input_ids", "attention_mask", "token_type_ids", "labels")
    batch = dict.fromkeys(names, array)
    batch["next_sentence"] = jax.ShapeDtypeStruct((number,), jnp.int32)
    lowered = jax.jit(step, donate_argnums=(0, 1), out_shardings=whole).lower(
        shapes(params, whole),
        shapes(jax.eval_shape(optimizer.init, params), whole),
        shapes(batch, split),
        jax.ShapeDtypeStruct((), jnp.int32, sharding=whole),
    )
    compiled = lowered.compile()
    memory: Any = compiled.memory_analysis()
    state = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    instructions, collectives = read_program(compiled.as_text() or "")
    return {
        "cycles": sum(each.runs * each.cycles for each in instructions),
        "charged": 0,
        "collective_seconds": sum(each.sent * each.runs for each in collectives) / target.bandwidth,
        "bytes": state + memory.temp_size_in_bytes + memory.generated_code_size_in_bytes,
    }


def run(python: str, arguments: list[str]) -> dict[str, Any]:
    """What a process of that interpreter finds of one of the two."""
    environment = {
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(pathlib.Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [python, __file__, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{python} {' '.join(arguments)} failed: see above.")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--topology", default="v5e:4x4")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--max-seq-length", type=int, default=128)
    parser.add_argument("--rows", type=int, default=32, help="a chip")
    parser.add_argument("--work", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        compile_step = ours if args.work == "ours" else measure_transformers
        print(json.dumps(compile_step(args.topology, args.layers, args.max_seq_length, args.rows)))
        return

    shape = [f"--topology={args.topology}", f"--layers={args.layers}"]
    shape += [f"--max-seq-length={args.max_seq_length}", f"--rows={args.rows}"]
    found = {
        "bertjax": run(sys.executable, ["--work=ours", *shape]),
        "transformers": run(args.peer_python, ["--work=theirs", *shape]),
    }
    print(f"BERT-Large, {args.layers} layers, {args.topology}")
    print(f"{args.rows} rows of {args.max_seq_length} a chip\n")
    print(f"{'':14}{'million cycles':>15}{'charged':>9}{'ms on links':>13}{'GiB a chip':>12}")
    for name, each in found.items():
        cycles, charged = (f"{each[key] / 1e6:.1f}" for key in ("cycles", "charged"))
        collective_seconds, size = (
            f"{1e3 * each['collective_seconds']:.1f}",
            f"{each['bytes'] / GIB:.1f}",
        )
        print(f"{name:14}{cycles:>15}{charged:>9}{collective_seconds:>13}{size:>12}")
    of = {key: found["bertjax"][key] / found["transformers"][key] for key in ("cycles", "bytes")}
    print(f"{'ratio':14}{of['cycles']:15.2f}{'':22}{of['bytes']:12.2f}")


if __name__ == "__main__":
    main()
