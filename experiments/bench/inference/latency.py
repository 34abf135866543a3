"""Latency of embeddings on a CPU: XLA, ONNX and int8, compared with ONNX Runtime and PyTorch.

    python -m experiments.bench.inference.latency --peer-python PYTHON --checkpoint MODEL \
      [--vocab FILE] [--cores 1] [--rounds 5] [--calls 10]

MODEL is a directory of sentence-transformers or Hugging Face without heads, or `base`: BERT-Base
with random parameters and the vocabulary in FILE, which takes as long as a trained one. Single
texts of 16, 32, 64 and 128 tokens and 32 texts of mixed lengths are embedded from strings to
vectors of length 1 by

- `bertjax.load(MODEL).encode`, and the same of its exports to ONNX, float32 and int8;
- onnxruntime with the `tokenizers` library on the float32 export, and on what its own
  `quantize_dynamic` makes of it; mixed texts sorted by length, in batches of several sizes;
- `SentenceTransformer.encode` on PyTorch;
- the matrix products of the encoder alone in one `jit`, each text at its own length; mixed texts
  also packed in sequences of 128 tokens.

Programs take turns, each in a process of its own. Printed are the milliseconds of CPU time of one
call, medians over the rounds, and the ratio of bertjax to the program, median of the rounds.
PYTHON is an interpreter with sentence-transformers (extra [bench]).
"""

import argparse
import dataclasses
import functools
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Work

LENGTHS = (16, 32, 64, 128)
MIXED = "32 mixed"
CASES = (*map(str, LENGTHS), MIXED)
ONNX, INT8 = "bertjax, ONNX", "bertjax, int8"
RUNTIME, RUNTIME_INT8 = "onnxruntime", "onnxruntime int8"
PYTORCH, PRODUCTS = "sentence-transformers", "matrix products, jit"
PACKED_PRODUCTS = "matrix products, packed"
RANDOM = "base"
BATCH_SIZES = (1, 8, 32)  # of onnxruntime on mixed texts
PACKED_LENGTH, PACKED_SEQUENCES = 128, 8  # of packed products


def make_texts(vocab: list[str], case: str) -> list[str]:
    """Return the texts of a case: random words of the vocabulary, one token each."""
    random = np.random.default_rng(0)
    words = sorted(token for token in vocab if token.isascii() and token.isalpha())
    lengths = np.linspace(8, 128, 32).astype(int) if case == MIXED else [int(case)]
    return [" ".join(random.choice(words, length - 2)) for length in random.permutation(lengths)]


def make_bertjax_work(model: str, texts: list[str]) -> Work:
    import bertjax

    loaded = bertjax.load(model)
    return lambda: loaded.encode(texts, normalize=True)


def make_runtime_work(model: str, texts: list[str], batch_size: int, cores: int) -> Work:
    import onnxruntime
    import tokenizers

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores
    session = onnxruntime.InferenceSession(f"{model}/model.onnx", options)
    names = [array.name for array in session.get_inputs()]
    tokenizer = tokenizers.Tokenizer.from_file(f"{model}/tokenizer.json")
    tokenizer.enable_padding()

    def embed(batch: list[str]) -> np.ndarray:
        encoded = tokenizer.encode_batch(batch)
        mask = np.array([item.attention_mask for item in encoded])
        arrays = {
            "input_ids": np.array([item.ids for item in encoded]),
            "token_type_ids": np.zeros_like(mask),
            "attention_mask": mask,
        }
        hidden = session.run(None, {name: arrays[name] for name in names})[0]
        means = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def work() -> None:
        ordered = sorted(texts, key=len)
        for first in range(0, len(ordered), batch_size):
            embed(ordered[first : first + batch_size])

    return work


def make_torch_work(model: str, texts: list[str], cores: int) -> Work:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(cores)
    encoder = SentenceTransformer(model, device="cpu")
    return lambda: encoder.encode(texts, show_progress_bar=False, normalize_embeddings=True)


