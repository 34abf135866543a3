"""Pre-trains a small BERT on the English that came with Python and its packages.

Run by `make demo`. Everything it does is a `bertjax` command, printed before it runs; half-way the
training is killed, and the same command goes on with it. All files go to runs/demo.
"""

import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

RUN = pathlib.Path("runs/demo")
CLM_STEPS, STEPS = 600, 1600
PIECES = 4096

OPTIONS = f"model=tiny,recipe=modern,data={RUN}/corpus"
FIELDS = [
    f"--config.model.vocab_size={PIECES}",
    "--config.model.dtype=float32",
    "--config.max_seq_length=64",
    "--config.log_every=50",
    "--config.checkpoint_every=400",
    "--config.eval_every=50%",
    "--config.eval_batches=40",
    "--config.keep_period=0",
    "--config.optimizer.learning_rate=4e-3",
]
LEFT = [
    *("train", "--workdir", f"{RUN}/left"),
    *("--config", f"pretraining:{OPTIONS},objective=clm", *FIELDS),
    f"--config.steps={CLM_STEPS}",
]
TRAIN_COMMAND = [
    *("train", "--workdir", f"{RUN}/workdir"),
    *("--config", f"pretraining:{OPTIONS},init={RUN}/left", *FIELDS),
    f"--config.steps={STEPS}",
]

SENTENCES = [
    "Return the [MASK] of the array.",
    "This function [MASK] a list of strings.",
    "If the file does not exist, an exception is [MASK].",
    "The default value is [MASK].",
    "The number of [MASK] must be a positive [MASK].",
]


def main() -> int:
    """Runs the demonstration; returns the exit status."""
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    began = time.monotonic()
    print_heading("1. A vocabulary and token shards from the text that is already on this machine.")
    vocab = f"{RUN}/vocab.txt"
    run("vocab", "--input", "builtin", "--vocab-size", str(PIECES), "--output", vocab)
    run("prepare", "--input", "builtin", "--vocab", vocab, "--output", f"{RUN}/corpus", "--dedup")
    print_heading("2. The model learns words by reading from left to right.")
    run(*LEFT)
    print_heading("3. What it will see from here on: both sides of masks, which are marked.")
    run("inspect", *TRAIN_COMMAND[3:], "--steps", "1", lines=4)
    print_heading(f"4. Training with masks. It is killed (kill -9) after step {STEPS // 2}.")
    train_and_kill(STEPS // 2)
    print_heading("5. The same command again: it goes on from its last checkpoint.")
    run(*TRAIN_COMMAND)
    print_heading("6. The loss, from start to end.")
    print(curve())
    print_heading("7. What it has learnt: [MASK]s filled.")
    for answer in fill_masks(SENTENCES):
        best = [f"{guess['token']} {guess['probability']:.0%}" for guess in answer["masks"][0][:3]]
        print(f"   {answer['text']}\n      {answer['filled']}\n      ({', '.join(best)})")
    print_heading("8. The report: open this file in a browser.")
    run("report", f"{RUN}/workdir")
    print(f"\nDone in {(time.monotonic() - began) / 60:.1f} minutes.")
    return 0


def print_heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def bertjax_command(*arguments: str) -> list[str]:
    """The command line of a verb, which is printed as one would type it."""
    print(f"   $ bertjax {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", "bertjax", *arguments]


def run(*arguments: str, lines: int | None = None) -> None:
    """Runs a verb to its end; with `lines`, only so many of them are shown."""
    if lines is None:
        subprocess.run(bertjax_command(*arguments), check=True)
        return
    done = subprocess.run(
        bertjax_command(*arguments), check=True, stdout=subprocess.PIPE, text=True
    )
    print("\n".join(done.stdout.splitlines()[:lines]))


def train_and_kill(step: int) -> None:
    """Starts the training and kills it once it has logged `step`."""
    process = subprocess.Popen(bertjax_command(*TRAIN_COMMAND))
    while last_step() < step:
        if process.poll() is not None:
            sys.exit(f"the training ended by itself with status {process.returncode}")
        time.sleep(0.2)
    process.kill()
    process.wait()
    print(f"   killed after step {last_step()}, and goes on from the checkpoint before.")


def metrics() -> list[dict]:
    path = RUN / "workdir" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step() -> int:
    return max((entry["step"] for entry in metrics()), default=0)


def curve(width: int = 60, height: int = 10) -> str:
    """The masked loss of the training as a drawing of characters."""
    losses = [entry["mlm_loss"] for entry in metrics() if entry["split"] == "train"]
    columns = [losses[i * len(losses) // width] for i in range(width)]
    low, high = min(columns), max(columns)
    rows = []
    for row in range(height, -1, -1):
        level = low + (high - low) * row / height
        marks = "".join(
            "•" if round((c - low) / (high - low) * height) == row else " " for c in columns
        )
        rows.append(f"   {level:5.2f} │{marks}")
    return "\n".join(
        [*rows, f"         └{'─' * width}", f"          step 0{'':{width - 13}}{STEPS:,}"]
    )


def fill_masks(sentences: list[str]) -> list[dict]:
    """Answers of `bertjax predict` to sentences with [MASK]."""
    arguments = ["predict", "--checkpoint", f"{RUN}/workdir", "--input", "-", "--output", "-"]
    text = "\n".join(sentences)
    done = subprocess.run(
        bertjax_command(*arguments), input=text, check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
