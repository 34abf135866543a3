"""Models on the Hub, with the real client and a server that answers as the Hub does."""

import base64
import hashlib
import http.server
import json
import pathlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from conftest import sample_vocabulary
from etils import epath
from huggingface_hub import constants
from random_models import assert_same_params, draw_model

from bertjax.cli.main import main
from bertjax.formats import huggingface
from bertjax.formats.detection import find_format
from bertjax.formats.loading import find_bert_config, find_tokenizer, read_model
from bertjax.mesh import distributed
from bertjax.model.bert_config import BertConfig
from bertjax.training.initialization import PretrainedModel, open_recorded
from bertjax.workdir.model_history import write_model_record
from bertjax.workdir.model_records import share_commits
from bertjax.workdir.run_config import make_run_config
from data_pipelines import hub
from data_pipelines.errors import InputError
from data_pipelines.hub import find_commit, model_path, parse_hub_path
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

COMMIT, NEWER = "c" * 40, "0123456789abcdef" + 24 * "f"
LATEST, OLD = "hf://lab/model", "hf://lab/model@v1"


class Hub(http.server.ThreadingHTTPServer):
    """The used part of the Hub: files of repositories, creation, one commit.

    Attributes:
      files: repository -> file name -> content.
      visibility: repository that was created -> whether others see it.
      head: the newest commit; that of all files' content is the same.
      requested: names of the files that were read.
      num_commits: number of commits to all repositories.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, dict[str, bytes]] = {}
        self.visibility: dict[str, str] = {}
        self.head = COMMIT
        self.requested: list[str] = []
        self.num_commits = 0
        self.token = "secret"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, content: Any = None, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        if match := re.match(r"/api/models/(\w+/\w+)(?:/(?:revision|tree)/([^/?]+))?", self.path):
            self.describe(match[1], match[2])
        elif match := re.match(r"/(\w+/\w+)/resolve/([^/]+)/(.*)", self.path):
            content = self.server.files[match[1]].get(match[3])
            if content is None:
                return self.answer(404, b"", X_Error_Code="EntryNotFound")
            if self.command == "GET":
                self.server.requested.append(match[3])
            etag = hashlib.sha1(content).hexdigest()
            self.answer(200, content, ETag=f'"{etag}"', X_Repo_Commit=self.commit_of(match[2]))
        else:
            self.answer(404, b"")
        return None

    do_HEAD = do_GET  # noqa: N815

    def commit_of(self, revision: str | None) -> str:
        return revision if revision in (COMMIT, NEWER) else self.server.head

    def describe(self, repository: str, revision: str | None) -> None:
        files = self.server.files.get(repository)
        if files is None:
            return self.answer(404, b"", X_Error_Code="RepoNotFound")
        if revision not in (None, "main", "v1", COMMIT, NEWER):
            return self.answer(404, b"", X_Error_Code="RevisionNotFound")
        if "/tree/" in self.path:
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                for name, content in files.items()
            ]
            return self.answer(200, entries)
        siblings = [{"rfilename": name} for name in files]
        content = {"id": repository, "modelId": repository, "siblings": siblings}
        return self.answer(200, content | {"sha": self.commit_of(revision)})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self.read_chunks()
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.answer(401, {"error": "no token"})
        if self.path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields['organization']}/{fields['name']}"
            self.server.visibility[name] = fields["visibility"]
            self.server.files.setdefault(name, {})
            return self.answer(200, {"url": f"{constants.ENDPOINT}/{name}", "id": name})
        if self.path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        repository = re.match(r"/api/models/(\w+/\w+)/", self.path)[1]  # type: ignore[index]
        if "/preupload/" in self.path:
            names = [entry["path"] for entry in json.loads(body)["files"]]
            modes = [
                {"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names
            ]
            return self.answer(200, {"files": modes})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    content = base64.b64decode(value["content"])
                    self.server.files[repository][value["path"]] = content
                if line["key"] == "deletedFile":
                    del self.server.files[repository][line["value"]["path"]]
            self.server.num_commits += 1
            return self.answer(
                200,
                {
                    "commitUrl": f"{constants.ENDPOINT}/{repository}/commit/{COMMIT}",
                    "commitOid": COMMIT,
                    "success": True,
                },
            )
        return self.answer(404, b"")

    def read_chunks(self) -> bytes:
        content = b""
        while size := int(self.rfile.readline() or b"0", 16):
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Hub]:
    """A Hub with the model lab/model, and an empty cache of the client."""
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(hub, "_pinned_commits", {})
        hub._download.cache_clear()
        server.files["lab/model"] = {**published_files(tmp_path), "rust_model.ot": b"unused"}
        server.url = url  # type: ignore[attr-defined]
        yield server
        server.shutdown()
        thread.join()
        hub._download.cache_clear()


def published_files(tmp_path: pathlib.Path) -> dict[str, bytes]:
    directory = tmp_path / "published"
    directory.mkdir(parents=True)
    tokenizer = WordPieceTokenizer(sample_vocabulary(), cased=False)
    model = draw_model(BertConfig(128, 1, 64, 1, max_position_embeddings=32), tokenizer)
    huggingface.write(model, epath.Path(directory))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.seconds
def test_model_of_the_hub_opens_like_a_directory(server, tmp_path) -> None:
    expected = read_model(tmp_path / "published")
    for name in (LATEST, OLD):
        assert find_format(name) == "hf"
        model = read_model(name)
        assert_same_params(model.params, expected.params)
        assert find_bert_config(name) == expected.config
        fingerprints = {find_tokenizer(name).fingerprint(), load_tokenizer(name).fingerprint()}
        assert fingerprints == {expected.tokenizer.fingerprint()}
        assert PretrainedModel(name).digest == PretrainedModel(tmp_path / "published").digest
    assert "rust_model.ot" not in server.requested


@pytest.mark.seconds
def test_weights_of_pytorch_are_downloaded_where_there_are_no_others(server) -> None:
    files = server.files["lab/model"]
    files |= {"pytorch_model.bin": b"weights", "checkpoint-5/model.safetensors": b"other"}
    assert not (model_path(LATEST) / "pytorch_model.bin").exists()
    assert not (model_path(LATEST) / "checkpoint-5").exists()
    hub._download.cache_clear()
    del files["model.safetensors"]
    server.files["lab/older"] = files
    assert (model_path("hf://lab/older") / "pytorch_model.bin").read_bytes() == b"weights"


@pytest.mark.seconds
def test_all_processes_read_the_commit_of_process_0(server, monkeypatch) -> None:
    sent: list[list[int]] = []

    def broadcast(make: Callable[[], Sequence[int]], size: int) -> Sequence[int]:
        if not sent:  # this is process 0
            sent.append(np.array(make(), np.int32).tolist())
        assert len(sent[0]) == size
        return sent[0]

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "broadcast_from_process_0", broadcast)
    for commit in (NEWER, COMMIT):  # the other process asks the Hub at another time
        hub._download.cache_clear()
        hub._pinned_commits.clear()
        server.head = commit
        assert find_commit(LATEST) == commit
        share_commits("runs/1", LATEST, "", LATEST)
        assert find_commit(LATEST) == model_path(LATEST).name == NEWER


@pytest.mark.seconds
def test_resumed_run_reads_the_recorded_commit(server, tmp_path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    config = {"init": LATEST, "max_seq_length": 32, "data": {"dir": "corpus"}}
    make_run_config(config, {}, run)
    write_model_record("init", PretrainedModel(LATEST), epath.Path(run))
    server.head = NEWER
    hub._download.cache_clear()  # as in a new process
    make_run_config(config, {}, tmp_path / "other")
    assert open_recorded("init", LATEST, epath.Path(tmp_path)).path.name == NEWER
    make_run_config(config, {}, run)
    assert open_recorded("init", LATEST, epath.Path(run)).path.name == COMMIT
    record = json.loads((run / "init.json").read_text())
    (run / "init.json").write_text(json.dumps(record | {"commit": "b" * 40}))
    with pytest.raises(InputError, match=f"^hf://lab/model@{'b' * 40}: there is no such revision"):
        make_run_config(config, {}, run)


@pytest.mark.seconds
def test_downloaded_model_opens_without_a_connection(server, monkeypatch) -> None:
    path = model_path(LATEST)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # where nothing listens
    hub._download.cache_clear()
    assert model_path(LATEST) == path
    with pytest.raises(InputError, match=r"^hf://lab/other: the Hub cannot be reached"):
        model_path("hf://lab/other")


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://lab/none", "there is no such model, or it is not yours to read"),
        ("hf://lab/model@v2", "there is no such revision. Check the part after @"),
        ("hf://model", "not a model on the Hub. Write hf://ORG/NAME"),
        ("hf://", "not a model on the Hub"),
        ("hf://lab/model@", "not a model on the Hub"),
        ("hf://lab/model/config.json", "not a model on the Hub"),
    ],
)
def test_invalid_names_are_rejected(server, name: str, message: str) -> None:
    with pytest.raises(InputError, match=f"^{name}: {message}"):
        model_path(name)


def test_id_of_the_hub_without_its_prefix_is_explained() -> None:
    with pytest.raises(InputError, match="or hf://lab/model for a model on the Hub"):
        find_format("lab/model")


def test_parse_hub_path_splits_the_revision() -> None:
    assert parse_hub_path(LATEST) == ("lab/model", None)
    assert parse_hub_path("hf://a.b/c-d_e@refs/pr/1") == ("a.b/c-d_e", "refs/pr/1")


@pytest.mark.seconds
def test_convert_writes_to_a_private_repository(server, tmp_path, monkeypatch, capsys) -> None:
    command = ["convert", "--to", "hf", str(tmp_path / "published"), "hf://lab/mine"]
    assert main(command) == 2
    assert "hf://lab/mine: the Hub answers 401. Log in with" in capsys.readouterr().err
    (tmp_path / "token").write_text(server.token)
    assert main(command) == 0
    assert server.visibility == {"lab/mine": "private"}
    assert_same_params(read_model("hf://lab/mine").params, read_model(LATEST).params)
    assert "pipeline_tag" in server.files["lab/mine"]["README.md"].decode()
    for target, message in (
        ("hf://lab/mine@v1", "Remove @"),
        ("hf://mine", "Write hf://ORG/NAME"),
    ):
        assert main([*command[:-1], target]) == 2
        assert message in capsys.readouterr().err
    assert main(["convert", "--to", "tf1", *command[3:]]) == 2
    assert "the Hub takes models of Hugging Face" in capsys.readouterr().err


@pytest.mark.seconds
def test_folders_of_sentence_transformers_are_written_and_read(server, tmp_path) -> None:
    (tmp_path / "token").write_text(server.token)
    source = tmp_path / "source"
    folders = {"": "Transformer", "1_Pooling": "Pooling", "2_Dense": "Dense"}
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in folders.items()]
    contents = {
        name: name.encode()
        for name in ("config.json", "1_Pooling/config.json", "2_Dense/model.safetensors")
    }
    contents["modules.json"] = json.dumps(modules).encode()
    for name, content in contents.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    hub.create_repository("hf://lab/pooled")
    hub.upload(source, "hf://lab/pooled")
    assert server.files["lab/pooled"] == contents
    server.files["lab/pooled"]["model.safetensors"] = b"weights"
    opened = hub.model_path("hf://lab/pooled")
    assert {name: (opened / name).read_bytes() for name in contents} == contents


@pytest.mark.seconds
def test_weights_of_each_module_of_sentence_transformers_are_downloaded(server) -> None:
    folders = {"0_BERT": "Transformer", "1_Pooling": "Pooling", "2_Dense_1024": "Dense"}
    modules = [{"path": path, "type": f"models.{kind}"} for path, kind in folders.items()]
    wanted = ("0_BERT/model.safetensors", "2_Dense_1024/pytorch_model.bin")
    unwanted = ("0_BERT/pytorch_model.bin", "3_Dense/model.safetensors", "1_Pooling/tf_model.h5")
    contents = {name: name.encode() for name in (*wanted, *unwanted)}
    contents["modules.json"] = json.dumps(modules).encode()
    server.files["lab/pooled"] = contents
    opened = pathlib.Path(hub.model_path("hf://lab/pooled"))
    files = {str(file.relative_to(opened)) for file in opened.rglob("*") if file.is_file()}
    assert files == {"modules.json", *wanted}


@pytest.mark.seconds
def test_convert_deletes_what_would_be_loaded_instead(server, tmp_path, capsys) -> None:
    stale = [
        *("pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"),
        *(
            "model-00001-of-00002.safetensors",
            "model.safetensors.index.json",
            "model.fp16.safetensors",
        ),
        *("tf_model.h5", "flax_model.msgpack", "rust_model.ot", "onnx/model_O2.onnx"),
        *("openvino/openvino_model.xml", "adapter_model.safetensors", "adapter_config.json"),
        *("added_tokens.json", "special_tokens_map.json", "tokenizer.model"),
    ]
    kept = [
        *("README.md", ".gitattributes", "LICENSE", "modules.json", "1_Pooling/config.json"),
        *("checkpoint-5/model.safetensors", "training_args.bin", "figures/model.png"),
    ]
    files = server.files["lab/old"] = {name: b"old" for name in (*stale, *kept)}
    files |= {"config.json": b"{}", "model.safetensors": b"old"}
    (tmp_path / "token").write_text(server.token)
    assert main(["convert", "--to", "hf", str(tmp_path / "published"), "hf://lab/old"]) == 0
    new = published_files(tmp_path / "new")
    assert files.keys() == {*kept, *new}
    assert {name for name, content in files.items() if content == b"old"} == {*kept}
    assert server.num_commits == 1
    output = capsys.readouterr().out
    assert f"deleted, of an earlier model: {', '.join(sorted(stale))}." in output
    assert "its README.md is kept" in output
