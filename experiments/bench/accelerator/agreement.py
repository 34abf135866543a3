"""Agreement of the device with a CPU: losses, dropout bits, attention kernels, a resumed run.

    python -m experiments.bench.accelerator.agreement

makes golden_losses.json: 50 losses of BERT-Mini, and of the smaller model of the rehearsal. Run it
on a CPU.
"""

import contextlib
import functools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from experiments.bench import harness, train_step
from experiments.bench.accelerator import parts
from experiments.bench.train_step import Case

GOLDEN = pathlib.Path(__file__).with_name("golden_losses.json")
LOSS_CASES: dict[bool, Case] = {False: ("mini", 128, 4), True: ("tiny", 128, 2)}  # by `toy`
NUM_LOSSES, LOSS_TOLERANCE = 50, 1e-3
# Packed sequences: [B, T, N, D].
ATTENTION_SHAPES = {False: ((8, 128, 12, 64), (4, 512, 16, 64)), True: ((2, 100, 2, 32),)}
# Norm of the difference from plain attention in float32, relative to the norm of that. One other
# element dropped would exceed it.
ATTENTION_TOLERANCES = {"bfloat16": 2e-2, "float32": 1e-4}
DROPOUT_RATE = 0.1


def check_losses(record: Callable[..., None], toy: bool) -> None:
    """Record the differences of losses and dropout bits from those of a CPU."""
    import jax

    from bertjax.model.dropout import byte_threshold, keep_mask

    case = LOSS_CASES[toy]
    shape = (4, 12, 128, 128)
    bits = jax.jit(functools.partial(keep_mask, drop_threshold=byte_threshold(0.1), shape=shape))
    masks = []
    for device in (jax.devices()[0], jax.devices("cpu")[0]):
        masks.append(np.asarray(bits(jax.device_put(np.array([1, 2], np.uint32), device))))
    record_check(record, "different dropout bits", int((masks[0] != masks[1]).sum()), 0)

    golden = json.loads(GOLDEN.read_text())[case[0]]
    difference = np.abs(np.array(list(compute_losses(case))) - golden).max()
    record_check(record, "loss of 50 steps, float32", float(difference), LOSS_TOLERANCE)


def compute_losses(case: Case, **model: Any) -> Iterator[float]:
    """Yield the losses of some steps in float32 with dropout, each with another batch.

    Args:
      case: sizes.
      **model: fields of the section `model`.
    """

    optimizer = {"learning_rate": 1e-3, "warmup": 5, "decay_steps": 0}
    fields = {f"optimizer.{name}": value for name, value in optimizer.items()}
    fields |= {f"model.{name}": value for name, value in model.items()}
    config = train_step.make_config(case, "float32", steps=NUM_LOSSES, log_every=1, **fields)
    with _float32_products():
        step = train_step.BertjaxStep(config)
    for number in range(NUM_LOSSES):
        batch = step.to_device(train_step.make_batch(case, seed=number))
        value, weight = step.update(batch)["loss"]
        yield float(value / weight)


def _float32_products() -> Any:
    """Return a context in which products are as exact as in float32.

    By default NVIDIA GPUs round to TF32. Three products of parts in TF32 are exact enough. Kernels
    with "highest" take five times as long to compile: 80 CPU seconds of a pass and its gradient.
    """
    import jax

    on_gpu = jax.default_backend() == "gpu"
    return jax.default_matmul_precision("TF32_TF32_F32_X3" if on_gpu else "highest")


