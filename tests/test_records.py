"""Files that are one JSON list."""

import json
import pathlib
import tracemalloc

import pytest
from document_files import DOCUMENTS, every_compression, read, save

from data_pipelines.errors import InputError
from data_pipelines.text.sources import read_documents


@every_compression
@pytest.mark.parametrize("name", ["a.json", "a.txt", "a"])
@pytest.mark.parametrize("indent", [None, 0, 2])
def test_a_json_list_is_read(tmp_path: pathlib.Path, name: str, suffix: str, indent) -> None:
    records = [{"text": "\n".join(lines), "x": [{"y": "],"}, "[{"]} for lines in DOCUMENTS * 50]
    content = "\ufeff\n " + json.dumps(records, indent=indent) + "\n\n"
    assert read(save(tmp_path / f"{name}{suffix}", content)) == DOCUMENTS * 50


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "One."}', r"a\.json: the list has no end\. Download it again"),
        ('[{"text": "One."}, {"text": "Tw', r"a\.json element 2: not JSON"),
        ('[{"text": "One."}, {"text": One}]', r"a\.json element 2: not JSON"),
        ('[{"text": "One."}]\n{"text": "Two."}', r"a\.json: text after the end of the list"),
        ('[{"text": "One."}, "Two."]', r"a\.json element 2: str, not a JSON object"),
        ('[{"text": "One."}, {"body": "Two."}]', r"a\.json element 2: no field 'text', only body"),
        ('[{"text": ' + "[" * 100_000, r"a\.json element 1: not JSON"),
    ],
)
def test_damaged_json_lists_are_rejected(tmp_path: pathlib.Path, content, message) -> None:
    with pytest.raises(InputError, match=message):
        read(save(tmp_path / "a.json", content))


def test_memory_does_not_depend_on_the_length_of_a_list(tmp_path: pathlib.Path) -> None:
    peaks = []
    for length in (1_000, 4_000):
        content = json.dumps([{"text": f"Document {i}. " * 9} for i in range(length)], indent=1)
        path = save(tmp_path / f"{length}.json", content)
        tracemalloc.start()
        try:
            assert sum(1 for _ in read_documents([path])) == length
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.25 * peaks[0]


def test_articles_of_wiki40b_are_their_paragraphs(tmp_path: pathlib.Path) -> None:
    text = (
        "\n_START_ARTICLE_\nTea\n_START_PARAGRAPH_\nTea is old._NEWLINE_It is hot.\n"
        "_START_SECTION_\nUses\n_START_PARAGRAPH_\nIt is drunk."
    )
    path = save(tmp_path / "a.jsonl", json.dumps({"text": text, "wikidata_id": "Q1"}))
    assert read(path) == [["Tea is old.", "It is hot.", "It is drunk."]]
