"""Paths in a bucket (`gs://`): a run there is bit-identical to a local run.

The bucket is `bucket.py`, a local server. tensorflow's file system and tensorstore access it as the
real one, through TLS and with a token.

Not tested, because a local server cannot: credentials of a service account or from a machine's
metadata, buckets with a hierarchical namespace, and profiler traces.
"""

import hashlib
import io
import json
import pathlib
from collections.abc import Iterator

import pyarrow
import pytest
from bucket import Server
from conftest import sample_text, sample_vocabulary
from processes import Command
from pyarrow import feather, parquet
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

pytestmark = pytest.mark.minutes


def start(bucket: Server, *arguments: str) -> Command:
    """Start a command whose `gs://` is the bucket."""
    return Command(*arguments, **bucket.environment, JAX_PLATFORMS="cpu")


def finish(process: Command, status: int = 0) -> str:
    """Return the standard error of a process that ends with a status."""
    _, stderr = process.communicate(timeout=900)
    assert process.poll() == status, stderr
    return stderr


def prepare(root: str) -> list[str]:
    where = ["--input", f"{root}/text/*.txt", "--vocab", f"{root}/vocab.txt"]
    options = ["--eval-fraction", "0.05", "--num-shards", "8", "--workers", "1"]
    return ["prepare", *where, "--output", f"{root}/corpus", *options]


def with_config(subcommand: str, root: str) -> list[str]:
    return [subcommand, "--config", f"{root}/pretraining.py:smoke,data={root}/corpus", *FLAGS]


def train(root: str) -> list[str]:
    return [*with_config("train", root), "--workdir", f"{root}/run"]


def evaluate(root: str) -> list[str]:
    return [*with_config("evaluate", root), "--checkpoint", f"{root}/run", "--output", root]


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
    """A local directory with the results of the same commands, without interruption."""
    root = tmp_path_factory.mktemp("local")
    for name, text in FILES.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    for subcommand in (prepare, train, evaluate, predict):
        finish(start(bucket, *subcommand(str(root))))
    return root


@pytest.fixture(scope="module")
def corpus(bucket) -> dict[str, bytes]:
    """The corpus that is prepared in the bucket."""
    finish(start(bucket, *prepare(GS)))
    return bucket.below("corpus/")


@pytest.fixture(scope="module")
def killed(bucket, corpus) -> dict[str, bytes]:
    """Checkpoints of a run that was killed while it wrote the arrays of step 8."""
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
    """The standard error of the run that resumed and ended."""
    return finish(start(bucket, *train(GS)))


def download(bucket: Server, folder: pathlib.Path) -> pathlib.Path:
    """Copy the workdir to local files and return it."""
    for name, content in bucket.below("run/").items():
        (folder / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "run" / name).write_bytes(content)
    return folder / "run"


def test_corpus_is_identical_to_the_local_one(corpus, local) -> None:
    here = {file.name: file.read_bytes() for file in (local / "corpus").iterdir()}
    assert corpus.keys() == here.keys()
    manifest = corpus["manifest.json"].decode().replace(GS, str(local)).encode()
    assert corpus | {"manifest.json": manifest} == here


def test_prepare_deletes_only_what_it_wrote(bucket, corpus) -> None:
    stderr = finish(start(bucket, *prepare(GS), "--output", f"{GS}/text"), status=2)
    assert f"{GS}/text: already contains other files. Choose another" in stderr
    assert bucket.below("text/") == {"one.txt": FILES["text/one.txt"].encode()}
    for name in ("train-00000-of-00009.tokens", "eval-00000-of-00001.tokens", "vocab.txt"):
        bucket.write(f"again/{name}", b"of an interrupted preparation")
    finish(start(bucket, *prepare(GS), "--output", f"{GS}/again"))
    assert bucket.below("again/") == corpus


def test_killed_save_is_not_finished_and_never_read(killed, resumed) -> None:
    assert any(name.startswith("00000008/") and "ocdbt" in name for name in killed)
    assert "00000004/files.json" in killed and "00000008/files.json" not in killed
    assert f"resuming from step 4 in {GS}/run" in resumed


def test_resumed_run_is_bit_identical_to_the_local_one(bucket, resumed, local, tmp_path) -> None:
    run = download(bucket, tmp_path)
    assert metrics(run) == metrics(local / "run")
    assert params_of(run) == params_of(local / "run")
    assert any("tensorboard/eval/events" in name for name in bucket.below("run/"))


def test_scores_and_predictions_are_identical_to_the_local_ones(bucket, resumed, local) -> None:
    for process in [start(bucket, *evaluate(GS)), start(bucket, *predict(GS))]:
        finish(process)
    assert bucket.objects["scores.json"].content == (local / "scores.json").read_bytes()
    assert bucket.objects["filled.jsonl"].content == (local / "filled.jsonl").read_bytes()
    assert "filled.jsonl.partial" not in bucket.objects


def test_report_is_identical_to_that_of_local_files(bucket, resumed, tmp_path) -> None:
    finish(start(bucket, "report", f"{GS}/run"))
    here = write_report(download(bucket, tmp_path))
    assert bucket.objects["run/report.html"].content == here.read_bytes()


