"""The scripts of experiments/launch: dry runs, quoting, errors, docs/pods.md."""

import pathlib
import re
import shlex
import shutil
import subprocess

import pytest
from cloud_tool_stubs import (
    COMMANDS,
    EXAMPLE,
    LAUNCH,
    OVERRIDE,
    PODS,
    ROOT,
    SPECIAL_VALUES,
    SUBCOMMANDS,
    TRAIN,
    VALUES,
    Laptop,
    doc_commands,
    dry_run,
    expand_as_kubernetes,
    stub,
    write_values,
)
from conftest import LONG

# Dry runs


@pytest.mark.parametrize(("script", "subcommand"), COMMANDS)
def test_dry_run_prints_the_commands_of_a_real_run(laptop, script, subcommand) -> None:
    values = write_values(laptop.home, SPECIAL_VALUES)
    expected = dry_run(laptop, script, subcommand, "--file", values)
    assert expected and laptop.recorded() == []
    if (script, subcommand) == ("tpu_vm.sh", "watch"):
        return  # its commands depend on the state of the slice: see test_launch_workers
    done = laptop.launch(script, subcommand, "--file", values)
    assert done.returncode == 0, done.stderr
    assert sorted(laptop.recorded()) == sorted(expected)


@pytest.mark.parametrize(("script", "subcommand"), COMMANDS)
def test_dry_run_can_be_pasted_into_a_shell(laptop, script, subcommand) -> None:
    values = write_values(laptop.home, SPECIAL_VALUES)
    expected = dry_run(laptop, script, subcommand, "--file", values)
    text = laptop.launch(script, subcommand, "--file", values, "--dry-run").stdout
    assert laptop.run("bash", "-c", text).returncode == 0
    assert sorted(laptop.recorded()) == sorted(expected)


def test_flag_overrides_the_values_file_in_any_order(laptop) -> None:
    values = write_values(laptop.home, VALUES)
    for flags in (["--zone", "b", "--file", values], [f"--file={values}", "--zone=b"]):
        (command,) = dry_run(laptop, "tpu_vm.sh", "delete", *flags)
        assert "--zone=b" in command and "--project=my-project" in command
    flag = "--config.seed=4"
    (command,) = dry_run(laptop, "tpu_vm.sh", "run", "--file", values, flag)
    assert command[-1].endswith("--config.seed=3 --config.seed=4")  # bertjax uses the last one


def test_values_file_needs_no_quotes_and_expands_nothing(laptop) -> None:
    lines = ["# a comment", "", "\tname =  a b ", "zone=$(touch x)", 'project = "p" # p\r']
    path = laptop.home / "values"
    path.write_text("\n".join(lines))  # without a line break at its end
    (command,) = dry_run(laptop, "tpu_vm.sh", "delete", "--file", path)
    assert command[5:8] == ["a b", '--project="p" # p', "--zone=$(touch x)"]
    assert not (laptop.home / "x").exists()


# Quoting


