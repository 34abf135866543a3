"""Documents of every kind of input, and errors of inputs that cannot be read."""

import json
import pathlib

import numpy as np
import pytest
from document_files import DOCUMENTS, every_compression, read, save, text_of
from etils import epath
from hypothesis import given
from hypothesis import strategies as st
from tfds_datasets import register_builder

from data_pipelines.errors import InputError
from data_pipelines.text.sources import ReadOptions, resolve_inputs

lines = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=20).filter(
    lambda line: "<|endoftext|>" not in line  # which separates documents
)


@pytest.mark.seconds
@given(st.lists(lines))
def test_documents_are_blocks_of_stripped_lines(
    tmp_path_factory: pytest.TempPathFactory, written: list[str]
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    expected: list[list[str]] = [[]]
    for line in written:
        line = line.removeprefix("\ufeff") if line is written[0] else line
        if line.strip():
            expected[-1].append(line.strip())
        elif expected[-1]:
            expected.append([])
    assert read(save(path, "\n".join(written))) == [document for document in expected if document]


@pytest.mark.parametrize(
    "text", ["One line.\nTwo.\n\nThree.", "\n\n\nOne line. \r\n\tTwo.\r\n \t\r\n\n\n Three.\n\n\n"]
)
def test_several_blank_lines_separate_documents(tmp_path: pathlib.Path, text: str) -> None:
    assert read(save(tmp_path / "a.txt", text)) == [["One line.", "Two."], ["Three."]]


@pytest.mark.parametrize("text", ["", "\n", " \n\n\t\n", "\ufeff"])
def test_empty_files_have_no_documents(tmp_path: pathlib.Path, text: str) -> None:
    assert read(save(tmp_path / "a.txt", text)) == []


def test_documents_end_with_their_file(tmp_path: pathlib.Path) -> None:
    paths = [save(tmp_path / name, "text without an end") for name in ("a.txt", "b.txt")]
    assert len(read(*paths)) == 2


def test_resolve_inputs_rejects_a_missing_file(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"/none\.txt: no such file\. Name one that exists"):
        resolve_inputs([str(tmp_path / "none.txt")])


def test_resolve_inputs_rejects_a_pattern_without_matches(tmp_path: pathlib.Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(InputError, match=r"/\*\.txt: no file matches\. Fix"):
        resolve_inputs([str(tmp_path / "*.txt")])


def test_directories_stand_for_their_files(tmp_path: pathlib.Path) -> None:
    (tmp_path / "corpus" / "part").mkdir(parents=True)
    (tmp_path / "corpus" / ".git").mkdir()
    for name in ("b.txt", "part/a.txt", "a.txt.gz", ".git/config", "_SUCCESS", "part/.hidden"):
        save(tmp_path / "corpus" / name, name)
    assert read(str(tmp_path / "corpus")) == [["a.txt.gz"], ["b.txt"], ["part/a.txt"]]


def test_descriptions_of_data_are_left_out_of_directories(tmp_path: pathlib.Path, caplog) -> None:
    (tmp_path / "data").mkdir()
    save(tmp_path / "README.md", "# A data set")
    save(tmp_path / "data" / "state.json", '{"fingerprint": 1}')
    save(tmp_path / "data" / "a.txt", "a")
    assert len(resolve_inputs([str(tmp_path)])) == 3
    save(tmp_path / "data" / "a.jsonl", '{"text": "b"}')
    assert read(str(tmp_path)) == [["b"], ["a"]]
    assert "left out, as descriptions of the data: README.md, state.json." in caplog.text


@pytest.mark.parametrize(
    ("train", "other", "pattern"),
    [
        ("train-00000-of-00001.txt", "test-00000-of-00001.txt", "train*"),
        ("data/train-00000-of-00001.txt", "data/validation-00000-of-00001.txt", "data/train*"),
        ("c4-train.00000-of-01024.txt", "c4-validation.00000-of-00008.txt", "c4-train*"),
        ("wiki.train.tokens", "wiki.valid.tokens", "wiki.train*"),
        ("train1.txt", "dev.txt", "train*"),
        ("train/data.txt", "test/data.txt", "train"),
        ("text/train/data.txt", "text/test/data.txt", "text/train"),
        ("a[1]/train.txt", "a[1]/test.txt", "a[[]1]/train*"),
    ],
)
def test_directories_with_several_splits_are_rejected(tmp_path, train, other, pattern) -> None:
    for name in (train, other):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        save(tmp_path / name, name)
    with pytest.raises(InputError, match=r"has the split train \(.*\) and another") as caught:
        resolve_inputs([str(tmp_path)])
    assert train in str(caught.value) and other in str(caught.value)
    assert f"such as --input '{tmp_path}/{pattern}';" in str(caught.value)
    assert read(f"{tmp_path}/{pattern}") == [[train]]


@pytest.mark.parametrize(
    "name", ["How to train.txt", "dev setup.txt", "retrain.txt", "training/a.txt"]
)
def test_directories_without_splits_are_read(tmp_path: pathlib.Path, name: str) -> None:
    for file in ("test-1.txt", name):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        save(tmp_path / file, "text")
    assert len(read(str(tmp_path))) == 2


def test_splits_of_the_output_are_no_inputs(tmp_path: pathlib.Path) -> None:
    save(tmp_path / "train.txt", "text")
    (tmp_path / "dev").mkdir()
    output = save(tmp_path / "dev" / "part.txt", "text")
    sources = resolve_inputs([str(tmp_path)], lambda name: name == output)
    assert sources == [str(tmp_path / "train.txt")]


def test_files_of_the_output_do_not_decide_what_describes_the_inputs(tmp_path) -> None:
    """The JSON of a preparation in progress does not turn README.md into a description."""
    for name in ("README.md", "a.txt"):
        save(tmp_path / name, "text")
    before = resolve_inputs([str(tmp_path)])
    (tmp_path / "corpus.partial").mkdir()
    output = save(tmp_path / "corpus.partial" / "identity.json", "{}")
    assert resolve_inputs([str(tmp_path)], lambda name: name == output) == before


def test_patterns_of_nested_folders_in_a_bucket_are_rejected(monkeypatch) -> None:
    monkeypatch.setattr(type(epath.Path("gs://b")), "is_dir", lambda path: False)
    monkeypatch.setattr(type(epath.Path("gs://b")), "exists", lambda path: False)
    with pytest.raises(InputError, match=r"gs://b/\*\*/train: \*\* matches no folders of a bucket"):
        resolve_inputs(["gs://b/**/train"])


@pytest.mark.parametrize("name", ["training.txt", "contest.txt", "a-device.txt", "latest-1.txt"])
def test_directories_with_one_split_are_read(tmp_path: pathlib.Path, name: str) -> None:
    for file in ("train-00000-of-00002.txt", "train-00001-of-00002.txt", name):
        save(tmp_path / file, "text")
    assert len(read(str(tmp_path))) == 3


def test_directories_without_files_are_rejected(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=f"{tmp_path}: directory without files. Name"):
        read(str(tmp_path))


def test_resolve_inputs_rejects_duplicates(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.txt", "text")
    for repeated in ([path, str(tmp_path / "*.txt")], [path, path], ["builtin"] * 2):
        with pytest.raises(
            InputError, match=r"(a\.txt|builtin): more than once in the inputs\. Name it"
        ):
            resolve_inputs(repeated)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match=r"link: more than once in the inputs, also as .*a\.txt\."):
        resolve_inputs([path, str(tmp_path / "link")])


def test_linked_directories_and_files_are_read_once(tmp_path: pathlib.Path, caplog) -> None:
    root = tmp_path / "corpus"
    (root / "v2" / "deep").mkdir(parents=True)
    for name in ("v2/a.txt", "v2/deep/b.txt", "c.txt"):
        save(root / name, name)
    for link, target in (("latest", "v2"), ("v2/deep/up", ".."), ("a.txt", "c.txt")):
        (root / link).symlink_to(target)
    files = [f"{root}/{name}" for name in ("c.txt", "v2/a.txt", "v2/deep/b.txt")]
    assert resolve_inputs([str(root)]) == files
    assert f"{root}/latest: left out, as a link to {root}/v2." in caplog.text
    assert f"{root}/a.txt: left out, as a link to {root}/c.txt." in caplog.text
    assert resolve_inputs([f"{root}/**"]) == files


def test_links_out_of_a_directory_are_followed(tmp_path: pathlib.Path) -> None:
    for name in ("elsewhere/a.txt", "corpus/b.txt"):
        (tmp_path / name).parent.mkdir()
        save(tmp_path / name, name)
    (tmp_path / "corpus" / "link").symlink_to("../elsewhere")
    (tmp_path / "corpus" / "c.txt").symlink_to("../elsewhere/a.txt")
    assert len(resolve_inputs([str(tmp_path / "corpus")])) == 2
    (tmp_path / "other").symlink_to("corpus")
    assert len(resolve_inputs([str(tmp_path / "other")])) == 2


def test_resolve_inputs_rejects_an_empty_list() -> None:
    with pytest.raises(InputError, match=r"No input\. Name"):
        resolve_inputs([])


def test_files_of_a_pattern_are_sorted_and_inputs_keep_their_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.txt", "a.txt", "c.md", "deep/d.txt", "x[1].txt"):
        save(tmp_path / name, name)

    def names(*inputs: str) -> list[str]:
        return [document[0] for document in read(*(f"{tmp_path}/{name}" for name in inputs))]

    assert names("c.md", "[ab].txt") == ["c.md", "a.txt", "b.txt"]
    assert names("**/d*") == ["deep/d.txt"]
    assert names("*/?.txt", "a.*") == ["deep/d.txt", "a.txt"]
    assert names("x[1].txt") == ["x[1].txt"]


def test_patterns_are_relative_to_the_working_directory(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "a.txt", "text")
    monkeypatch.chdir(tmp_path)
    assert read("*.txt") == [["text"]]


@every_compression
@pytest.mark.parametrize("kind", [".jsonl", ".ndjson", ".json", ".00000-of-01024", ".txt"])
def test_json_lines_are_documents(tmp_path: pathlib.Path, kind: str, suffix: str) -> None:
    records = [{"id": i, "text": text_of([document])} for i, document in enumerate(DOCUMENTS)]
    content = "\n".join(map(json.dumps, records)) + "\n\n"
    assert read(save(tmp_path / f"a{kind}{suffix}", content)) == DOCUMENTS


@pytest.mark.parametrize(
    "content",
    [
        '{"data": [{"text": "A."}, {"text": "B."}]}',
        '{"text": {"0": "A.", "1": "B."}}\n\n',
        '{"index": {"_id": "1"}}\n{"text": "A."}\n{"index":{"_id":"2"}}\n{"text": "B."}\n',
    ],
)
def test_objects_with_rows_and_bulk_files_are_documents(tmp_path, content: str) -> None:
    assert read(save(tmp_path / "a.json", content)) == [["A."], ["B."]]


def test_one_row_with_a_list_of_objects_is_a_document(tmp_path: pathlib.Path) -> None:
    row = json.dumps({"meta": {"body": "One."}, "items": [{"a": 1}], "body": "Two."})
    for name in ("a.json", "a.jsonl"):
        assert read(save(tmp_path / name, row), field="body") == [["Two."]]
        assert read(save(tmp_path / name, row), field="meta.body") == [["One."]]


def test_rows_of_wikitext_are_articles(tmp_path: pathlib.Path) -> None:
    rows = ["", " = A = \n", "", " One .\n", " Two .\n", " = = B = = \n", " Three .\n"]
    lines = "".join(f"{json.dumps({'text': row})}\n" for row in rows * 2)
    assert read(save(tmp_path / "a.jsonl", lines)) == [["One .", "Two .", "Three ."]] * 2


def test_text_that_begins_with_a_brace_is_not_json(tmp_path: pathlib.Path) -> None:
    documents = [["{x} is a set."], ["{y} too."]]
    assert read(save(tmp_path / "a.txt", text_of(documents))) == documents


def test_blank_lines_in_a_field_do_not_end_a_document(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"body": " One.\\n\\n\\tTwo.\\r\\n"}\n{"body": " \\n"}')
    assert read(path, field="body") == [["One.", "Two."], []]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "', "not JSON"),
        ("[1]", "list, not a JSON object"),
        ('{"body": "x", "id": 1}', "no field 'text', only body, id. Choose one with --field"),
        ('{"text": 5}', "field 'text' is int, not text"),
        ('{"text": null}', "field 'text' is NoneType, not text"),
        ('{"text": "\\ud800"}', "field 'text' is not Unicode"),
    ],
)
def test_json_lines_without_text_are_rejected(
    tmp_path: pathlib.Path, line: str, message: str
) -> None:
    path = save(tmp_path / "a.jsonl", '{"text": "fine"}\n\n' + line)
    with pytest.raises(InputError, match=rf"a\.jsonl:3: {message}"):
        read(path)


