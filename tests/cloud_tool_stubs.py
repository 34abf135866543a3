"""Directory whose gcloud, xpk, ssh and other tools are stubs that record their arguments."""

import os
import pathlib
import re
import shlex
import subprocess

ROOT = pathlib.Path(__file__).parent.parent
LAUNCH = ROOT / "experiments" / "launch"
PODS = ROOT / "docs" / "pods.md"
EXAMPLE = LAUNCH / "example.conf"

POD_SUBCOMMANDS = ["create", "setup", "run", "logs", "status", "watch", "stop", "collect", "delete"]
SUBCOMMANDS = {
    "tpu_vm.sh": POD_SUBCOMMANDS,
    "gke.sh": POD_SUBCOMMANDS,
    "slurm.sh": ["setup", "run", "logs", "status", "stop", "collect"],
}
COMMANDS = [(script, name) for script, names in SUBCOMMANDS.items() for name in names]

# Characters that a shell, a template, Kubernetes or systemd could expand.
SPECIAL_CHARACTERS = (
    """a  b'c"d $HOME ${HOME} $(HOME) $$ `id` \\e & ; | * ? # ! ( ) < > ~ { } [ ] %h %% \té"""
)

VALUES = {
    "name": "bert-1",
    "project": "my-project",
    "zone": "us-west4-a",
    "bucket": "gs://my-bucket",
    "accelerator": "v5litepod-64",
    "runtime": "v2-alpha-tpuv5-lite",
    "capacity": "spot",
    "config": "experiments/pretraining.py:model=large,data=gs://my-bucket/corpora/mine",
    "config.seed": "3",
    "cluster": "bertjax",
    "image": "registry/train:1",
    "ssh_host": "me@cluster",
    "directory": "/scratch/me/bertjax",
    "nodes": "4",
    "gpus": "8",
    "time": "2-00:00:00",
    "partition": "gpu",
    "account": "lab",
    "modules": "python/3.12 apptainer",
    "apptainer": "/images/python.sif",
    "mounts": "/data:/data",
    "sbatch.constraint": "ib&v100",
    "sbatch.contiguous": "",
}
FREE_TEXT_KEYS = ["name", "project", "bucket", "config", "config.seed"]
FREE_TEXT_KEYS += ["image", "directory", "account", "apptainer", "sbatch.constraint"]
SPECIAL_VALUES = VALUES | {key: f"{VALUES[key]} {SPECIAL_CHARACTERS}" for key in FREE_TEXT_KEYS}
TRAIN = ["train", "--config", SPECIAL_VALUES["config"], "--workdir"]
OVERRIDE = f"--config.seed={SPECIAL_VALUES['config.seed']}"


def write_values(directory: pathlib.Path, values: dict[str, str]) -> pathlib.Path:
    path = directory / "values of a run.conf"
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


# One write for each call, so that the records of two commands of a pipe do not mix.
RECORD = r"""
printf -v call '%s\037' "${0##*/}" "$@"
printf '%s\036' "$call" >>"$RECORD"
[ ! -p /dev/stdin ] || /bin/cat >/dev/null
"""


def stub(directory: pathlib.Path, name: str, body: str = "") -> None:
    """Write an executable that records its name and arguments and then runs `body`."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/bash\n{RECORD}{body}\n")
    path.chmod(0o755)


class Laptop:
    """Home directory with stubs first on its PATH, and the calls that they record."""

    def __init__(self, home: pathlib.Path) -> None:
        self.home, self.bin, self.record = home, home / "bin", home / "record"
        self.bin.mkdir(parents=True)

    def stub(self, *names: str, body: str = "") -> None:
        for name in names:
            stub(self.bin, name, body)

    def environment(self) -> dict[str, str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "RECORD": str(self.record), "HOME": str(self.home)}

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            cwd=self.home,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
        )

    def launch(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run("bash", LAUNCH / script, *arguments)

    def recorded(self) -> list[list[str]]:
        """Return the calls of stubs since the last time."""
        text = self.record.read_text() if self.record.exists() else ""
        self.record.unlink(missing_ok=True)
        calls = [call.split("\037")[:-1] for call in text.split("\036")[:-1]]
        return [call for call in calls if "--porcelain" not in call]  # calls of git in scripts


def dry_run(laptop: Laptop, script: str, *arguments: object) -> list[list[str]]:
    """Return the commands that a dry run prints, each as a list of words."""
    done = laptop.launch(script, *arguments, "--dry-run")
    assert done.returncode == 0 and not done.stderr, done.stderr
    commands: list[list[str]] = []
    for line in done.stdout.splitlines():
        commands.append([])
        for word in shlex.split(line, comments=True):
            if word == "|":
                commands.append([])
            else:
                commands[-1].append(word)
    return [command for command in commands if command]


def doc_commands() -> list[str]:
    """Return the shell commands of docs/pods.md."""
    blocks = re.findall(r"```bash\n(.*?)```", PODS.read_text(), re.DOTALL)
    text = "".join(blocks).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


def expand_as_kubernetes(word: str) -> str:
    """Return a word of a container's command after expansion: $ for $$, the value for $(NAME)."""
    return re.sub(r"\$\$|\$\(HOME\)", lambda m: "$" if m[0] == "$$" else "expanded", word)
