"""Demonstration: pre-train a small BERT on the documentation of Python and its packages.

`make demo` runs it. Every step is a `bertjax` command, printed before it runs. Half-way the
training is killed, and the same command resumes it. All files go to runs/demo.
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
VOCAB_SIZE = 4096

OPTIONS = f"model=tiny,recipe=modern,data={RUN}/corpus"
FIELDS = [
    f"--config.model.vocab_size={VOCAB_SIZE}",
    "--config.model.dtype=float32",
    "--config.max_seq_length=64",
    "--config.log_every=50",
    "--config.checkpoint_every=400",
    "--config.eval_every=50%",
    "--config.eval_batches=40",
    "--config.keep_period=0",
    "--config.optimizer.learning_rate=4e-3",
]
CLM_COMMAND = [
    *("train", "--workdir", f"{RUN}/clm"),
    *("--config", f"pretraining:{OPTIONS},objective=clm", *FIELDS),
    f"--config.steps={CLM_STEPS}",
]
TRAIN_COMMAND = [
    *("train", "--workdir", f"{RUN}/workdir"),
    *("--config", f"pretraining:{OPTIONS},init={RUN}/clm", *FIELDS),
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
    """Run the demonstration and return the exit status."""
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    start = time.monotonic()
    print_heading("1. Train a vocabulary and tokenize the text that is already on this machine.")
    vocab = f"{RUN}/vocab.txt"
    run("vocab", "--input", "builtin", "--vocab-size", str(VOCAB_SIZE), "--output", vocab)
    run("prepare", "--input", "builtin", "--vocab", vocab, "--output", f"{RUN}/corpus", "--dedup")
    print_heading("2. Pre-train from left to right (CLM).")
    run(*CLM_COMMAND)
    print_heading("3. Print a sequence of the masked LM, with its masks.")
    run("inspect", *TRAIN_COMMAND[3:], "--steps", "1", lines=4)
    print_heading(
        f"4. Pre-train with masks (MLM and NSP). It is killed (kill -9) after step {STEPS // 2}."
    )
    train_and_kill(STEPS // 2)
    print_heading("5. The same command again: it resumes from the last checkpoint.")
    run(*TRAIN_COMMAND)
    print_heading("6. The masked LM loss.")
    print(draw_loss_curve())
    print_heading("7. Fill masks with the model.")
    for answer in fill_masks(SENTENCES):
        best = [f"{guess['token_str']} {guess['score']:.0%}" for guess in answer["masks"][0][:3]]
        print(f"   {answer['text']}\n      {answer['sequence']}\n      ({', '.join(best)})")
    print_heading("8. Write the report: open this file in a browser.")
    run("report", f"{RUN}/workdir")
    print(f"\nDone in {(time.monotonic() - start) / 60:.1f} minutes.")
    return 0


def print_heading(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def bertjax_command(*arguments: str) -> list[str]:
    """Print a command as a user types it and return its command line."""
    print(f"   $ bertjax {shlex.join(arguments)}", flush=True)
    return [sys.executable, "-m", "bertjax", *arguments]


def run(*arguments: str, lines: int | None = None) -> None:
    """Run a subcommand; print only the first `lines` lines of its output, if given."""
    if lines is None:
        subprocess.run(bertjax_command(*arguments), check=True)
        return
    done = subprocess.run(
        bertjax_command(*arguments), check=True, stdout=subprocess.PIPE, text=True
    )
    print("\n".join(done.stdout.splitlines()[:lines]))


def train_and_kill(step: int) -> None:
    """Start the training and kill it once it has logged `step`."""
    process = subprocess.Popen(bertjax_command(*TRAIN_COMMAND))
    while last_step() < step:
        if process.poll() is not None:
            sys.exit(f"the training ended with status {process.returncode} before it was killed")
        time.sleep(0.2)
    process.kill()
    process.wait()
    print(f"   killed after step {last_step()}")


def read_metrics() -> list[dict]:
    """Return the complete lines of metrics.jsonl."""
    path = RUN / "workdir" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step() -> int:
    return max((entry["step"] for entry in read_metrics()), default=0)


def draw_loss_curve(width: int = 60, height: int = 10) -> str:
    """Return the training MLM loss as a text chart."""
    losses = [entry["mlm_loss"] for entry in read_metrics() if entry["split"] == "train"]
    columns = [losses[i * len(losses) // width] for i in range(width)]
    low, high = min(columns), max(columns)
    rows = []
    for row in range(height, -1, -1):
        level = low + (high - low) * row / height
        marks = "".join(
            "•" if round((value - low) / (high - low) * height) == row else " " for value in columns
        )
        rows.append(f"   {level:5.2f} │{marks}")
    return "\n".join(
        [*rows, f"         └{'─' * width}", f"          step 0{'':{width - 13}}{STEPS:,}"]
    )


def fill_masks(sentences: list[str]) -> list[dict]:
    """Return the predictions of `bertjax predict` for sentences with [MASK]."""
    arguments = ["predict", "--checkpoint", f"{RUN}/workdir", "--input", "-", "--output", "-"]
    text = "\n".join(sentences)
    done = subprocess.run(
        bertjax_command(*arguments), input=text, check=True, stdout=subprocess.PIPE, text=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


if __name__ == "__main__":
    sys.exit(main())
