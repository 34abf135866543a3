"""Tests of the filters by length, language and near duplicates."""

import importlib.util

import numpy as np
import pytest
from conftest import TOKENIZER, sample_text
from hypothesis import given
from hypothesis import strategies as st

from data_pipelines.corpus.filters import NUM_BANDS, Filters, is_near_duplicate
from data_pipelines.corpus.options import CorpusOptions
from data_pipelines.corpus.prepare import prepare
from data_pipelines.errors import InputError

ENGLISH = "The ship left the harbour in the morning, and nobody on the quay knew where it went."
GERMAN = "Das Schiff verließ den Hafen am Morgen, und niemand am Kai wusste, wohin es fuhr."
FRENCH = "Le navire quitta le port au matin, et personne sur le quai ne savait où il allait."


@pytest.mark.seconds
def test_is_other_language_identifies_languages() -> None:
    texts = [ENGLISH, GERMAN, FRENCH]
    assert Filters(languages="en").is_other_language(texts).tolist() == [False, True, True]
    assert Filters(languages="de+fr").is_other_language(texts).tolist() == [True, False, False]
    assert not Filters().is_other_language(texts).any()


def test_minhash_bands_find_near_duplicates() -> None:
    documents = sample_text(seed=8, documents=60).strip("\n").split("\n\n")
    long = [" ".join(documents[i : i + 6]) for i in range(0, 60, 6)]
    near = [text + " and a few more words" for text in long]
    bands = Filters(near_dedup=True).minhash_bands([*long, *near])
    assert bands.shape == (20, NUM_BANDS) and bands.dtype == np.uint64
    assert is_near_duplicate(bands).tolist() == [False] * 10 + [True] * 10


def altered(text: str, every: int) -> str:
    return "".join("x" if i % every == every // 2 else c for i, c in enumerate(text))


@pytest.mark.parametrize("first", ["ก", "ກ", "က", "ក", "あ", "一", "𠀀"])
def test_minhash_bands_find_near_duplicates_without_spaces(first: str) -> None:
    draw = np.random.Generator(np.random.Philox(key=4)).random
    texts = ["".join(chr(ord(first) + int(40 * x)) for x in draw(400)) for _ in range(10)]
    bands = Filters(near_dedup=True).minhash_bands(
        [*texts, *(altered(text, 100) for text in texts)]
    )
    assert is_near_duplicate(bands).tolist() == [False] * 10 + [True] * 10


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=12))
def test_is_near_duplicate_keeps_the_first(rows: list[list[int]]) -> None:
    bands = np.array(rows, np.uint64)
    expected = [any((bands[i] == bands[j]).any() for j in range(i)) for i in range(len(bands))]
    assert is_near_duplicate(bands).tolist() == expected


def test_totals_count_dropped_documents(tmp_path) -> None:
    texts = sample_text(seed=8, documents=30).strip("\n").split("\n\n")
    near = [text + " ba" for text in texts[:5]]
    source = tmp_path / "a.txt"
    source.write_text("\n\n".join([*texts, *near, "ba ."]))
    filters = Filters(min_document_tokens=4, near_dedup=True)
    options = CorpusOptions(eval_fraction=0, filters=filters)
    manifest = prepare([str(source)], TOKENIZER, tmp_path / "out", options, workers=1)
    assert manifest.totals["short_documents"] == 1
    assert manifest.totals["documents"] + manifest.totals["duplicate_documents"] == 35
    assert manifest.totals["duplicate_documents"] >= 4
    assert manifest.options["near_dedup"] is True


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_document_tokens": 0}, "min_document_tokens=0: below the minimum. Use at least 1"),
        (
            {"languages": "en+english"},
            r"languages=en\+english: unknown language 'english'. Choose from ace, af, am",
        ),
    ],
)
def test_filters_reject_invalid_values(fields, message) -> None:
    with pytest.raises(InputError, match=message):
        Filters(**fields)


@pytest.mark.parametrize("fields", [{"languages": "en"}, {"near_dedup": True}])
def test_filters_name_a_missing_library(fields, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"not installed. Run pip install 'bertjax\[filters\]'"):
        Filters(**fields)


@pytest.mark.parametrize(("languages", "warns"), [("en", False), ("en+de", True)])
def test_prepare_warns_of_several_languages(tmp_path, caplog, languages: str, warns: bool) -> None:
    source = tmp_path / "a.txt"
    source.write_text("\n\n".join([ENGLISH, GERMAN, ENGLISH + ENGLISH]))
    options = CorpusOptions(eval_fraction=0, filters=Filters(languages=languages))
    prepare([str(source)], TOKENIZER, tmp_path / "out", options, workers=1)
    assert ("Prepare one directory per language" in caplog.text) == warns
