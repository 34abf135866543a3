"""Layouts of text files: those that are rejected with a fix, and defects that are warned of."""

import json
import pathlib
import re
import subprocess
import textwrap

import pytest
from conftest import sample_text
from document_files import read, save

from data_pipelines.errors import InputError

SRT = "1\n00:00:01,000 --> 00:00:02,000\nOne line.\n\n2\n00:00:02,500 --> 00:00:04,000\nTwo.\n"
CONLLU = "# text = One line.\n" + "1\tOne\tone\tNUM\tCD\t_\t2\tnummod\t_\t_\n" * 2 + "\n"
CONLL = "-DOCSTART- -X- -X- O\n\nOne CD B-NP O\nline NN I-NP O\n\nOslo NNP B-NP B-LOC\n\n"


CONLL12 = "bc/x 0 1 line NN * - - - -\n" * 2 + "\n"
ASS = "[Script Info]\nTitle: x\n\n[Events]\nDialogue: 0,0:00:01.00,0:00:02.00,D,,0,0,0,,One, two.\n"
VERTICAL = '<doc id="1">\n<s>\nOne\tCD\tone\nline\tNN\tline\n</s>\n</doc>\n'
BROWN = "The/at tea/nn was/bedz old/jj ./.\n" * 9


@pytest.mark.parametrize(
    ("content", "problem", "text"),
    [
        (SRT, "subtitles with times", "One line.\nTwo.\n"),
        ("WEBVTT - x\n\n" + SRT.replace(",", "."), "subtitles with times", "One line.\nTwo.\n"),
        ("[00:00:01.000 --> 00:00:02.000]  One.\n" * 9, "subtitles or lyrics", "One.\n" * 9),
        ("{0}{25}One.\n" * 9, "subtitles or lyrics with times", "One.\n" * 9),
        ("[00:01.50]One.\n" * 9, "subtitles or lyrics with times", "One.\n" * 9),
        (
            "7|t|One.\n7|a|Two.\n7\t0\t3\tA\tGene\t1\n\n",
            "annotations of PubTator",
            "One.\nTwo.\n\n",
        ),
        (VERTICAL, "a token and its tags a line", "One line \n"),
        (SRT.replace(" --> ", "  -->  "), "subtitles with times", "One line.\nTwo.\n"),
        (CONLLU * 2, "CoNLL-U", "One line.\nOne line.\n"),
        (CONLL * 2, "a token and its tags a line", "-DOCSTART- \nOne line \nOslo \n" * 2),
        (CONLL12 * 3, "a token and its tags a line", "bc/x bc/x \n" * 3),
        ("A +++$+++ B +++$+++ One line.\n" * 10, "columns between", "One line.\n" * 10),
        ("1^^One line.\n" + "2^A^One line.\n" * 9, r"columns between '\^'", "One line.\n" * 10),
        ("1^One line.\n" * 9, r"columns between .\^", "One line.\n" * 9),
        ("1\x01One line.\n" * 9, r"columns between '\\x01'", "One line.\n" * 9),
        ("1::A::One line.\n" * 9, "columns between '::'", "One line.\n" * 9),
        (ASS, "subtitles with times", "One, two.\n"),
        ("__label__a __label__b One line.\n" * 9, "labels of fastText", "One line.\n" * 9),
        (BROWN, "tags behind the words", "The tea was old .\n" * 9),
        (BROWN.replace("/", "_"), "tags behind the words", "The tea was old .\n" * 9),
    ],
)
def test_annotated_text_is_rejected_with_a_command(tmp_path, content, problem, text) -> None:
    with pytest.raises(InputError, match=rf"a\.x: {problem}.*\. Write its text") as caught:
        read(save(tmp_path / "a.x", content))
    command = re.search(r"Write its text.*?: (.* > a\.text\.txt)", str(caught.value))[1]
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    written = tmp_path / "a.text.txt"
    assert written.read_text() == text
    documents = read(str(written), documents="lines")
    assert len(documents) == len(list(filter(None, text.split("\n"))))


