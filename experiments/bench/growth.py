"""Growth of time with the size of the input, and with the position in the data.

    python -m experiments.bench.growth --text FILE --vocab FILE [--parts NAME ...] [--rounds 3]

Each part runs at three sizes n, rn and r²n, in turns; figures are medians over the rounds. If the
seconds are a + b n^k, then k = log((t3 - t2) / (t2 - t1)) / log r, whatever the start-up a is.

- `prepare`, `evaluate`, `embed`, `sweep`: CPU seconds of the command on a text of n MB, n rows,
  n lines, n runs, after one that fills the cache of compiled programs
- `save`: CPU seconds of writing and verifying a checkpoint with n word embeddings; by the clock,
  files of a gigabyte wait for the disk
- `position`: seconds of a train step of BERT-Tiny with its batch from step n of the data on, with
  30 times as many rounds; its last figure is the median ratio of the last position to the first

FILE is plain text of some MB, which is repeated where it is too short.
"""

import argparse
import itertools
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

from experiments.ablations.commands import local_path
from experiments.bench import harness

Measure = Callable[[int], float]  # size -> seconds

SIZES = {
    "prepare": (8, 32, 128),
    "evaluate": (4_000, 16_000, 64_000),
    "embed": (10_000, 31_623, 100_000),
    "sweep": (4, 8, 16),
    "save": (50_000, 200_000, 800_000),
    "position": (1_000, 31_623, 1_000_000),
}
POSITION_ROUNDS = 30  # of one step each, because the speed of a machine changes in a minute
TINY = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2}


def model_options(vocab: str) -> list[str]:
    """Return the options of a run of a random BERT-Tiny."""
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    fields = TINY | {"intermediate_size": 512, "vocab_size": len(load_tokenizer(vocab).tokens)}
    options = [f"--config.model.{name}={value}" for name, value in fields.items()]
    return [*options, f"--config.data.vocab={vocab}", "--config.model.dtype=float32"]


