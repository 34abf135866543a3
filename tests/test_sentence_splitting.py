"""Sentence splitting in several languages; no text is lost."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from data_pipelines.text.sentence_splitting import split_sentences

# Difficult text: words, stops, quotes, all kinds of spaces, several scripts.
parts = st.sampled_from(
    [
        *"AaBb 1\t\u00a0.!?…。！？」\"')([“”-",
        "Dr",
        "No",
        "U.S",
        "etc",
        "The ",
        ". ",
        "3.5",
        "語",
        "हि",
    ]
)
hard_lines = st.lists(parts, max_size=40).map("".join)


def without_space(text: str) -> str:
    return re.sub(r"\s+", "", text)


@given(hard_lines | st.text(max_size=200))
def test_split_sentences_keeps_all_text(line: str) -> None:
    sentences = split_sentences(line)
    assert without_space("".join(sentences)) == without_space(line)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.seconds
@given(hard_lines)
@example(". a。A")
def test_split_sentences_does_not_split_a_sentence_again(line: str) -> None:
    for sentence in split_sentences(line):
        # Without the capitals of its line, a lower-case sentence follows other rules.
        if line.islower() or not sentence.islower():
            assert split_sentences(sentence) == [sentence]


@given(st.lists(st.sampled_from(["It rains. ", "Why? ", "No! ", "He left (again). "]), max_size=9))
def test_split_sentences_splits_joined_sentences(sentences: list[str]) -> None:
    assert split_sentences("".join(sentences)) == [sentence.strip() for sentence in sentences]


def check(marked: str) -> None:
    """Check that a line is split exactly where it has a |."""
    assert split_sentences(marked.replace("|", "")) == [part.strip() for part in marked.split("|")]


@pytest.mark.parametrize(
    "line",
    [
        "He came. |She went. |They met in 1912. |7 of them stayed.",
        "Really?! |Yes! |Well… |Perhaps... |Then again.",
        'He said "Go." |(She went.) |“So be it.” |[Note] it.',
        "“Stop!” he said. |“Why?” |She ran.",
        "The cost rose by 3.5 percent. |Version 2.0 came out. |See www.example.com for more.",
        "It was 10 p.m. |The shop was shut.",
        "He lives in the U.S. |He was born in the U.K. and works for the U.S. Army.",
        "Written by J. R. R. Tolkien and C. S. Lewis. |Both taught.",
        "Mr. Smith, Mrs. Jones and Dr. No met Prof. Kim at St. Paul's. |They talked.",
        "Acme Inc. and Sons Ltd. Holdings merged. |It was sold to Acme Inc. |The price was high.",
        "See Fig. 3, pp. 7-9, vol. 2 and No. 5. |It is on Sept. 11. |No. |He did not.",
        "Dogs, cats, etc. |They, e.g. Rex, i.e. the dog, bark vs. Tom et al. (2004).",
        "1. The first. |2. The second.",
        "A. Large ones. |B. Small ones.",
        "He wrote it in 1999. |It sold well.",
        "lower. case does not start. |Upper does.",
        "An ellipsis ... inside, and another . . . inside.",
        "he came. |she went. |they met in 1912. |why? |7 of them stayed at 3.5 percent.",
        "mr. smith of acme inc. holdings met j. r. r. tolkien of the u.s. army. |they talked.",
    ],
)
def test_split_sentences_of_english(line: str) -> None:
    check(line)


@pytest.mark.parametrize(
    "line",
    [
        "今天下雨。|明天呢？|晴天！|“好。”|他说。",
        "彼は来た。|「本当？」|そうだ！？|はい。",
        "그는 왔다. |그녀는 갔다. |왜? |몰라!",
        "वह आया। |वह गई। |क्यों? |पता नहीं!",
        "جاء. |ذهبت. |لماذا؟ |لا أعرف.",
        "Он пришёл. |Она ушла. |Почему? |Не знаю…",
        "Él vino. |¿Por qué? |¡No sé! |Adiós.",
        "Anh ấy đã đến. |Tại sao? |Ông sinh năm 1912. |Đó là năm 1912.",
        "គាត់មកហើយ។|នាងទៅហើយ។|ហេតុអ្វី?",
        "သူလာပြီ။|သူမသွားပြီ။",
        "ເຂົາມາແລ້ວ ແລະນາງກໍໄປແລ້ວ ພວກເຂົາບໍ່ໄດ້ພົບກັນ |ແຕ່ກໍບໍ່ມີໃຜຮູ້",
        "เขามาแล้วเมื่อวานนี้ตอนเช้าและกลับไปในตอนเย็น |เธอบอกว่าไม่เคยพบเขา ในปี 1912 มาก่อนเลยสักครั้ง",
    ],
)
def test_split_sentences_of_other_languages(line: str) -> None:
    check(line)


@pytest.mark.parametrize("line", ["", " ", "\u00a0\t"])
def test_split_sentences_of_white_space_is_empty(line: str) -> None:
    assert split_sentences(line) == []


@pytest.mark.seconds
@pytest.mark.parametrize(
    "unit", [".", ". ", "!(", ") ", ".) ", "A.", "A. ", "。", "a", "。」", '" ']
)
def test_split_sentences_takes_linear_time(unit: str) -> None:
    line = unit * 100_000
    started = time.process_time()
    assert without_space("".join(split_sentences(line))) == without_space(line)
    assert time.process_time() - started < 2
