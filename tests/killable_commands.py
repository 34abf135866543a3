"""Commands that tests kill and run again, and what they leave."""

import pathlib
import shutil
from collections.abc import Callable, Sequence

import toy_tasks
from conftest import sample_text, sample_vocabulary
from processes import Command, run
from run_outputs import metrics, params_of

TOYS = {"steps": 4, "log_every": 2, "eval_every": 2, "checkpoint_every": 2, "max_to_keep": 1}
TOYS |= {"optimizer.warmup": 1}
CACHE_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # one process at a time
VOLATILE = ("tensorboard", "metrics.jsonl", "params", "training", "files.json")
VOLATILE += ("_CHECKPOINT_METADATA", "goodput.json")  # times
COMMANDS = (
    "train",
    "predict",
    "embed",
    "embed-shards",
    "prepare",
    "vocab",
    "convert-hf",
    "convert-bertjax",
    "evaluate",
)
COMMANDS += ("report", "sweep", "import-hf")


def write_inputs(folder: pathlib.Path) -> pathlib.Path:
    """Write what the commands only read: data, a text, a vocabulary, a run and its export."""
    toy_tasks.write_data(folder)
    (folder / "text.txt").write_text(sample_text(seed=1, documents=60))
    (folder / "lines.txt").write_text("ba do\nki lu\n")
    (folder / "vocabulary.txt").write_text("\n".join(sample_vocabulary()) + "\n")
    train = ["train", *toy_tasks.arguments("single_label", folder, **TOYS)]
    for words in (
        [*train, "--workdir", folder / "run"],
        ["convert", "--to", "hf", folder / "run", folder / "hf"],
    ):
        done = run(*words, **CACHE_ALL)
        assert done.returncode == 0, done.stderr
    return folder


def command_line(name: str, inputs: pathlib.Path, root: pathlib.Path) -> list[object]:
    """Return a command that writes below the root."""
    text, run_dir, out = ["--input", inputs / "text.txt"], inputs / "run", root / "out"
    used, toys = ["--checkpoint", run_dir], toy_tasks.arguments("single_label", inputs, **TOYS)
    vocabulary = ["--vocab", inputs / "vocabulary.txt"]
    embed = ["embed", *used, "--input", inputs / "lines.txt", "--output"]
    alone = ["--num-processes", 1, "--process-id", 0]
    shards = ["--eval-fraction", "0.1", "--num-shards", "2", "--workers", "0"]
    rates = "optimizer.learning_rate=1e-3,4e-3"
    return {
        "train": ["train", *toys, "--workdir", out / "run"],
        "predict": ["predict", *used, "--save-logits", root / "logits", *toys],
        "embed": [*embed, root / "e.npz"],
        "embed-shards": [*embed, root / "shards.npz", *alone],
        "prepare": ["prepare", *text, *vocabulary, *shards, "--output", out / "corpus"],
        "vocab": ["vocab", *text, "--vocab-size", 60, "--workers", 0, "--output", out / "v.txt"],
        "convert-hf": ["convert", "--to", "hf", run_dir, out / "model"],
        "convert-bertjax": ["convert", "--to", "bertjax", run_dir, out / "model"],
        "evaluate": ["evaluate", *used, "--output", out / "scores"],
        "report": ["report", root / "run"],
        "sweep": ["sweep", *toys, "--seeds", 2, "--grid", rates, "--workdir", out / "sweep"],
        "import-hf": ["convert", "--to", "bertjax", inputs / "hf", out / "model"],
    }[name]


class Killable:
    """A command whose directory is made anew before each kill.

    Args:
      name: one of `COMMANDS`.
      inputs: directory of `write_inputs`.
      folder: directory for what the command writes.
    """

    def __init__(self, name: str, inputs: pathlib.Path, folder: pathlib.Path) -> None:
        self.name, self.inputs, self.root = name, inputs, folder / "root"
        self.words = command_line(name, inputs, self.root)

    def clear(self) -> None:
        """Delete what the command has written."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        if self.name == "report":
            shutil.copytree(self.inputs / "run", self.root / "run")

    def execute(self, begin: Callable[[], None] | None = None) -> tuple[int | None, str]:
        """Run the command to its end; return its status and standard error."""
        done = run(*self.words, begin=begin, **CACHE_ALL)
        return done.returncode, done.stderr

    def finish(self) -> dict[str, object]:
        """Run the command again after a kill; return what it left.

        A command that had finished its output leaves it as it is and says so, with status 2.
        """
        status, error = self.execute()
        finished = (status == 2 and "exists" in error) or "already contains" in error
        assert status == 0 or finished, error
        return self.contents()

    def contents(self) -> dict[str, object]:
        """Return what the command left, without times and formats of arrays."""
        left: dict[str, object] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            assert not name.endswith((".partial", "lock.json", ".lock", ".start")), name
            assert ".orbax-checkpoint-tmp" not in name, name
            if path.name == "metrics.jsonl":
                left[name] = metrics(path.parent)
            elif path.is_dir() and (path / "files.json").exists():
                left[name] = params_of(path)
            elif path.is_file() and not {*path.relative_to(self.root).parts} & {*VOLATILE}:
                left[name] = path.read_bytes()
        return left


def kill_sweep(
    words: Sequence[object], folder: pathlib.Path, moments: Sequence[str]
) -> list[list[str]]:
    """Run a sweep that is killed again and again, and the same one without kills.

    Both have the same result file.

    Args:
      words: command line without `--workdir`.
      folder: directory for the workdirs.
      moments: texts; the process of each is killed once it has printed it.

    Returns:
      The lines of both tables, without the last line, which names the workdir.
    """
    for moment in moments:
        process = Command(*words, "--workdir", folder / "killed")
        process.wait_for_text(moment)
        process.kill()
        process.wait()
    results, tables = [], []
    for name in ("killed", "undisturbed"):
        done = run(*words, "--workdir", folder / name)
        assert done.returncode == 0, done.stderr
        results.append((folder / name / "sweep.json").read_bytes())
        tables.append(done.stdout.splitlines()[:-1])
    assert results[0] == results[1]
    return tables
