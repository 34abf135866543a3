"""Files and directories that a user names."""

import argparse
import gzip
import os
import sys
from types import SimpleNamespace

import pytest
from etils import epath

from bertjax.cli import files
from bertjax.cli.files import check_directory, check_output, open_output, read_lines
from bertjax.cli.main import main
from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_read_lines_drops_a_byte_order_mark(mark: str, tmp_path) -> None:
    (tmp_path / "text.txt").write_text(f"{mark}ba\ndo\n")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(f"{mark}ba\ndo\n".encode()))
    for name in ("text.txt", "text.txt.gz"):
        assert list(read_lines(str(tmp_path / name))) == ["ba\n", "do\n"]
    assert parse_json(f'{mark}{{"ba": 1}}') == {"ba": 1}


def test_read_lines_rejects_binary_input(tmp_path) -> None:
    (tmp_path / "text.txt").write_bytes(b"ba\n\xff\n")
    with pytest.raises(InputError, match=r"text\.txt: byte 3 is not UTF-8. Convert it"):
        list(read_lines(str(tmp_path / "text.txt")))


def test_check_directory_follows_links_and_rejects_dangling_ones(tmp_path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with pytest.raises(InputError, match="link: dangling link"):
        check_directory(tmp_path / "link" / "run", "--workdir")
    (tmp_path / "there").mkdir()
    check_directory(tmp_path / "link" / "run", "--workdir")


def test_checkpoint_is_no_output(tmp_path) -> None:
    (tmp_path / "files.json").write_text("{}")
    for check in (check_directory, lambda path, _: check_output(path / "scores.json")):
        with pytest.raises(InputError, match=f"{tmp_path}: is a checkpoint. Name another"):
            check(tmp_path, "--output")


def test_files_of_the_system_are_no_outputs(tmp_path) -> None:
    (tmp_path / "link").symlink_to("/dev")
    for path in ("/dev/new", "/proc/new", "/sys/new", tmp_path / "link" / "new"):
        with pytest.raises(InputError, match=f"{path}: no files can be created in /(dev|proc|sys)"):
            check_output(path)


def test_open_output_replaces_nothing_on_failure(tmp_path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("before")
    with pytest.raises(KeyError), open_output(str(path)) as sink:
        sink.write("after")
        raise KeyError
    assert path.read_text() == "before" and os.listdir(tmp_path) == ["file.txt"]


@pytest.mark.parametrize("path", ["dir", "dir/new/run"])
def test_check_directory_rejects_a_directory_without_permission(
    tmp_path, monkeypatch, path
) -> None:
    (tmp_path / "dir").mkdir()
    # The account of the tests may have all permissions.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "dir")
    problem = rf"--output={tmp_path / path}: not writable \(no permission for {tmp_path}/dir\)\."
    with pytest.raises(InputError, match=f"{problem} Use another --output, or one that this acc"):
        check_directory(tmp_path / path, "--output")
    check_directory(tmp_path / "other", "--output")


def test_check_output_rejects_a_directory_without_permission(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    problem = rf"{tmp_path}/x\.json: not writable \(no permission for {tmp_path}\)\. Use another"
    with pytest.raises(InputError, match=problem):
        check_output(tmp_path / "x.json")


@pytest.mark.parametrize("name", ["~", "~/corpora/mine", "~root/mine"])
@pytest.mark.parametrize("check", [check_output, lambda path: check_directory(path, "--output")])
def test_outputs_have_no_unexpanded_home_directory(tmp_path, monkeypatch, check, name) -> None:
    monkeypatch.chdir(tmp_path)
    expanded = os.path.expanduser(name)
    with pytest.raises(InputError, match=f"{name}: the shell has not expanded ~. Write {expanded}"):
        check(name)
    assert not os.listdir()
    check("~draft")  # no account has this name


def find_buckets(*extra: str, **arguments: object) -> list[str]:
    return sorted(files._find_buckets(argparse.Namespace(**arguments), extra))


@pytest.mark.parametrize("argument", sorted(files._ARGUMENTS_WITH_TEXT))
def test_texts_name_no_buckets(argument: str) -> None:
    text = "gs://my-bucket/x"
    assert not find_buckets(**{argument: text})
    assert not find_buckets(**{argument: [f"key={text}"]}, argv=["--text", text])


def test_buckets_are_found_in_every_path() -> None:
    config = "pretraining:model=base,data=gs://a/one+gs://b/two,init='gs://c/x'"
    assert find_buckets(config=config, subcommand="train") == ["gs://a", "gs://b", "gs://c"]
    assert find_buckets("--config.data.dir=gs://d") == ["gs://d"]
    paths = {"input": ["gs://e/*", "text"], "checkpoint": "gs://f/run", "model": ["name=gs://g/m"]}
    assert find_buckets(**paths, run=print, seeds=3, output=None) == ["gs://e", "gs://f", "gs://g"]
    assert not find_buckets(output="notes on gs://a")


class PermissionDeniedError(Exception): ...


class FailedPreconditionError(Exception): ...


@pytest.fixture
def tensorflow(monkeypatch) -> None:
    """Errors of tensorflow, without a network and without permission for a bucket itself."""
    names = ("Unauthenticated", "Unavailable", "DeadlineExceeded", "Aborted")
    errors = {f"{name}Error": type(name, (Exception,), {}) for name in names}
    errors |= {e.__name__: e for e in (PermissionDeniedError, FailedPreconditionError)}
    module = SimpleNamespace(errors=SimpleNamespace(**errors))
    monkeypatch.setitem(sys.modules, "tensorflow", module)
    monkeypatch.setattr(files, "check_installed", lambda *_, **__: None)

    def exists(path: epath.Path) -> bool:
        if str(path) == "gs://my-bucket":
            raise FailedPreconditionError("Could not resolve host: www.googleapis.com")
        if str(path) == "gs://private":
            raise PermissionDeniedError
        return False

    monkeypatch.setattr(type(epath.Path("gs://b")), "exists", exists)


def test_bucket_that_cannot_be_reached_is_reported_in_one_line(tensorflow, capsys) -> None:
    assert main(["report", "gs://my-bucket/run"]) == 1
    assert capsys.readouterr().err == (
        "bertjax: gs://my-bucket: cannot be reached (Could not resolve host: www.googleapis.com). "
        "Check the network and its proxy.\n"
    )


def test_bucket_itself_needs_no_permission(tensorflow) -> None:
    files.check_buckets(argparse.Namespace(workdir="gs://private/run"), [])
    with pytest.raises(InputError, match=r"gs://none: no such bucket\. Name one"):
        files.check_buckets(argparse.Namespace(workdir="gs://none/run"), [])
