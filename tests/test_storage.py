"""Every path may be `gs://`: what a run in a bucket gives is what a local run gives, bit for bit.

The bucket is `bucket.py`. Both libraries that read and write it, tensorflow's file system and
tensorstore, believe that they talk to the real one, through TLS and with a token.

Not shown here, because a local server cannot show it: credentials from a service account or a
machine's metadata, buckets with a hierarchical namespace, and the profiler's traces.
"""

import json
import pathlib
from collections.abc import Iterator

import pytest
from bucket import Server
from conftest import sample_text, sample_vocabulary
from processes import Command
from run_outputs import metrics, params_of

from bertjax.reports.writer import write_report

EXPERIMENTS = pathlib.Path(__file__).parent.parent / "experiments"
PRETRAIN, SQUAD = EXPERIMENTS / "pretraining.py", EXPERIMENTS / "squad.py"
FIELDS = {"model.vocab_size": 128, "steps": 12, "checkpoint_every": 4, "log_every": 2}
FIELDS |= {"eval_every": 4, "best_metric": "loss"}
FLAGS = [f"--config.{name}={value}" for name, value in FIELDS.items()]
FILES = {
    "text/one.txt": sample_text(seed=1, documents=400),
    "vocab.txt": "\n".join(sample_vocabulary()) + "\n",
    "pretraining.py": PRETRAIN.read_text(),
    "masked.txt": "ba [MASK] do .\nki lu [MASK] .\n",
}

pytestmark = pytest.mark.slow


def start(bucket: Server, *arguments: str) -> Command:
    """A process whose `gs://` is the bucket."""
    return Command(*arguments, **bucket.environment, JAX_PLATFORMS="cpu")


def finish(process: Command, status: int = 0) -> str:
    """What the process said on standard error."""
    _, said = process.communicate(timeout=900)
    assert process.poll() == status, said
    return said


def prepare(root: str) -> list[str]:
    where = ["--input", f"{root}/text/*.txt", "--vocab", f"{root}/vocab.txt"]
    options = ["--eval-fraction", "0.05", "--num-shards", "8", "--workers", "1"]
    return ["prepare", *where, "--output", f"{root}/corpus", *options]


def configured(verb: str, root: str) -> list[str]:
    return [verb, "--config", f"{root}/pretraining.py:smoke,data={root}/corpus", *FLAGS]


def train(root: str) -> list[str]:
    return [*configured("train", root), "--workdir", f"{root}/run"]


def evaluate(root: str) -> list[str]:
    return [*configured("evaluate", root), "--checkpoint", f"{root}/run", "--output", root]


def predict(root: str) -> list[str]:
    files = ["--input", f"{root}/masked.txt", "--output", f"{root}/filled.jsonl"]
    return ["predict", "--checkpoint", f"{root}/run", *files]


GS = "gs://bucket"


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server("bucket", tmp_path_factory.mktemp("authority"))
    for name, text in FILES.items():
        server.write(name, text.encode())
    yield server
    server.close()


