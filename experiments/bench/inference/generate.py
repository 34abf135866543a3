"""Generation with cached keys and values, compared with a loop over the whole model.

    JAX_PLATFORMS=cpu python -m experiments.bench.inference.generate

A random model of 6 layers of 384 with `decoder=prefix` generates 48 tokens for random sources;
[SEP] is not allowed before. Both programs predict in float32 from the same parameters and take
turns in this process. The loop computes sources and targets so far anew for each token, greedily.
A few of its steps, evenly spread, stand for all of them: its time is scaled. Ratios are those of
greedy decoding, medians over the rounds, after a call that compiles. `programs` counts what that
call of the cached decoding compiled.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from etils import epath

from bertjax.formats import huggingface
from bertjax.formats.tensors import NumpyModel
from bertjax.inference.predictor import Runner
from bertjax.model.decoder.options import DecodingOptions
from bertjax.tasks import registry
from bertjax.tasks.fill_mask import PackedTexts
from bertjax.tasks.generation.sources import SourceBatches
from bertjax.training.initialization import PretrainedModel
from experiments.bench import harness

VOCAB_SIZE, SEP, MAX_SEQ_LENGTH, NUM_TOKENS = 30522, 102, 512, 48
SHAPE = {
    "num_hidden_layers": 6,
    "hidden_size": 384,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "max_position_embeddings": MAX_SEQ_LENGTH,
    "vocab_size": VOCAB_SIZE,
    "dtype": "float32",
}
SOURCE_LENGTHS, BATCH_SIZES, NUM_BEAMS = (64, 384), (1, 8), (1, 4)

Sources = Sequence[np.ndarray]


def make_runner() -> Runner:
    """Return a random model."""
    fields = {f"model.{name}": value for name, value in SHAPE.items()}
    config = harness.load("generation", fields)
    objective = registry.make_objective(config)
    params = jax.tree.map(np.asarray, jax.jit(objective.init_params)(jax.random.key(0)))
    with tempfile.TemporaryDirectory() as directory:
        huggingface.write(NumpyModel(config.model, params, None), epath.Path(directory))
        return Runner(PretrainedModel(directory), objective)


def decode(runner: Runner, sources: Sources, num_beams: int) -> list[list[int]]:
    """Return the targets of sources of equal length."""
    options = DecodingOptions(
        num_beams=num_beams, max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS - 1
    )
    batches = SourceBatches(
        sources, [NUM_TOKENS] * len(sources), MAX_SEQ_LENGTH, [options] * len(sources)
    )
    outputs = runner.run(batches, batches.decoding(VOCAB_SIZE, SEP))
    targets = [ids.tolist() for batch in outputs for ids in batch["target_ids"][:, 0]]
    assert len(targets) == len(sources)
    return targets


def run_whole_model(
    runner: Runner, sources: Sources, targets: Sequence[Sequence[int]], steps: Sequence[int]
) -> list[list[int]]:
    """Return the next token of each source after the first tokens of its target, for each step."""
    found = []
    for step in steps:
        ids = [
            np.concatenate([source, np.array(target[:step], np.int32)])
            for source, target in zip(sources, targets, strict=True)
        ]
        last = [np.array([len(text) - 1]) for text in ids]
        packed = PackedTexts(ids, last, MAX_SEQ_LENGTH, [len(source) for source in sources])
        outputs = runner.run(packed.batches())
        found.append(packed.reduce_scores(outputs, VOCAB_SIZE, lambda row: int(row.argmax())))
    return found


def measure(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of a call, by the clock and of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(runner: Runner, length: int, count: int, args: argparse.Namespace) -> None:
    """Print a line for each number of beams, and check the tokens of greedy decoding."""
    random = np.random.default_rng(length)
    sources = list(random.integers(1000, VOCAB_SIZE, (count, length), np.int32))
    steps = [round(x) for x in np.linspace(0, NUM_TOKENS - 1, args.steps)]
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    programs, numbers = {}, {}
    for num_beams in NUM_BEAMS:

        def cached(num_beams: int = num_beams) -> list[list[int]]:
            return decode(runner, sources, num_beams)

        jax.monitoring.register_event_duration_secs_listener(listen)
        targets = cached()
        jax.monitoring.unregister_event_duration_listener(listen)
        numbers[num_beams], programs[num_beams] = len(compiled), cached
        compiled.clear()
    targets = programs[1]()
    next_tokens = run_whole_model(runner, sources, targets, steps)
    expected = [[target[step] for target in targets] for step in steps]
    differing = int((np.array(next_tokens) != np.array(expected)).sum())
    costs: dict[int, list[tuple[float, float]]] = {num_beams: [] for num_beams in [0, *NUM_BEAMS]}
    for _ in range(args.rounds):
        naive = measure(lambda: run_whole_model(runner, sources, targets, steps))
        costs[0].append((naive[0] * NUM_TOKENS / len(steps), naive[1] * NUM_TOKENS / len(steps)))
        for num_beams, work in programs.items():
            costs[num_beams].append(measure(work))
    for num_beams, rows in costs.items():
        wall, cpu = (statistics.median(row[i] for row in rows) for i in (0, 1))
        ratios = [
            statistics.median(n[i] / own[i] for n, own in zip(costs[0], rows, strict=True))
            for i in (0, 1)
        ]
        name = f"{num_beams} beams" if num_beams > 1 else "greedy" if num_beams else "loop"
        speedup = f"{ratios[0]:.1f} (CPU {ratios[1]:.1f})" if num_beams else ""
        rate = count * NUM_TOKENS / wall
        print(
            f"{length:6}{count:7}  {name:8}{rate:10.1f}{cpu:9.2f}{speedup:>20}"
            f"{numbers.get(num_beams, ''):>10}",
            flush=True,
        )
    if differing:
        print(f"{differing} of {len(steps) * count} tokens differ from those of the loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="of the loop, of 48")
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    runner = make_runner()
    print(f"source  batch  {'':8}{'tokens/s':>10}{'CPU s':>9}{'ratio':>20}{'programs':>10}")
    for length in SOURCE_LENGTHS:
        for count in BATCH_SIZES:
            compare(runner, length, count, args)


if __name__ == "__main__":
    main()