def test_field_names_may_have_a_path(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"doc": {"text": "One."}}\n{"doc.text": "Two."}\n')
    assert read(path, field="doc.text") == [["One."], ["Two."]]


# Bad records

BAD = ['{"text": "One."}', "{", '{"text": 3}', '{"body": ""}', '{"text": "\\ud800"}', "[]", "\xff"]


def test_bad_records_are_skipped_up_to_the_fraction(tmp_path: pathlib.Path, caplog) -> None:
    lines = [*BAD, *['{"text": "Two."}'] * 93]
    path = save(tmp_path / "a.jsonl", "\n".join(lines).encode("latin-1"))
    with pytest.raises(InputError, match=r"a\.jsonl:2: not JSON|byte \d+ is not UTF-8"):
        read(path)
    assert [d for d in read(path, max_bad_fraction=0.06) if d] == [["One."], *[["Two."]] * 93]
    assert "6 of 100 records are bad and skipped. The first: " in caplog.text
    with pytest.raises(
        InputError, match=r"6 of 100 .* more than max_bad_fraction=0\.05\. Fix them, or raise"
    ):
        read(path, max_bad_fraction=0.05)


def test_reading_stops_early_with_too_many_bad_records(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.jsonl", '{"a\n' * 110_000)
    with pytest.raises(InputError, match=r"100,001 of the first 100,001 records are bad"):
        read(path, max_bad_fraction=0.01)


def test_bad_records_at_the_start_count_like_others(tmp_path: pathlib.Path) -> None:
    lines = ['{"a', '{"text": "One."}'] * 1500 + ['{"text": "One."}'] * 7000
    lines.sort()  # the bad ones first
    path = save(tmp_path / "a.jsonl", "\n".join(lines))
    assert sum(map(len, read(path, max_bad_fraction=0.2))) == 8500


def test_bad_lines_of_text_are_skipped(tmp_path: pathlib.Path) -> None:
    path = save(tmp_path / "a.txt", b"One.\ncaf\xe9\nTwo.\n\nThree.\n")
    assert read(path, max_bad_fraction=0.5) == [["One.", "Two."], ["Three."]]


def test_long_documents_are_logged(tmp_path: pathlib.Path, caplog) -> None:
    path = save(tmp_path / "a.txt", "A line.\n" * 20_000)
    assert len(read(path)) == 1
    assert "a document has more than 10000 lines. A blank line ends a document" in caplog.text
    assert caplog.text.count("--documents lines") == 1
    caplog.clear()
    assert len(read(path, documents="lines")) == 20_000 and not caplog.text


def test_read_options_reject_invalid_values() -> None:
    with pytest.raises(
        InputError, match=r"documents='pages': unknown unit\. Choose blocks, lines or wrapped"
    ):
        ReadOptions(documents="pages")
    with pytest.raises(InputError, match=r"max_bad_fraction=2: not a fraction\. It must be"):
        ReadOptions(max_bad_fraction=2)


@pytest.fixture(scope="module")
def tfds_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Two small TensorFlow Datasets builders."""
    kinds = pytest.importorskip("tensorflow_datasets").features

    directory = tmp_path_factory.mktemp("tfds")
    texts = [{"text": "\n\n".join(lines), "number": i} for i, lines in enumerate(DOCUMENTS)]

    features = {"text": kinds.Text(), "number": np.int64}
    register_builder(directory, "TinyText", features, {"train": texts})
    register_builder(directory, "TinyTest", features, {"test": texts})


@pytest.mark.slow
@pytest.mark.usefixtures("tfds_home")
def test_records_of_tfds_are_documents() -> None:
    documents = read("tfds:tiny_text")
    assert sorted(documents) == sorted(DOCUMENTS)
    assert read("tfds:tiny_text") == documents


@pytest.mark.seconds
@pytest.mark.usefixtures("tfds_home")
@pytest.mark.parametrize(
    ("source", "field", "message"),
    [
        ("tfds:tiny_text", "body", "record 0: no field 'body', only number, text"),
        ("tfds:tiny_text", "number", "record 0: field 'number' is int64, not text"),
        ("tfds:tiny_test", "text", "tfds:tiny_test: no split train, only test"),
        ("tfds:no_such_data", "text", "tfds:no_such_data: unknown to TensorFlow Datasets"),
        ("tfds:tiny_text/odd", "text", "tfds:tiny_text/odd: unknown to TensorFlow Datasets"),
    ],
)
def test_unknown_names_in_tfds_are_rejected(source: str, field: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(source, field=field)