@pytest.fixture(scope="module")
def local(bucket, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder in which the same was done, without interruption, as is done in the bucket."""
    root = tmp_path_factory.mktemp("local")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    for verb in (prepare, train, evaluate, predict):
        finish(start(bucket, *verb(str(root))))
    return root


@pytest.fixture(scope="module")
def corpus(bucket) -> dict[str, bytes]:
    """The corpus that is made in the bucket."""
    finish(start(bucket, *prepare(GS)))
    return bucket.below("corpus/")


@pytest.fixture(scope="module")
def killed(bucket, corpus) -> dict[str, bytes]:
    """Checkpointer of a run that was killed while it wrote the arrays of step 8."""
    process = start(bucket, *train(GS))

    def kill(name: str) -> None:
        written = [other for other in bucket.objects if "/00000008/" in other and "ocdbt" in other]
        if "/00000008/" in name and written:
            process.kill()

    bucket.before_write = kill
    finish(process, status=-9)
    bucket.before_write = lambda name: None
    return bucket.below("run/checkpoints/")


@pytest.fixture(scope="module")
def resumed(bucket, killed) -> str:
    """What the run said that went on to the end."""
    return finish(start(bucket, *train(GS)))


def download(bucket: Server, folder: pathlib.Path) -> pathlib.Path:
    """The workdir as local files."""
    for name, content in bucket.below("run/").items():
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_bytes(content)
    return folder / "run"


def test_a_corpus_is_the_same_to_the_byte(corpus, local) -> None:
    here = {file.name: file.read_bytes() for file in (local / "corpus").iterdir()}
    assert corpus.keys() == here.keys()
    manifest = corpus["manifest.json"].decode().replace(GS, str(local)).encode()
    assert corpus | {"manifest.json": manifest} == here


def test_a_killed_save_is_not_finished_and_never_read(killed, resumed) -> None:
    assert any(name.startswith("00000008/") and "ocdbt" in name for name in killed)
    assert "00000004/files.json" in killed and "00000008/files.json" not in killed
    assert f"going on from step 4 in {GS}/run" in resumed


def test_a_resumed_run_is_the_local_one_to_the_last_bit(bucket, resumed, local, tmp_path) -> None:
    run = download(bucket, tmp_path)
    assert metrics(run) == metrics(local / "run")
    assert params_of(run) == params_of(local / "run")
    assert any("tensorboard/heldout/events" in name for name in bucket.below("run/"))


def test_scores_and_predictions_are_those_of_the_local_run(bucket, resumed, local) -> None:
    for process in [start(bucket, *evaluate(GS)), start(bucket, *predict(GS))]:
        finish(process)
    assert bucket.objects["scores.json"].content == (local / "scores.json").read_bytes()
    assert bucket.objects["filled.jsonl"].content == (local / "filled.jsonl").read_bytes()
    assert "filled.jsonl.partial" not in bucket.objects


def test_a_report_is_that_of_the_same_files_here(bucket, resumed, tmp_path) -> None:
    finish(start(bucket, "report", f"{GS}/run"))
    here = write_report(download(bucket, tmp_path))
    assert bucket.objects["run/report.html"].content == here.read_bytes()


def test_a_damaged_object_is_noticed_and_the_checkpoint_made_again(
    bucket, resumed, local, tmp_path
) -> None:
    name = max(
        (name for name in bucket.objects if "/00000012/params/ocdbt" in name),
        key=lambda name: len(bucket.objects[name].content),
    )
    content = bytearray(bucket.objects[name].content)
    content[len(content) // 2] ^= 1
    bucket.write(name, bytes(content))
    said = finish(start(bucket, *train(GS)))
    assert f"{GS}/run/checkpoints/00000012 is damaged (the content of params/" in said
    assert "going on from step 8" in said
    run = download(bucket, tmp_path)
    assert metrics(run) == metrics(local / "run")
    assert params_of(run) == params_of(local / "run")


def test_a_damaged_shard_is_refused(bucket, corpus) -> None:
    name = "corpus/train-00003-of-00008.tokens"
    bucket.write(name, corpus["train-00003-of-00008.tokens"][:-1] + b"\xff")
    said = finish(start(bucket, *configured("inspect", GS)), status=2)
    assert f"{GS}/{name}: damaged" in said
    bucket.write(name, corpus["train-00003-of-00008.tokens"])


def test_batches_are_saved_in_the_bucket(bucket, corpus) -> None:
    finish(start(bucket, *configured("inspect", GS), "--output", f"{GS}/batches.npz"))
    assert bucket.objects["batches.npz"].content.startswith(b"PK")


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_vectors_are_written_into_the_bucket(bucket, resumed, suffix: str) -> None:
    name = f"vectors.{suffix}"
    given = "embed", "--checkpoint", f"{GS}/run", "--input", f"{GS}/masked.txt"
    finish(start(bucket, *given, "--output", f"{GS}/{name}"))
    (content,) = bucket.below(name).values()
    assert content.startswith({"npz": b"PK", "parquet": b"PAR1"}[suffix])


def test_questions_and_answers_may_lie_in_the_bucket(bucket) -> None:
    answer = {"text": "do", "answer_start": 3}
    qa = {"id": "1", "question": "ki", "answers": [answer]}
    said = {"data": [{"paragraphs": [{"context": "ba do .", "qas": [qa]}]}]}
    bucket.write("squad.json", json.dumps(said).encode())
    files = {"train_file": "squad.json", "eval_file": "squad.json", "vocab": "vocab.txt"}
    flags = [f"--config.data.{field}={GS}/{name}" for field, name in files.items()]
    finish(start(bucket, "inspect", "--config", f"{SQUAD}:smoke", *flags))


def test_a_bucket_that_does_not_exist_is_refused(bucket) -> None:
    said = finish(start(bucket, *train("gs://bucked")), status=2)
    assert said == "bertjax: there is no bucket gs://bucked: name one that exists.\n"


def test_the_right_to_objects_alone_suffices(bucket, corpus) -> None:
    bucket.forbidden = {"bucket"}
    finish(start(bucket, *configured("inspect", GS)))
    bucket.forbidden = {"bucket", "metadata", "media", "listing"}
    said = finish(start(bucket, *configured("inspect", GS)), status=1)
    assert said.startswith("bertjax: ") and "403" in said and said.count("\n") == 1
    bucket.forbidden = set()


def test_nothing_else_was_asked_of_the_bucket(bucket, resumed) -> None:
    assert not bucket.refused
    assert {client.partition("/")[0] for client in bucket.clients} == {"TSL", "tensorstore"}
