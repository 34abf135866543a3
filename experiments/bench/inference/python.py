"""Latency of one text and throughput of many with a model loaded in Python.

    python -m experiments.bench.inference.python --vocab bert-base-uncased-vocab.txt
    python -m experiments.bench.inference.python --checkpoint runs/banking --input texts.txt

The first form initializes a BERT-Base (or `--model`) at random, loads it by `bertjax.load` and
fills the mask of texts of several lengths. It prints the time of the first call, which compiles,
and the median and minimum of later calls. The second form runs the model's task on the lines of a
file in one call, alternating with what `bertjax predict` does in the same process.
"""

import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import bertjax
from experiments.bench.harness import limit_cores

LENGTHS = (16, 32, 64, 128)
CALLS = 30


def write_random_model(size: str, vocab: str, directory: pathlib.Path) -> None:
    """Write a random model with a masked-LM head in Hugging Face's format."""
    import jax
    import numpy as np
    from etils import epath

    from bertjax.config.loading import load_config
    from bertjax.formats import huggingface
    from bertjax.formats.tensors import NumpyModel
    from bertjax.tasks import registry
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    overrides = {"model.vocab_size": str(len(tokenizer.tokens)), "data.objective": "mlm"}
    config = load_config(f"pretraining:model={size}", overrides, registry.data_fields())
    params = jax.jit(registry.make_objective(config).init_params)(jax.random.key(0))
    model = NumpyModel(config.model, jax.tree.map(np.asarray, params), tokenizer)
    huggingface.write(model, epath.Path(directory))


def milliseconds(work: Callable[[], object]) -> tuple[float, float]:
    """Call a function and return its milliseconds, by the clock and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def measure_latency(model: bertjax.Model) -> Iterator[str]:
    """Yield the lines of a table of latencies by length."""
    word = max((token for token in model.tokenizer.tokens if token.isalpha()), key=len)
    yield f"{'tokens':>8}{'first call':>12}{'median':>10}{'minimum':>10}{'CPU':>11}   (ms)"
    for length in LENGTHS:
        text = " ".join(["[MASK]", *[word] * (length - 3)])
        times = [milliseconds(lambda text=text: model.fill_mask(text)) for _ in range(CALLS + 1)]  # type: ignore[misc]
        (first, _), (wall, cpu) = times[0], zip(*times[1:], strict=True)
        yield (
            f"{length:8}{first:12.0f}{statistics.median(wall):10.1f}{min(wall):10.1f}"
            f"{statistics.median(cpu):11.1f}"
        )


def measure_throughput(model: bertjax.Model, lines: Sequence[str], rounds: int) -> Iterator[str]:
    """Yield the throughput of `Model.predict` and of the predictor of `bertjax predict`."""
    from bertjax.inference.predictor import Predictor

    predictor = Predictor(model.path)
    programs: dict[str, Callable[[], list]] = {
        "bertjax.load": lambda: model.predict(lines),
        "bertjax predict": lambda: list(
            predictor.predict(predictor.pipeline.parse_lines(lines), len(lines))
        ),
    }
    answers = [program() for program in programs.values()]  # compiles
    assert answers[0] == answers[1], "the answers differ"
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            seconds[name].append(milliseconds(program)[0] / 1e3)
    for name, values in seconds.items():
        yield f"{name:20}{len(lines) / statistics.median(values):10.1f} texts/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--vocab", metavar="FILE", help="vocabulary of a random model")
    source.add_argument("--checkpoint", metavar="DIR")
    parser.add_argument("--model", default="base", help="size of the random model: tiny, mini, ...")
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="one text a line")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    limit_cores(args.cores)
    with tempfile.TemporaryDirectory() as directory:
        if args.vocab:
            write_random_model(args.model, args.vocab, pathlib.Path(directory))
        model = bertjax.load(args.checkpoint or directory)
        if args.input:
            lines = args.input.read_text(encoding="utf-8").splitlines()
            table = measure_throughput(model, lines, args.rounds)
        else:
            table = measure_latency(model)
        for line in table:
            print(line, flush=True)


if __name__ == "__main__":
    main()
