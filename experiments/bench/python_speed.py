"""How long a model that is open in Python takes for one text, and for many at once.

    python -m experiments.bench.python_speed --vocab bert-base-uncased-vocab.txt
    python -m experiments.bench.python_speed --checkpoint runs/banking --input texts.txt

The first draws a BERT-Base (or `--model`) at random, writes it as a directory of Hugging Face,
opens that by `bertjax.load` and fills the mask of texts of some numbers of pieces, again and again:
it tells the first call, which compiles, and the median and the least of the later ones, by the
clock and by processor time.
The second has the method of the model's task answer the lines of a file in one call, in turns with
what `bertjax predict` does with them in the same process, and tells the texts a second of either.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

import bertjax

LENGTHS = (16, 32, 64, 128)
CALLS = 30


def write_random(size: str, vocab: str, directory: pathlib.Path) -> None:
    """A random model with a masked-language head, as a directory of Hugging Face."""
    import jax
    import numpy as np
    from etils import epath

    from bertjax.config.loading import load_config
    from bertjax.formats import huggingface
    from bertjax.formats.tensors import NumpyModel
    from bertjax.tasks import registry
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    fields = {"model.vocab_size": len(tokenizer.tokens), "data.objective": "mlm"}
    config = load_config(f"pretraining:model={size}", fields, registry.data_fields())
    params = jax.jit(registry.make_objective(config).init_params)(jax.random.key(0))
    model = NumpyModel(config.model, jax.tree.map(np.asarray, params), tokenizer)
    huggingface.write(model, epath.Path(directory))


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds by the clock and of the processor."""
    wall, cpu_seconds = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu_seconds)


def one_text(model: bertjax.Model) -> Iterator[str]:
    word = max((token for token in model.tokenizer.tokens if token.isalpha()), key=len)
    yield f"{'pieces':>8}{'first call':>12}{'median':>10}{'least':>10}{'cpu_seconds':>11}   (ms)"
    for length in LENGTHS:
        text = " ".join(["[MASK]", *[word] * (length - 3)])
        first, _ = timed(lambda text=text: model.fill_mask(text))  # type: ignore[misc]
        each = [timed(lambda text=text: model.fill_mask(text)) for _ in range(CALLS)]  # type: ignore[misc]
        walls, processors = zip(*each, strict=True)
        middle = statistics.median
        yield (
            f"{length:8}{first:12.0f}{middle(walls):10.1f}{min(walls):10.1f}"
            f"{middle(processors):11.1f}"
        )


def many_texts(model: bertjax.Model, lines: Sequence[str], rounds: int) -> Iterator[str]:
    from bertjax.inference.predictor import Predictor

    predictor = Predictor(model.path)
    contestants: dict[str, Callable[[], list]] = {
        "bertjax.load": lambda: model.predict(lines),
        "bertjax predict": lambda: list(
            predictor.predict(predictor.pipeline.parse_lines(lines), len(lines))
        ),
    }
    ours, theirs = (work() for work in contestants.values())  # which compiles
    assert ours == theirs, "the answers differ"
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            times[name].append(timed(work)[0] / 1e3)
    for name, own in times.items():
        yield f"{name:20}{len(lines) / statistics.median(own):10.1f} texts/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--vocab", metavar="FILE", help="of a random model")
    source.add_argument("--checkpoint", metavar="DIR")
    parser.add_argument(
        "--model", default="base", metavar="SIZE", help="with --vocab: tiny, mini, ..."
    )
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="a text a line")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as directory:
        if args.vocab:
            write_random(args.model, args.vocab, pathlib.Path(directory))
        model = bertjax.load(args.checkpoint or directory)
        if args.input:
            lines = args.input.read_text(encoding="utf-8").splitlines()
            found = many_texts(model, lines, args.rounds)
        else:
            found = one_text(model)
        for line in found:
            print(line, flush=True)


if __name__ == "__main__":
    main()