def check_attention(record: Callable[..., None], toy: bool) -> None:
    """Record how far kernels and plain attention differ from plain attention in float32."""
    import jax
    import jax.numpy as jnp

    from bertjax.mesh.device_mesh import make_mesh
    from bertjax.model.attention import dispatch, gpu, plain

    def run(attend: Callable[..., Any], arrays: Any, ids: Any, dtype: str) -> list[np.ndarray]:
        """Return the output and the gradients of its weighted sum, with dropout."""
        *qkv, weights = (x.astype(dtype) for x in arrays)
        dropout = {"dropout_rate": DROPOUT_RATE, "dropout_key": jax.random.key(3)}

        def loss(*qkv: Any) -> Any:
            out = attend(*qkv, jnp.asarray(ids, jnp.int32), **dropout).astype(jnp.float32)
            return (out * weights).sum(), out

        gradient = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
        with _float32_products() if dtype == "float32" else contextlib.nullcontext():
            (_, out), gradients = gradient(*qkv)
        return [np.asarray(x, np.float32) for x in (out, *gradients)]

    mesh = make_mesh(1, 1, 1, jax.devices()[:1])
    with jax.set_mesh(mesh):
        for shape in ATTENTION_SHAPES[toy]:
            sequences, length = shape[:2]
            rows, positions = np.arange(sequences)[:, None], np.arange(length)
            ids = (positions // (9 + 7 * rows) + 1) * (positions < length - 8)
            keys = jax.random.split(jax.random.key(0), 4)
            # Representable in bfloat16, so that both dtypes have the same inputs.
            arrays = [jax.random.normal(key, shape, jnp.bfloat16) for key in keys]
            exact = run(plain.attention, arrays, ids, "float32")
            choice = dispatch.choose_implementation(jax.ShapeDtypeStruct(shape, "float32"))
            name, attend = str(choice), choice.attend
            if jax.default_backend() == "cpu":
                name, attend = "gpu kernels", functools.partial(gpu.attention, interpret=True)
            for dtype, tolerance in ATTENTION_TOLERANCES.items():
                errors = {
                    key: [
                        _relative(*pair)
                        for pair in zip(run(f, arrays, ids, dtype), exact, strict=True)
                    ]
                    for key, f in (("kernel", attend), ("plain", plain.attention))
                }
                title = f"attention {'x'.join(map(str, shape))}, {dtype}"
                details = {"implementation": name, "errors": errors}
                record_check(record, title, max(errors["kernel"]), tolerance, **details)


def _relative(x: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(x - expected) / np.linalg.norm(expected))


def check_resume(record: Callable[..., None], toy: bool) -> None:
    """Record how the losses of a run that is killed and resumed differ from an undisturbed one's.

    Three processes of `bertjax train` in bfloat16 on a small corpus of invented words. The second
    is killed (SIGKILL) once its second checkpoint is written; the third resumes it.
    """
    from bertjax.training.metrics_file import read_metrics

    scratch = parts.scratch_directory()
    corpus = scratch / "corpus"
    write_corpus(corpus)
    fields = {"steps": 60, "checkpoint_every": 20, "eval_every": 60, "log_every": 1}
    fields |= {"batch_size": 8 if toy else 32, "model.vocab_size": VOCABULARY_SIZE}
    model = LOSS_CASES[toy][0]

    def train(name: str, fault: str = "") -> subprocess.CompletedProcess[str]:
        command = harness.bertjax_command(
            *("train", "--workdir", str(scratch / name)),
            *("--config", f"pretraining:model={model},data={corpus}"),
            *(f"--config.{field}={value}" for field, value in fields.items()),
        )
        environment = os.environ | {"BERTJAX_FAULT": fault}
        process = subprocess.run(
            command,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=parts.end_with_parent,
        )
        print(process.stderr, file=sys.stderr)
        if not fault and process.returncode:
            raise RuntimeError(process.stderr.splitlines()[-1])
        return process

    train("whole")
    killed = train("killed", "save.after_manifest:2=kill")
    if killed.returncode != -9:
        raise RuntimeError(f"the run was not killed but ended with status {killed.returncode}")
    resumed = re.search(r"resuming from step (\d+)", train("killed").stderr)
    whole, again = (
        {
            line["step"]: line["loss"]
            for line in read_metrics(scratch / name)
            if line["split"] == "train"
        }
        for name in ("whole", "killed")
    )
    if whole.keys() != again.keys():
        raise RuntimeError(f"steps {sorted(whole.keys() ^ again.keys())} are missing")
    difference = max(abs(whole[step] - again[step]) for step in whole)
    details = {"resumed_from": int(resumed[1]) if resumed else 0, "last_loss": whole[max(whole)]}
    record_check(record, "loss of a resumed run, bfloat16", difference, 0, **details)
    if not resumed:
        raise RuntimeError("the third run did not resume from a checkpoint")


VOCABULARY_SIZE = 1024


def write_corpus(directory: pathlib.Path) -> None:
    """Prepare a corpus of 600 documents of invented words, each a token of its vocabulary."""
    from data_pipelines.corpus.options import CorpusOptions
    from data_pipelines.corpus.prepare import prepare
    from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

    syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
    words = [a + b for a in syllables for b in syllables]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."]
    words = words[: VOCABULARY_SIZE - len(special)]
    draw = np.random.Generator(np.random.Philox(key=0)).random
    lines: list[str] = []
    for _ in range(600):
        for _ in range(12):
            chosen = (len(words) * draw(12) ** 3).astype(int)
            lines.append(" ".join(words[i] for i in chosen) + " .")
        lines.append("")
    text = directory.with_suffix(".txt")
    text.write_text("\n".join(lines))
    tokenizer = WordPieceTokenizer([*special, *words], cased=False)
    options = CorpusOptions(eval_fraction=0.05, num_shards=8)
    prepare([str(text)], tokenizer, directory, options, workers=1)


def record_check(
    record: Callable[..., None], name: str, value: float, tolerance: float, **details: Any
) -> None:
    """Record a difference and whether it is within its tolerance."""
    ok = bool(value <= tolerance)  # False for NaN
    record(name, check=value, tolerance=tolerance, ok=ok, **details)


def main() -> None:
    os.environ["JAX_PLATFORMS"] = "cpu"
    losses = {
        case[0]: [round(loss, 6) for loss in compute_losses(case)] for case in LOSS_CASES.values()
    }
    GOLDEN.write_text(json.dumps(losses) + "\n")
    print({name: (values[0], values[-1]) for name, values in losses.items()})


if __name__ == "__main__":
    main()
