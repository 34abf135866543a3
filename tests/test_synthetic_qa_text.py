"""Samples of a text: pairs of neighboring sentences, and paragraphs of whole documents."""

import pytest
from text_samples import make_documents

from experiments.synthetic_qa import text


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_sentence_pairs_are_neighbors_and_a_smaller_sample_is_part_of_a_larger(count: int) -> None:
    documents = make_documents(10)
    pairs = text.sample_sentence_pairs(documents, count, seed=0)
    assert len(pairs) == min(count, 60)
    lines = [line for document in documents for line in document]
    for pair in pairs:
        (line,) = [line for line in lines if pair["target"] in line]
        before, _ = line.split(" " + pair["target"], 1)
        assert before.endswith(pair["source"])
    half = (len(pairs) + 1) // 2
    assert pairs[:half] == text.sample_sentence_pairs(documents, half, 0)
    assert pairs != text.sample_sentence_pairs(documents, count, seed=1)


@pytest.mark.parametrize("count", [1, 3, 4, 100])
def test_paragraphs_are_those_of_whole_documents(count: int) -> None:
    documents = make_documents(10)
    rows = text.sample_paragraphs(documents, count, seed=0, known=set())
    assert len(rows) == min(count, 30) == len({row["id"] for row in rows})
    assert len({row["document"] for row in rows}) == -(-len(rows) // 3)
    assert all(row["context"] in documents[row["document"]] for row in rows)


def test_paragraphs_leave_out_documents_with_known_passages() -> None:
    documents = make_documents(3)
    known = text.known_words(["Other words. " + documents[1][2][30:200]])
    rows = text.sample_paragraphs(documents, 100, 0, known)
    assert {row["document"] for row in rows} == {0, 2}


def test_paragraphs_that_are_not_sampled_may_be_known_too() -> None:
    documents = make_documents(4)
    short = " ".join(f"short{i}" for i in range(20))
    long = " ".join(f"long{i}" for i in range(300))
    eleventh = " ".join(f"eleventh{i}" for i in range(60))
    documents[0].append(short)
    documents[1].append(long)
    documents[2] += [" ".join(f"word{i}-{j}" for j in range(60)) for i in range(7)] + [eleventh]
    known = text.known_words([short, long, eleventh])
    rows = text.sample_paragraphs(documents, 100, 0, known)
    assert {row["document"] for row in rows} == {3}
