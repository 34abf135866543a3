"""Tests of preparation on Beam's local runner."""

import os
import pathlib

import pytest
from conftest import TOKENIZER, sample_text
from document_files import content
from wikipedia_dumps import make_pages, to_multistream

from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.errors import InputError

pytest.importorskip("apache_beam", reason="needs Apache Beam: pip install 'bertjax[beam]'")

from data_pipelines.corpus.beam import prepare_with_beam


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> list[str]:
    """Three files, one of them a copy of another."""
    paths = [tmp_path / f"{name}.txt" for name in "abc"]
    for path, seed in zip(paths, (1, 2, 1), strict=True):
        path.write_text(sample_text(seed=seed, documents=60) + "\n\u200b\n")
    return list(map(str, paths))


@pytest.mark.parametrize("options", [{"dedup": True, "num_shards": 3}, {"eval_fraction": 0.0}])
def test_prepare_with_beam_writes_the_files_of_prepare(
    inputs: list[str], tmp_path: pathlib.Path, options: dict[str, float]
) -> None:
    options = {"eval_fraction": 0.1, **options}
    prepare(inputs, TOKENIZER, tmp_path / "one", CorpusOptions(**options), workers=1)
    prepare_with_beam(inputs, TOKENIZER, tmp_path / "other", CorpusOptions(**options))
    assert content(tmp_path / "one") == content(tmp_path / "other")


def test_prepare_with_beam_reads_dumps(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("mwparserfromhell", reason="needs pip install 'bertjax[wikipedia]'")
    inputs = [str(tmp_path / f"{name}.xml.bz2") for name in "ab"]
    for seed, path in enumerate(inputs):
        pathlib.Path(path).write_bytes(to_multistream(make_pages(seed, 20)))
    prepare(inputs, TOKENIZER, tmp_path / "one", workers=1)
    prepare_with_beam(inputs, TOKENIZER, tmp_path / "other")
    assert content(tmp_path / "one") == content(tmp_path / "other")


def test_prepare_with_beam_leaves_nothing_after_an_error(
    inputs: list[str], tmp_path: pathlib.Path
) -> None:
    pathlib.Path(inputs[1]).write_bytes(b"\xff")
    with pytest.raises(Exception, match="byte 0 is not UTF-8"):
        prepare_with_beam(inputs, TOKENIZER, tmp_path / "out")
    assert not {"out", "out.partial"} & set(os.listdir(tmp_path))


def test_prepare_with_beam_rejects_a_nonempty_output(
    inputs: list[str], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(InputError, match="already contains other files"):
        prepare_with_beam(inputs, TOKENIZER, tmp_path)