def test_damaged_object_is_detected_and_the_checkpoint_replaced(
    bucket, resumed, local, tmp_path
) -> None:
    name = max(
        (name for name in bucket.objects if "/00000012/params/ocdbt" in name),
        key=lambda name: len(bucket.objects[name].content),
    )
    content = bytearray(bucket.objects[name].content)
    content[len(content) // 2] ^= 1
    bucket.write(name, bytes(content))
    stderr = finish(start(bucket, *train(GS)))
    assert f"{GS}/run/checkpoints/00000012 is damaged (the content of params/" in stderr
    assert "resuming from step 8" in stderr
    run = download(bucket, tmp_path)
    assert metrics(run) == metrics(local / "run")
    assert params_of(run) == params_of(local / "run")


def test_damaged_shard_is_rejected(bucket, corpus) -> None:
    name = "corpus/train-00003-of-00008.tokens"
    bucket.write(name, corpus["train-00003-of-00008.tokens"][:-1] + b"\xff")
    stderr = finish(start(bucket, *with_config("inspect", GS)), status=2)
    assert f"{GS}/{name}: damaged" in stderr
    bucket.write(name, corpus["train-00003-of-00008.tokens"])


def test_inspect_writes_batches_into_the_bucket(bucket, corpus) -> None:
    finish(start(bucket, *with_config("inspect", GS), "--output", f"{GS}/batches.npz"))
    assert bucket.objects["batches.npz"].content.startswith(b"PK")


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_vectors_are_written_into_the_bucket(bucket, resumed, suffix: str) -> None:
    name = f"vectors.{suffix}"
    given = "embed", "--checkpoint", f"{GS}/run", "--input", f"{GS}/masked.txt"
    finish(start(bucket, *given, "--output", f"{GS}/{name}"))
    (content,) = bucket.below(name).values()
    assert content.startswith({"npz": b"PK", "parquet": b"PAR1"}[suffix])


def test_processes_write_their_shards_into_the_bucket(bucket, resumed) -> None:
    given = "embed", "--checkpoint", f"{GS}/run", "--input", f"{GS}/masked*"
    output = "--output", f"{GS}/shards.npz", "--num-processes", "2", "--process-id"
    for index in "10":
        stderr = finish(start(bucket, *given, *output, index))
    assert "complete." in stderr.splitlines()[-1]
    written = bucket.below("shards.npz/")
    assert written.keys() == {"_manifest.json", "shard-00000-00000.npz"}
    (shard,) = json.loads(written["_manifest.json"])["shards"]
    assert shard["digest"] == hashlib.sha256(written[shard["name"]]).hexdigest()
    assert "1 of them kept; complete." in finish(start(bucket, *given, *output, "0"))
    assert bucket.below("shards.npz/") == written


def test_squad_files_may_be_in_the_bucket(bucket) -> None:
    answer = {"text": "do", "answer_start": 3}
    qa = {"id": "1", "question": "ki", "answers": [answer]}
    squad = {"data": [{"paragraphs": [{"context": "ba do .", "qas": [qa]}]}]}
    bucket.write("squad.json", json.dumps(squad).encode())
    files = {"train_file": "squad.json", "eval_file": "squad.json", "vocab": "vocab.txt"}
    flags = [f"--config.data.{field}={GS}/{name}" for field, name in files.items()]
    finish(start(bucket, "inspect", "--config", f"{SQUAD}:smoke", *flags))


@pytest.mark.parametrize("name", ["table.parquet", "table.feather"])
def test_tables_of_text_may_be_in_the_bucket(bucket, name: str) -> None:
    content, table = io.BytesIO(), pyarrow.table({"text": ["ba do .", "ki lu ."] * 50})
    write = parquet.write_table if name == "table.parquet" else feather.write_feather
    write(table, content)
    bucket.write(name, content.getvalue())
    words = "--vocab-size", "20", "--output", f"{GS}/{name}.txt"
    finish(start(bucket, "vocab", "--input", f"{GS}/{name}", *words))
    assert len(bucket.objects[f"{name}.txt"].content.split()) == 20


def test_missing_bucket_is_rejected(bucket) -> None:
    stderr = finish(start(bucket, *train("gs://bucked")), status=2)
    assert stderr == "bertjax: gs://bucked: no such bucket. Name one that exists.\n"


def test_access_to_objects_suffices(bucket, corpus) -> None:
    bucket.forbidden = {"bucket"}
    finish(start(bucket, *with_config("inspect", GS)))
    bucket.forbidden = {"bucket", "metadata", "media", "listing"}
    stderr = finish(start(bucket, *with_config("inspect", GS)), status=1)
    assert stderr.startswith("bertjax: ") and "403" in stderr and stderr.count("\n") == 1
    bucket.forbidden = set()


def test_bucket_refused_no_other_request(bucket, resumed) -> None:
    assert not bucket.refused
    assert {client.partition("/")[0] for client in bucket.clients} == {"TSL", "tensorstore"}