@pytest.mark.parametrize(
    "content",
    [
        "<!DOCTYPE html>\n<p>One.\n",
        "<html><head></head>\n",
        '\ufeff<?xml version="1.0"?>\n<tmx/>\n',
        '<text id="a">\n<s>\nOne\tCD\tone\n</s>\n</text>\n',
        "From a@b.c Mon Jan 1 00:00:00 2001\nMessage-ID: <1>\n\nOne.\n",
        "From: a@b.c\nSubject: One\nLines: 1\n\nOne.\n",
        "WARC/1.0\nWARC-Type: conversion\n\nOne.\n",
        "-- MySQL dump 10.19\n",
        "/*M!999999\\- enable the sandbox mode */ \n-- MariaDB dump 10.19\n",
        "<!-- saved from a page -->\n<html><body>\nOne.\n",
        "%!PS-Adobe-3.0\n(One.) show\n",
        "\nPMID- 1\nTI  - One.\n",
        "T1\tPER 0 4\tOlaf\nR1\tLoc Arg1:T1 Arg2:T2\n#1\tNote T1\tOne.\n",
        "600:10:Tea\n600:12:Oslo: a city\n" * 3,
        "% a paper\n\\documentclass{article}\n\nOne.\n",
        "@article{a1,\n  abstract = {One.}\n}\n",
        "TY  - JOUR\nAB  - One.\n",
        '# A comment.\nmsgid ""\nmsgstr "One."\n',
        "%YAML 1.2\n---\n- text: One.\n",
        "---\ntitle: One\n---\n\nA page.\n",
        "the 23135\nof 13151\nand 12997\nto 12136\na 9081\n",
        "( (S (NP (DT The) (NN tea))))\n",
        "(TOP (S (NP (DT The) (NN tea))))\n",
    ],
)
def test_markup_is_rejected(tmp_path: pathlib.Path, content: str) -> None:
    with pytest.raises(InputError, match=r"a\.txt: .*\. (Extract|Export|Leave it out)"):
        read(save(tmp_path / "a.txt", content), documents="lines")


@pytest.mark.parametrize(
    "text",
    [
        "<unk> is a token.\n<b>No</b> page.",
        "<noise>\nA line.",
        "[1] A note.\n[2] Another.",
        '["A" and "B"]\nOne.',
        "1\n2\n3",
        "O\nO\nO",
        "(See (A and B).)\n((C)).",
        "Type O\nand O",
        "a/b c/d e/f g/h\nOne.",
        "# A heading\n# Vitamin O",
        "and/or one/two is/was a/b\nOne.",
        "From her came a line.\nSubject to change.\nOne - two - three.",
        "At 00:00:01,000 --> it began.",
        "= A =\nText.",
        "---\nOne.\n---",
        "@one: tea\n@two: tea",
        "Oslo 1905\nBergen 1070",
        "a~b^c\na~b^c d~\n~\n~\n~",
    ],
)
def test_text_with_marks_is_plain(tmp_path: pathlib.Path, text: str) -> None:
    assert read(save(tmp_path / "a.txt", text)) == [text.split("\n")]


def test_yaml_is_rejected_by_its_suffix(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match=r"a\.yml: YAML"):
        read(save(tmp_path / "a.yml", "- text: One.\n"))


def test_objects_over_several_lines_are_read(tmp_path: pathlib.Path) -> None:
    objects = [{"text": "One."}, {"text": "Two."}]
    text = "\n".join(json.dumps(value, indent=1) for value in objects)
    assert read(save(tmp_path / "a.jsonl", text)) == [["One."], ["Two."]]
    text = json.dumps({"data": objects}, indent=1)
    assert read(save(tmp_path / "a.json", f"\n{text}")) == [["One."], ["Two."]]


def test_objects_of_other_syntax_are_rejected(tmp_path: pathlib.Path) -> None:
    line = "{'text': 'One.'}"
    with pytest.raises(InputError, match=r"a\.txt:1: not JSON \(.*\)\. Write one object per line"):
        read(save(tmp_path / "a.txt", f"{line}\n" * 3))


