"""Files and directories that a user names."""

import gzip
import os

import pytest

from bertjax.cli.files import check_directory, check_output, open_output, read_lines
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
