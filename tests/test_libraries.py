"""Commands without the libraries that only some functions need."""

import json
import re
import subprocess
import sys

import pytest
from conftest import process_environment, sample_text
from toy_tasks import EXPERIMENTS

from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

# Runs the commands of sys.argv in one process. An import of a module that is None in sys.modules
# raises ModuleNotFoundError.
WITHOUT_LIBRARIES = """
import contextlib, json, sys, urllib.request
for name in ("tensorflow", "tensorflow_datasets", "zstandard", "matplotlib", "jinja2"):
    sys.modules[name] = None
from bertjax.cli.main import main
from bertjax.faults import InjectedFaultError, inject_fault
for command in json.loads(sys.argv[1]):
    print("$", *command)
    if command[0] == "killed":
        with contextlib.suppress(InjectedFaultError), inject_fault("step.before_update:6=raise"):
            main(command[1:])
            sys.exit("the fault did not happen")
    else:
        print("status", main(command))
from bertjax.serving.server import ModelServer, bind_socket
with bind_socket("127.0.0.1", 0) as listener:
    print("$ serve")
    server = ModelServer(listener, {"default": "run"})
    server.load()
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(urllib.request.urlopen(address).read().decode())
    body = json.dumps({"inputs": "ba [MASK] ."}).encode()
    print(urllib.request.urlopen(f"{address}/predict", body).read().decode())
    server.close()
"""
TRAIN = ["--config", f"{EXPERIMENTS}/pretraining.py:smoke,data=corpus",
         "--config.model.vocab_size=90", "--config.steps=8", "--config.checkpoint_every=4",
         "--config.eval_every=8", "--config.eval_batches=1"]  # fmt: skip
CONFIG = ["--config", f"{EXPERIMENTS}/glue.py:task=mrpc,data=tfds:glue/mrpc", "--workdir", "tfds"]
COMMANDS = [  # arguments, exit status, text of the output
    ("vocab --input text.txt --vocab-size 90 --output vocab.txt --workers 1", 0, ""),
    ("prepare --input text.txt --vocab vocab.txt --output corpus --workers 1"
     " --eval-fraction 0.1", 0, ""),
    (["killed", "train", *TRAIN, "--workdir", "run"], None, "made by a thread pool"),
    (["train", *TRAIN, "--workdir", "run"], 0, "resuming from step 4"),
    (["evaluate", *TRAIN, "--checkpoint", "run", "--output", "scores"], 0, "mlm_accuracy"),
    (["predict", "--checkpoint", "run", "--text", "ba [MASK] ."], 0, "token_str"),
    ("convert --to hf run hf", 0, "from bertjax to hf"),
    ("convert --to bertjax hf back", 0, "from hf to bertjax"),
    ("convert --to tf1 run tf1", 2, "Run pip install tensorflow-cpu."),
    ("report run", 2, "report: needs jinja2, which is not installed. Run pip install jinja2"),
    ("prepare --input tfds:lm1b --vocab vocab.txt --output other", 2,
     "tfds:lm1b: needs tensorflow, which is not installed. Run pip install tensorflow-cpu"),
    (["train", *CONFIG], 2, "tfds:glue/mrpc: needs tensorflow"),
    ("vocab --input text.zst --output other", 2, "Run pip install zstandard."),
    ("predict --checkpoint gs://none/run --text a", 2, "gs://none: needs tensorflow"),
]  # fmt: skip


@pytest.mark.slow
def test_commands_run_without_optional_libraries(tmp_path) -> None:
    (tmp_path / "text.txt").write_text(sample_text(seed=2, documents=40))
    (tmp_path / "text.zst").touch()
    commands = [words.split() if isinstance(words, str) else words for words, _, _ in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-u", "-c", WITHOUT_LIBRARIES, json.dumps(commands)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
        env=process_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    *outputs, served = re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:]
    for output, (_, status, text) in zip(outputs, COMMANDS, strict=True):
        assert text in output and (status is None or f"status {status}\n" in output), output
    page, answer = served.splitlines()[-2:]
    assert page.startswith("This server answers POST /predict.") and "answers" in json.loads(answer)
    assert done.stdout.count("a thread pool") == 1  # logged once in a process


def test_check_installed_names_library_and_fix() -> None:
    check_installed("x", "json", install="json")
    with pytest.raises(InputError, match=r"^x: needs no_such, which is not installed\. Run pip in"):
        check_installed("x", "json", "no_such", install="no_such")
