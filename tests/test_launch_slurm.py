"""slurm.sh and train.sbatch: options of sbatch, modules, images."""

import pathlib
import shlex
import subprocess

import pytest
from cloud_tool_stubs import (
    LAUNCH,
    OVERRIDE,
    SPECIAL_CHARACTERS,
    SPECIAL_VALUES,
    TRAIN,
    VALUES,
    dry_run,
    stub,
    write_values,
)


def test_slurm_node_receives_exact_values(laptop, tmp_path) -> None:
    values = SPECIAL_VALUES | {"directory": str(tmp_path / SPECIAL_CHARACTERS.replace("/", ""))}
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
    assert "--constraint=" + values["sbatch.constraint"] in job and "--contiguous" in job
    script = job.index("../../experiments/launch/train.sbatch")

    laptop.stub("srun", body='while [[ "$1" == --* ]]; do shift; done; exec "$@"')
    laptop.stub("apptainer", body='while [[ "$1" != *.sif* ]]; do shift; done; shift; exec "$@"')
    laptop.stub("scontrol", "module")
    node = laptop.environment() | {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8"}
    started = ["bash", LAUNCH / "train.sbatch", *job[script + 1 :]]
    for restart, requeued in (("0", [["scontrol", "requeue", "7"]]), ("30", [])):
        environment = node | {"SLURM_RESTART_COUNT": restart}
        assert subprocess.run(started, cwd=run, env=environment).returncode == 75
        load, _, container, training, *later_calls = laptop.recorded()
        assert load == ["module", "load", "python/3.12", "apptainer"]
        assert container[:4] == ["apptainer", "exec", "--nv", "--bind"]
        assert container[4] == f"{values['directory']}:{values['directory']},/data:/data"
        assert container[7] == values["apptainer"]
        assert training == ["bertjax", *TRAIN, f"runs/{values['name']}", OVERRIDE]
        assert later_calls == requeued


@pytest.mark.parametrize(
    ("statuses", "status", "requeues"),
    [((75, 75), 75, True), ((2, 75), 2, False), ((75, 1), 1, False), ((0, 0), 0, False)],
)
def test_job_is_queued_again_unless_a_process_failed(
    laptop, tmp_path, statuses: tuple[int, int], status: int, requeues: bool
) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    stub(tmp_path / ".venv" / "bin", "bertjax", 'exit "$TEST_STATUS"')
    first, second = statuses
    run_both = "while [[ $1 == --* ]]; do shift; done; "
    run_both += f'for s in {first} {second}; do TEST_STATUS=$s "$@" || true; done; '
    laptop.stub("srun", body=f"{run_both} exit {max(statuses)}")
    laptop.stub("scontrol")
    done = subprocess.run(
        ["bash", LAUNCH / "train.sbatch", "30", "", "--", "train", "--workdir", "a b"],
        cwd=run,
        env=laptop.environment() | {"SLURM_JOB_ID": "7"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    calls = [call for call in laptop.recorded() if call[0] != "srun"]
    assert calls[:2] == [["bertjax", "train", "--workdir", "a b"]] * 2
    assert calls[2:] == ([["scontrol", "requeue", "7"]] if requeues else [])
    assert (f"A process ended with status {status}" in done.stdout) == (not requeues and status > 0)


def test_slurm_setup_installs_in_the_image(laptop, tmp_path) -> None:
    values = VALUES | {"directory": str(tmp_path / "shared")}
    laptop.stub("ssh", body='HOME=/nowhere exec sh -c "$2"')
    laptop.stub("module", "python3")
    (tmp_path / "shared").mkdir()
    stub(tmp_path / "shared" / ".venv" / "bin", "pip")
    run_rest = 'while [ "$1" != bash ]; do shift; done; exec "$@"'
    laptop.stub("apptainer", "srun", body=run_rest)
    values_file = write_values(laptop.home, values)
    # A login shell would put other directories first on the path.
    laptop.stub("bash", body='[ "$1" != -lc ] || set -- -c "$2"; exec /bin/bash "$@"')
    for flags, program in (([], "apptainer"), (["--apptainer=", "--pyxis=python:3.12"], "srun")):
        done = laptop.run("/bin/bash", LAUNCH / "slurm.sh", "setup", "--file", values_file, *flags)
        assert done.returncode == 0, done.stderr
        calls = [call for call in laptop.recorded() if call[0] not in ("bash", "git", "ssh")]
        load, container, venv, pip = calls[-4:]
        assert load == ["module", "load", "python/3.12", "apptainer"]
        assert container[0] == program and venv[1:] == ["-m", "venv", ".venv"]
        assert pip[:2] == ["pip", "install"]
    assert {"--partition=gpu", "--constraint=ib&v100", "--container-image=python:3.12"} <= {
        *container
    }


def test_slurm_runs_without_modules_or_image(laptop) -> None:
    values = {key: VALUES[key] for key in ("name", "directory", "config", "nodes")}
    ((*_, line),) = dry_run(laptop, "slurm.sh", "run", "--file", write_values(laptop.home, values))
    job = shlex.split(line)
    assert job[job.index("../../experiments/launch/train.sbatch") + 1 :][:3] == ["30", "", "--"]
    assert not [word for word in job if "container" in word or "apptainer" in word]


def test_job_ends_with_2_if_a_module_is_unknown(laptop) -> None:
    job = laptop.home / "runs" / "x"
    job.mkdir(parents=True)
    laptop.stub("module", body="exit 1")
    laptop.stub("srun")
    done = subprocess.run(
        ["/bin/bash", LAUNCH / "train.sbatch", "30", "cudda", "--", "train"],
        cwd=job,
        env=laptop.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "modules='cudda': `module load` failed." in done.stdout
    assert [call[0] for call in laptop.recorded()] == ["module"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --file FILE --sbatch.Gres a", "sbatch.Gres: not an option of sbatch"),
        (
            "run --file FILE --sbatch.gpus-per-node 4",
            "sbatch.gpus-per-node: a setting of its own. Write gpus = 4",
        ),
        (
            "run --file FILE --sbatch.output=x",
            "sbatch.output: train.sbatch depends on its own value. Leave it out",
        ),
        (
            "run --file FILE --pyxis python:3",
            "apptainer='/images/python.sif', pyxis='python:3': two images",
        ),
        (
            "setup --file FILE --apptainer=",
            "mounts='/data:/data': there is no image. Give apptainer or pyxis",
        ),
        (
            "run --file FILE --directory bertjax",
            "directory='bertjax': a relative path cannot be mounted",
        ),
    ],
)
def test_slurm_rejects_invalid_settings_in_one_line(laptop, command, message) -> None:
    values = write_values(laptop.home, VALUES)
    words = [str(values) if word == "FILE" else word for word in command.split()]
    done = laptop.launch("slurm.sh", *words)
    assert done.returncode == 2 and not done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"slurm.sh: {message}"), line
    assert laptop.recorded() == []