# Defects


def wrapped(width: int = 70, documents: int = 40) -> str:
    text = sample_text(seed=5, documents=documents)
    blocks = [textwrap.fill(" ".join(b.split()), width) for b in text.strip().split("\n\n")]
    return "\n\n".join(blocks)


@pytest.mark.parametrize("width", [40, 72, 120])
@pytest.mark.parametrize("documents", ["blocks", "lines"])
def test_wrapped_text_is_reported_once(tmp_path, width: int, documents: str, caplog) -> None:
    inputs = [save(tmp_path / name, wrapped(width)) for name in ("a.txt", "b.txt")]
    read(*inputs, documents=documents)
    (message,) = caplog.messages
    assert "a.txt: lines are wrapped, such as '" in message
    assert message.endswith("Join the lines with --documents wrapped.")
    caplog.clear()
    read(*inputs, documents="wrapped")
    assert not caplog.messages


def test_wrapped_text_of_scripts_without_case_is_reported(tmp_path: pathlib.Path, caplog) -> None:
    text = "".join(chr(0x4E00 + i) + ("。" if i % 37 == 36 else "") for i in range(2000))
    read(save(tmp_path / "a.txt", "\n".join(text[i : i + 35] for i in range(0, len(text), 35))))
    assert "a.txt: lines are wrapped" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        sample_text(seed=6, documents=100),  # a sentence a line
        sample_text(seed=6, documents=100).lower().replace(".", ""),
        "\n".join(f"- {'item ' * (n % 7 + 1)}" for n in range(200)),
        "\n".join(f"{'Verse' * (n % 3 + 1)} and more of it," for n in range(200)),
    ],
)
def test_other_text_is_not_reported_as_wrapped(tmp_path, text: str, caplog) -> None:
    read(save(tmp_path / "a.txt", text))
    assert "wrapped" not in caplog.text


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("The cat &amp; the dog .", "100% of the first lines have escapes such as '&amp;'"),
        ("A well @-@ known dog .", "100% of the first lines have escapes such as '@-@'"),
        ("A film.<br /><br />I saw it.", "100% of the first lines have tags such as '<br />'"),
        ("<SPEAKER ID=1 NAME=A>", "100% of the first lines have tags such as '<SPEAKER"),
        ("One [tea](https://a.b/c) a day.", "100% of the first lines have markup such as ']("),
        ("Hi. __eou__ Hello. __eou__", "100% of the first lines have tags such as '__eou__'"),
        ("The <unk> sat.", "100% of the first lines have tags such as '<unk>'"),
        ("See :ref:`a`.", "100% of the first lines have markup such as ':ref:`'"),
        ("The **cat** sat.", "100% of the first lines have markup such as '**c'"),
        ("One line.<|end_of_text|>", "100% of the first lines have tags such as '<|end_of_text|>"),
        ("<s> one line </s>", "100% of the first lines have tags such as '<s>'"),
        ("[12:30] Anna: Tea?", "most lines begin with a number or id, such as '[12:30]'"),
        ("word", "most lines are one word, such as 'word'"),
        ("*** START OF THE PROJECT GUTENBERG EBOOK X ***", "license of Project Gutenberg is part"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_defects_are_reported(tmp_path, name: str, lines: str, message: str, caplog) -> None:
    line = f'{{"text": "{lines}"}}' if name == "a.jsonl" else lines
    read(save(tmp_path / name, f"{line}\n" * 200))
    (warning,) = caplog.messages
    assert f"{name}: " in warning and message in warning


def test_files_named_as_tables_that_are_none_are_reported(tmp_path, caplog) -> None:
    save(tmp_path / "a.csv", "# a comment\nid,text\n1,One\n2,Two\n")
    assert len(read(str(tmp_path / "a.csv"))) == 1
    assert "a.csv: no table, read as plain text. The first line of a table is" in caplog.text
