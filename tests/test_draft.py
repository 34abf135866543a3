"""Outputs that are made in a draft: one process at a time, and nothing is left by a rejection."""

import pytest
from etils import epath

from bertjax.workdir.draft import exclusive_draft, new_directory
from bertjax.workdir.lock import LOCK_FILE
from data_pipelines.errors import InputError


def make(output: epath.Path) -> None:
    with exclusive_draft(output, "--output") as lock:
        draft = lock.workdir
        (draft / "part").write_text("done")
        lock.confirm()
        (draft / "part").rename(output)


def test_exclusive_draft_leaves_the_output_alone(tmp_path) -> None:
    make(epath.Path(tmp_path) / "new" / "a.npz")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.npz"]
    assert (tmp_path / "new" / "a.npz").read_text() == "done"


def test_exclusive_draft_rejects_a_second_process_and_an_output_that_exists(tmp_path) -> None:
    output = epath.Path(tmp_path) / "a.npz"
    with exclusive_draft(output, "--output") as lock:
        draft = lock.workdir
        (draft / "part").write_text("first")
        with pytest.raises(InputError, match=r"a\.npz\.partial: in use by .* another --output"):
            make(output)
        (draft / "part").rename(output)
    with pytest.raises(InputError, match=r"a\.npz: exists\. Name another --output, or remove it"):
        make(output)
    assert output.read_text() == "first" and list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def test_exclusive_draft_keeps_parts_after_an_error_and_no_empty_directory(tmp_path) -> None:
    output = epath.Path(tmp_path) / "new" / "a.npz"
    with pytest.raises(KeyError), exclusive_draft(output, "--output"):
        raise KeyError
    assert not (tmp_path / "new").exists()
    with pytest.raises(KeyError), exclusive_draft(output, "--output") as lock:
        draft = lock.workdir
        (draft / "part").write_text("kept")
        raise KeyError
    assert [path.name for path in (tmp_path / "new").rglob("*")] == ["a.npz.partial", "part"]


def test_exclusive_draft_deletes_what_a_process_left_that_was_killed_at_the_end(
    tmp_path, monkeypatch
) -> None:
    output, draft = epath.Path(tmp_path) / "a.npz", tmp_path / "a.npz.partial"
    make(output)
    draft.mkdir()
    (draft / "old").touch()
    with pytest.raises(InputError, match="exists"):
        make(output)
    assert draft.exists()  # not known to be a draft
    (draft / LOCK_FILE).write_text('{"machine": "", "pid": 0, "started": 0}')
    monkeypatch.setattr("bertjax.workdir.lock.LOCK_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(InputError, match="exists"):
        make(output)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.npz"]


def test_new_directory_replaces_no_link_and_no_current_directory(tmp_path, monkeypatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    for output in (epath.Path(tmp_path / "link"), epath.Path(".")):
        message = r"cannot be replaced\. Name a new directory for --output, such as .*model"
        with pytest.raises(InputError, match=message), new_directory(output, "--output"):
            pass
    assert {path.name for path in tmp_path.rglob("*")} == {"real", "link"}


def test_cleaning_up_does_not_hide_the_error(tmp_path, monkeypatch) -> None:
    with (
        pytest.raises(KeyError),
        new_directory(epath.Path(tmp_path) / "model", "--output") as draft,
    ):
        monkeypatch.setattr(type(draft), "rmtree", lambda *_, **__: draft.joinpath("none").stat())
        raise KeyError


def test_new_directory_appears_complete_or_not_at_all(tmp_path) -> None:
    output = epath.Path(tmp_path) / "model"
    output.mkdir()  # empty
    with pytest.raises(KeyError), new_directory(output, "--output") as draft:
        (draft / "part").write_text("")
        raise KeyError
    assert not list(output.iterdir()) and list(tmp_path.iterdir()) == [output]
    with new_directory(output, "--output") as draft:
        (draft / "part").write_text("done")
        assert not list(output.iterdir())
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "part"]
    with (
        pytest.raises(InputError, match=r"model: exists\. Name another --output"),
        new_directory(output, "--output"),
    ):
        pass