def make_product_work(model: str, texts: list[str], packed: bool = False) -> Work:
    """Return a function that runs the matrix products of the encoder.

    Args:
      model: directory of the model.
      texts: the texts.
      packed: multiply the tokens of all texts in sequences of 128, in batches of 8, not each text
        alone.
    """
    harness.set_up_process()
    import jax
    import jax.numpy as jnp

    import bertjax

    config = bertjax.load(model).config
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_attention_heads
    assert inner is not None  # filled in by the model's format
    random = np.random.default_rng(0)

    def matrix(rows: int, columns: int) -> Any:
        return jnp.asarray(random.normal(0, 0.02, (rows, columns)), jnp.float32)

    layers = [
        [matrix(hidden, hidden) for _ in range(4)] + [matrix(hidden, inner), matrix(inner, hidden)]
        for _ in range(config.num_hidden_layers)
    ]

    @jax.jit
    def run(x: Any, layers: Any) -> Any:
        for query, key, value, output, up, down in layers:
            q, k, v = (
                (x @ kernel).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
                for kernel in (query, key, value)
            )
            mixed = (q @ k.swapaxes(2, 3)) @ v
            x = mixed.swapaxes(1, 2).reshape(x.shape) @ output
            x = (x @ up) @ down
        return x

    lengths = [len(text.split()) + 2 for text in texts]
    shapes = [(1, length) for length in lengths]
    if packed:
        batches, rest = divmod(-(-sum(lengths) // PACKED_LENGTH), PACKED_SEQUENCES)
        sizes = [PACKED_SEQUENCES] * batches + [rest] * (rest > 0)
        shapes = [(size, PACKED_LENGTH) for size in sizes]
    inputs = [matrix(s * length, hidden).reshape(s, length, hidden) for s, length in shapes]

    def work() -> Work:
        results = [run(x, layers) for x in inputs]
        return lambda: jax.block_until_ready(results)

    return work


def write_random_base(vocab: str, output: pathlib.Path) -> str:
    """Write BERT-Base with random parameters in the format of Hugging Face; return its path."""
    harness.set_up_process()
    import jax
    from etils import epath

    from bertjax.formats import huggingface
    from bertjax.formats.tensors import NumpyModel
    from bertjax.model.bert import init_params
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer = load_tokenizer(vocab)
    config = dataclasses.replace(
        harness.load("pretraining:model=base", {}).resolve(None).model,
        vocab_size=len(tokenizer.tokens),
    )
    params = jax.device_get(init_params(config, (), jax.random.key(0)))
    output.mkdir()
    huggingface.write(NumpyModel(config, params, tokenizer), epath.Path(output))
    return str(output)


def write_quantized(model: pathlib.Path, output: pathlib.Path) -> None:
    """Write onnxruntime's own dynamic quantization of an export beside the tokenizer's file."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    output.mkdir()
    (output / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    quantize_dynamic(model / "model.onnx", output / "model.onnx", weight_type=QuantType.QInt8)


def write_models(model: str, directory: pathlib.Path) -> dict[str, str]:
    """Write the models of all programs and return their directories by program."""
    import bertjax

    inputs = directory / "inputs.txt"
    inputs.write_text("\n".join(make_texts(bertjax.load(model).tokenizer.tokens, MIXED)))
    for name, *options in (
        ("onnx",),
        ("int8", "--int8", str(inputs), "--min-agreement", "0"),
    ):
        words = ("--checkpoint", model, "--to", "onnx", "--output", f"{directory}/{name}")
        subprocess.run(
            harness.bertjax_command("export", *words, *options),
            check=True,
            env=harness.child_environment(),
            stdout=subprocess.DEVNULL,
        )
    write_quantized(directory / "onnx", directory / "quantized")
    directories = {ONNX: "onnx", INT8: "int8", RUNTIME: "onnx", RUNTIME_INT8: "quantized"}
    paths = {name: f"{directory}/{path}" for name, path in directories.items()}
    return paths | {BERTJAX: model, PYTORCH: model, PRODUCTS: model}


def make_programs(args: argparse.Namespace) -> dict[str, Any]:
    """Return for each worker a function that makes its work."""
    if not args.worker:
        return {}
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(f"{args.tokenizer}/tokenizer.json")
    texts = make_texts(list(tokenizer.get_vocab()), args.case)
    name, _, size = args.worker.partition(", batches of ")
    if name.startswith(RUNTIME):
        make: Any = functools.partial(
            make_runtime_work, args.checkpoint, texts, int(size or 1), args.cores
        )
    elif name == PYTORCH:
        make = functools.partial(make_torch_work, args.checkpoint, texts, args.cores)
    else:
        packed_work = functools.partial(make_product_work, packed=True)
        programs: dict[str, Any] = {PRODUCTS: make_product_work, PACKED_PRODUCTS: packed_work}
        make = functools.partial(programs.get(name, make_bertjax_work), args.checkpoint, texts)
    return {args.worker: make}


def print_rows(case: str, rounds: list[dict[str, harness.Cost]]) -> None:
    """Print for each program the milliseconds of a call and the ratio of bertjax to it."""
    for name in rounds[0]:
        cpu = 1e3 * statistics.median(costs[name].cpu for costs in rounds)
        ratios = " ".join(
            f"{statistics.median(costs[ours].cpu / costs[name].cpu for costs in rounds):8.2f}"
            for ours in (BERTJAX, ONNX, INT8)
        )
        print(f"{case:10}{name:36}{cpu:10.1f}{ratios:>28}", flush=True)


def main() -> None:
    parser = harness.make_parser(__doc__, rounds=5, cores=1)
    parser.add_argument("--checkpoint", required=True, metavar="MODEL")
    parser.add_argument("--vocab", metavar="FILE", help=f"of --checkpoint {RANDOM}")
    parser.add_argument("--calls", type=int, default=10, help="calls of each program per round")
    parser.add_argument("--case", default=MIXED, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    harness.serve_measurements(args, make_programs(args))

    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model = args.checkpoint
        if model == RANDOM:
            if not args.vocab:
                parser.error(f"--checkpoint={RANDOM}: has no vocabulary. Give --vocab FILE.")
            model = write_random_base(args.vocab, directory / RANDOM)
        paths = write_models(model, directory)
        header = "".join(f"{title:>9}" for title in ("XLA /", "ONNX /", "int8 /"))
        print(f"{'tokens':10}{'program':36}{'CPU ms':>10}{header:>28}")
        for case in CASES:
            programs = dict(paths)
            if case == MIXED:
                programs[PACKED_PRODUCTS] = programs[PRODUCTS]
                for runtime in (RUNTIME, RUNTIME_INT8):
                    path = programs.pop(runtime)
                    programs |= {f"{runtime}, batches of {size}": path for size in BATCH_SIZES}
            options = "--case", case, "--tokenizer", paths[ONNX]
            commands = {
                program: [
                    args.peer_python if program == PYTORCH else sys.executable,
                    *(*sys.argv, "--worker", program, *options, "--checkpoint", path),
                ]
                for program, path in programs.items()
            }
            calls = 1 if case == MIXED else args.calls
            print_rows(case, harness.take_turns(commands, args.rounds, calls, warm_up=2))


if __name__ == "__main__":
    main()