def remote_shell(laptop: Laptop, home: pathlib.Path, command: str) -> None:
    """Run a line as a worker's login shell does, in its home directory."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=home,
        env=laptop.environment() | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    assert done.returncode == 0, done.stderr


def test_tpu_worker_receives_code_and_exact_values(laptop, tmp_path) -> None:
    values = write_values(laptop.home, SPECIAL_VALUES)
    _, (*_, install) = dry_run(laptop, "tpu_vm.sh", "setup", "--file", values)[-2:]
    ((*_, run),) = dry_run(laptop, "tpu_vm.sh", "run", "--file", values)
    archive = tmp_path / "source.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", ROOT, "experiments/launch"], check=True)
    worker = Laptop(tmp_path / "worker")
    worker.stub("gcloud", body=f'case "$2" in cat) /bin/cat {archive} ;; esac')
    worker.stub("python3", "systemctl")
    worker.stub("sudo", body='exec "$@"')
    # Like systemd, drop the options and run the service.
    worker.stub("systemd-run", body='while [ "$1" != /bin/bash ]; do shift; done; "$@" || true')
    stub(worker.home / ".local" / "bin", "uv")
    stub(worker.home / "bertjax" / ".venv" / "bin", "bertjax", "exit 75")

    # gcloud splits the line at its spaces, and ssh joins the words again.
    remote_shell(worker, worker.home, install.removeprefix("--command="))
    calls = worker.recorded()
    assert calls[-1][:3] == ["uv", "pip", "install"] and ".[tpu]" in calls[-1]
    remote_shell(worker, worker.home, run.removeprefix("--command="))

    workdir = f"{SPECIAL_VALUES['bucket']}/runs/{SPECIAL_VALUES['name']}"
    calls = worker.recorded()
    assert ["bertjax", *TRAIN, workdir, OVERRIDE] in calls
    copies = [call for call in calls if call[:3] == ["gcloud", "storage", "cp"]]
    assert copies and all(call[-1].startswith(f"{workdir}/logs/") for call in copies)
    assert (worker.home / "bertjax" / "exit_status").read_text() == "75\n"


def test_kubernetes_pod_receives_exact_values(laptop) -> None:
    values = write_values(laptop.home, SPECIAL_VALUES)
    (command,) = dry_run(laptop, "gke.sh", "run", "--file", values)
    (line,) = [word.removeprefix("--command=") for word in command if "--command=" in word]
    laptop.stub("bertjax", body="exit 75")
    started = f"({expand_as_kubernetes(line)}) & wait $!"  # as xpk starts it
    assert laptop.run("bash", "-c", started).returncode == 75
    workdir = f"{SPECIAL_VALUES['bucket']}/runs/{SPECIAL_VALUES['name']}"
    assert laptop.recorded() == [["bertjax", *TRAIN, workdir, OVERRIDE]]


# Accelerators

RUNTIMES = {
    "v2-8": "tpu-ubuntu2204-base",
    "v3-32": "tpu-ubuntu2204-base",
    "v4-16": "tpu-ubuntu2204-base",
    "v5litepod-64": "v2-alpha-tpuv5-lite",
    "v5p-8": "v2-alpha-tpuv5",
    "v6e-256": "v2-alpha-tpuv6e",
}


@pytest.mark.parametrize("accelerator", RUNTIMES)
def test_tpu_runtime_is_that_of_the_accelerator(laptop, accelerator) -> None:
    values = write_values(laptop.home, VALUES | {"accelerator": accelerator})
    (command,) = dry_run(laptop, "tpu_vm.sh", "create", "--file", values, "--runtime=")
    assert f"--runtime-version={RUNTIMES[accelerator]}" in command
    (command,) = dry_run(laptop, "tpu_vm.sh", "create", "--file", values, "--runtime=own")
    assert "--runtime-version=own" in command


# Errors


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tpu_vm.sh", "no subcommand. Use one of create setup"),
        ("tpu_vm.sh crate", "'crate': unknown subcommand. Use one of create setup"),
        ("tpu_vm.sh delete --project p --zone z", "name: no value. Give --name VALUE, or"),
        ("tpu_vm.sh setup --name n --project p --bucket gs://b", "zone: no value. Give --zone"),
        ("gke.sh setup --file FILE --image=", "image: no value. Give --image VALUE, or --file"),
        ("slurm.sh run --name n --directory d", "nodes: no value. Give --nodes VALUE"),
        ("tpu_vm.sh run --file FILE --spoot", "'--spoot': unknown flag. Use --file, --dry-run"),
        ("tpu_vm.sh run --file FILE --nodes 4", "'--nodes': unknown flag. Use --file"),
        ("tpu_vm.sh run --file FILE spot", "'spot': unknown flag"),
        ("gke.sh status --name", "--name: no value. Write --name VALUE"),
        ("gke.sh run --file nowhere", "nowhere: cannot be read. Give --file a file of lines"),
        ("slurm.sh run --file FILE --nodes few", "nodes='few': not a whole number"),
        ("slurm.sh run --file FILE --name a/b", "name='a/b': names a directory and a job"),
        (
            "tpu_vm.sh run --file FILE --bucket my-bucket",
            "bucket='my-bucket': not a bucket. Write gs://NAME",
        ),
        (
            "tpu_vm.sh create --file FILE --capacity free",
            "capacity='free': unknown. Use on-demand, spot",
        ),
        (
            "gke.sh create --file FILE --capacity reserved",
            "capacity='reserved': not supported on GKE",
        ),
        *[
            (
                f"tpu_vm.sh {name} --file FILE --accelerator {accelerator}",
                f"accelerator='{accelerator}': unknown. Use v2-N, v3-N, v4-N, v5litepod-N, v5p-N",
            )
            for name in ("create", "watch")
            for accelerator in ("v5e-64", "v4", "v4-", "v6e-8x8", "v1-8")
        ],
        (
            "tpu_vm.sh watch --file FILE --accelerator tpu7x-2x2x4",
            "accelerator='tpu7x-2x2x4': the Cloud TPU API has no TPU7x. Use gke.sh.",
        ),
        ("tpu_vm.sh create --file FILE --sbatch.qos a", "'--sbatch.qos': unknown flag"),
        ("gke.sh run --file FILE --config 'a\nb'", "config: holds a line break"),
    ],
)
def test_script_rejects_invalid_arguments_in_one_line(laptop, command, message) -> None:
    values = write_values(laptop.home, VALUES)
    words = [str(values) if word == "FILE" else word for word in shlex.split(command)]
    done = laptop.launch(*words)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{words[0]}: {message}"), line
    assert laptop.recorded() == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "zoen = us-west4-a",
            "values:2: 'zoen' is unknown. Use config.FIELD, sbatch.OPTION or one of name",
        ),
        ("us-west4-a", "values:2: 'us-west4-a' has no '='. Write NAME = VALUE"),
    ],
)
def test_script_rejects_an_invalid_values_file(laptop, line, message) -> None:
    (laptop.home / "values").write_text(f"name = n\n{line}\n")
    done = laptop.launch("tpu_vm.sh", "delete", "--file", "values")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", SUBCOMMANDS)
def test_help_names_every_subcommand_and_value(laptop, script) -> None:
    text = laptop.launch(script, "--help").stdout
    assert text == laptop.launch(script, SUBCOMMANDS[script][0], "--help").stdout
    source = (LAUNCH / script).read_text()
    names = " ".join(re.findall(r"^names\+?='(.*)'$", source, re.MULTILINE)).split()
    assert all(re.search(rf"\b{word}\b", text) for word in [*SUBCOMMANDS[script], *names])


# docs/pods.md


@pytest.mark.parametrize(
    "command", [*filter(re.compile("experiments/launch/").match, doc_commands())]
)
def test_scripts_accept_documented_commands(laptop, command) -> None:
    shutil.copy(EXAMPLE, laptop.home / "pod.conf")
    done = laptop.run("bash", "-c", f"{ROOT}/{command} --dry-run")
    assert done.returncode == 0 and done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [line for line in doc_commands() if re.match(r"(gcloud|ssh-keygen|ssh-add|cp) ", line)],
)
def test_other_documented_commands_reach_their_tools_unchanged(laptop, command) -> None:
    laptop.stub("ssh-keygen", "ssh-add")
    done = laptop.run("bash", "-c", f"cd {ROOT} && {command}")
    assert done.returncode == 0, done.stderr
    words = [word.replace("~", str(laptop.home)) for word in shlex.split(command, comments=True)]
    if words[0] == "cp":
        assert pathlib.Path(words[-1]).read_text() == EXAMPLE.read_text()
    else:
        assert laptop.recorded() == [words]


def test_guide_shows_every_subcommand_and_the_example() -> None:
    guide = PODS.read_text()
    for script, subcommand in COMMANDS:
        assert re.search(rf"{script} {subcommand}\b", guide), f"{script} {subcommand}"
    for line in EXAMPLE.read_text().splitlines():
        assert line.startswith("#") or line in guide