class Growth:
    """The parts of the benchmark.

    Args:
      lines: lines of text, repeated where they are too few.
      vocab: vocabulary file.
      directory: scratch directory.
    """

    def __init__(self, lines: Sequence[str], vocab: str, directory: pathlib.Path) -> None:
        self.lines, self.vocab, self.directory = lines, vocab, directory
        self._numbers = itertools.count()

    def new_path(self) -> pathlib.Path:
        """Return a path that does not exist."""
        return self.directory / str(next(self._numbers))

    def write_lines(self, count: int, document_lines: int = 0) -> str:
        """Write some lines, perhaps as documents of several each, and return the path."""
        path = self.new_path().with_suffix(".txt")
        with open(path, "w", encoding="utf-8") as file:
            for number, line in enumerate(itertools.islice(itertools.cycle(self.lines), count), 1):
                ends = document_lines and number % document_lines == 0
                file.write(f"{line}\n\n" if ends else f"{line}\n")
        return str(path)

    def write_labeled(self, count: int) -> str:
        """Write some lines, each with one of two labels, and return the path."""
        path = self.new_path().with_suffix(".tsv")
        with open(path, "w", encoding="utf-8") as file:
            file.write("label\ttext\n")
            for number, line in enumerate(itertools.islice(itertools.cycle(self.lines), count)):
                file.write(f"{number % 2}\t{line}\n")
        return str(path)

    def classifier(self) -> str:
        """Train a classifier of the words for some steps and return its workdir."""
        data, workdir = self.write_labeled(256), str(self.new_path())
        options = f"train_file={data},eval_file={data}"
        config = ["--config", f"sequence_classification:{options}", "--config.steps=10"]
        config += [*model_options(self.vocab), "--config.max_seq_length=64"]
        harness.measure_cost(harness.bertjax_command("train", "--workdir", workdir, *config))
        return workdir

    def prepare(self) -> Measure:
        """Measure `bertjax prepare` on a text of some MB."""
        mean = sum(len(line.encode()) + 1 for line in self.lines) / len(self.lines)

        def measure(size: int) -> float:
            source = self.write_lines(int(size * 1e6 / mean), document_lines=20)
            output = str(self.new_path())
            words = ("--input", source, "--vocab", self.vocab, "--output", output)
            return harness.measure_cost(harness.bertjax_command("prepare", *words)).cpu

        return measure

    def evaluate(self) -> Measure:
        """Measure `bertjax evaluate` on some rows."""
        workdir = self.classifier()

        def measure(size: int) -> float:
            data, output = self.write_labeled(size), str(self.new_path())
            words = ("--checkpoint", workdir, "--output", output, f"--config.data.eval_file={data}")
            return harness.measure_cost(harness.bertjax_command("evaluate", *words)).cpu

        return measure

    def embed(self) -> Measure:
        """Measure `bertjax embed` on some lines."""
        workdir = self.classifier()

        def measure(size: int) -> float:
            source, output = self.write_lines(size), f"{self.new_path()}.npz"
            words = ("--checkpoint", workdir, "--input", source, "--output", output)
            return harness.measure_cost(harness.bertjax_command("embed", *words)).cpu

        return measure

    def sweep(self) -> Measure:
        """Measure `bertjax sweep` with some seeds."""
        data = self.write_labeled(256)
        config = f"sequence_classification:train_file={data},eval_file={data}"
        options = ["--config.steps=50", "--config.max_seq_length=64", *model_options(self.vocab)]

        def measure(size: int) -> float:
            words = ("--config", config, "--workdir", str(self.new_path()), "--seeds", str(size))
            return harness.measure_cost(harness.bertjax_command("sweep", *words, *options)).cpu

        return measure

    def save(self) -> Measure:
        """Measure a save of a model with a vocabulary of some words."""
        from bertjax.checkpointing.checkpointer import Checkpointer
        from bertjax.steps.step_functions import StepFunctions
        from bertjax.tasks import registry

        def measure(size: int) -> float:
            fields = {"model.vocab_size": size, "steps": 1}
            config = harness.load("pretraining:model=tiny", fields).resolve(None)
            state = StepFunctions(config, registry.make_objective(config)).init()
            checkpointer = Checkpointer(str(self.new_path()))
            started = time.process_time()
            checkpointer.save(state, lambda path: None)
            checkpointer.wait_until_finished()
            return time.process_time() - started

        return measure

    def position(self) -> Measure:
        """Measure a train step and its batch at some step of the data."""
        from data_pipelines.pretraining.data import PretrainingData
        from data_pipelines.pretraining.options import PretrainingOptions
        from experiments.bench.train_step import BertjaxStep, make_config

        source, corpus = self.write_lines(100_000, document_lines=20), str(self.new_path())
        words = ("--input", source, "--vocab", self.vocab, "--output", corpus)
        harness.measure_cost(harness.bertjax_command("prepare", *words))
        case = ("tiny", 128, 32)
        step = BertjaxStep(make_config(case, "float32", packing=True))
        options = PretrainingOptions(128, case[2], workers=1)
        # A reader keeps the plan of its chunk of the corpus, so each position has its own.
        readers = {size: PretrainingData(corpus, options) for size in SIZES["position"]}
        numbers = {size: itertools.count(size) for size in readers}

        def measure(size: int) -> float:
            started = time.perf_counter()
            batch = readers[size].batch(next(numbers[size]))
            sums = step.update(step.to_device(batch))
            float(next(iter(sums.values()))[0])
            return time.perf_counter() - started

        return measure


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return k of t = a + b n^k through three points whose sizes have a common ratio."""
    growth = (seconds[2] - seconds[1]) / (seconds[1] - seconds[0])
    return math.log(growth) / math.log(sizes[1] / sizes[0]) if growth > 0 else math.nan


def measure_part(name: str, measure: Measure, rounds: int) -> None:
    """Print the seconds at each size and how they grow."""
    sizes = SIZES[name]
    for size in sizes if name == "position" else sizes[:1]:
        measure(size)  # compiles, and plans the first chunk
    rounds *= POSITION_ROUNDS if name == "position" else 1
    times = [[measure(size) for size in sizes] for _ in range(rounds)]
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    cells = [f"{size:,}: {seconds:.3g} s" for size, seconds in zip(sizes, medians, strict=True)]
    if name == "position":
        ratio = statistics.median(row[-1] / row[0] for row in times)
        cells.append(f"last / first {ratio:.3f}")
    else:
        cells.append(f"exponent {exponent(sizes, medians):.2f}")
    print(f"{name:10}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--text", type=local_path, required=True, metavar="FILE")
    parser.add_argument("--vocab", required=True, metavar="FILE")
    parser.add_argument("--parts", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    harness.set_up_process()
    lines = [" ".join(line.split()) for line in args.text.read_text(encoding="utf-8").split("\n")]
    lines = [line for line in lines if len(line) > 20]
    for name in args.parts:
        with tempfile.TemporaryDirectory() as directory:
            growth = Growth(lines, args.vocab, pathlib.Path(directory))
            measure_part(name, getattr(growth, name)(), args.rounds)


if __name__ == "__main__":
    main()
