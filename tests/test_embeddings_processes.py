"""Training of embeddings in several processes: the losses of one."""

import pathlib

import pytest
import toy_embeddings
import toy_tasks
from conftest import free_port, in_test_all, process_environment
from processes import Command
from run_outputs import metrics

FIELDS = {"steps": 6, "log_every": 1, "eval_every": 3, "checkpoint_every": 6}
FIELDS |= {"optimizer__warmup": 1, "model__hidden_dropout_prob": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("toys")
    toy_embeddings.write_data(path)
    return path


def train(folder: pathlib.Path, workdir: pathlib.Path, count: int, **fields: object) -> list[dict]:
    """Return the metrics of a run of `count` processes with four simulated devices in all."""
    arguments = toy_tasks.arguments("embeddings", folder, **FIELDS | fields)
    environment = process_environment(4 // count) | {"JAX_PLATFORMS": "cpu"}
    cluster = ["--coordinator-address", f"localhost:{free_port()}", "--num-processes", count]
    processes = [
        Command(
            *("train", "--workdir", workdir, *arguments),
            *([*cluster, "--process-id", process_id] if count > 1 else []),
            **environment,
        )
        for process_id in range(count)
    ]
    for process in processes:
        _, error = process.communicate()
        assert process.poll() == 0, error
    return metrics(workdir)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{}, *in_test_all({"gradient_accumulation_steps": 2, "data__symmetric": True})]
)
def test_two_processes_have_the_ranking_losses_of_one(fields, folder, tmp_path) -> None:
    assert_equal_runs(folder, tmp_path, **fields)


@pytest.mark.minutes
def test_two_processes_have_the_losses_against_a_teacher_of_one(folder, tmp_path) -> None:
    teacher = toy_embeddings.write_teacher(folder, folder / "teacher")
    fields = {"distill__teacher": teacher, "gradient_accumulation_steps": 2}
    files = {"data__train_file": "texts.jsonl", "data__eval_file": "texts.jsonl"}
    assert_equal_runs(folder, tmp_path, **fields, **files, model__hidden_size=32)


def assert_equal_runs(folder: pathlib.Path, path: pathlib.Path, **fields: object) -> None:
    one, two = (train(folder, path / str(count), count, **fields) for count in (1, 2))
    assert [line["step"] for line in one if line["split"] == "train"] == [*range(1, 7)]
    assert len({line["loss"] for line in one}) > 6
    for ours, theirs in zip(two, one, strict=True):
        assert ours.keys() == theirs.keys() and ours["split"] == theirs["split"]
        for name in theirs.keys() - {"split"}:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-6), (theirs["step"], name)
