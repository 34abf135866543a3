"""Tagged words: layouts of files, and label names."""

import json
import pathlib
import time

import pyarrow as pa
import pytest
import toy_tasks
from pyarrow import parquet

from data_pipelines.errors import InputError
from data_pipelines.finetuning.token_classification.conll import parse_conll
from data_pipelines.finetuning.token_classification.dataset import (
    label_names,
    make_tagged_dataset,
    read_tagged_file,
)
from data_pipelines.finetuning.token_classification.sentences import ColumnNames, TaggedSentence
from data_pipelines.finetuning.word_alignment import encode_tagged_words

TOKENIZER = toy_tasks.TOKENIZER


def read(text: str) -> list[TaggedSentence]:
    return list(parse_conll("f", text.split("\n")))


def test_parse_conll_splits_at_tabs_or_spaces() -> None:
    for text in ("a\tO\nb c\tB-x\n", "a O\nb B-x"):
        (sentence,) = read(text)
        assert sentence.tags == ["O", "B-x"] and sentence.locations == ["f:1", "f:2"]
        assert sentence.words == ["a", "b c" if "\t" in text else "b"]
    (four,) = read("U.N. NNP I-NP I-ORG\nofficial NN I-NP O\n")
    assert (four.words, four.tags) == (["U.N.", "official"], ["I-ORG", "O"])


def test_parse_conll_ends_sentences_and_documents() -> None:
    text = "-DOCSTART- -X- O O\n\na O\n\n\t\nb O \n\n-DOCSTART- -X- O O\n\nc O"
    sentences = read(text)
    assert [(sentence.words, sentence.document) for sentence in sentences] == [
        (["a"], 0),
        (["b"], 0),
        (["c"], 1),
    ]


def test_parse_conll_skips_comments_and_keeps_hash_words() -> None:
    (sentence,) = read("# sent_id = 1\n# text = # a\n#\tO\na\tB-x\n")
    assert sentence.words == ["#", "a"]
    (sentence,) = read("# one two\na O\n# O\n")
    assert sentence.words == ["a", "#"]
    for mark in ("# newdoc", "# newdoc\n\n", "# newdoc\n# sent_id = 1"):
        (sentence,) = read(f"{mark}\n#\tNN\tO\na\tNN\tO\n")
        assert sentence.words == ["#", "a"]
        assert [sentence.words for sentence in read(f"{mark}\n# O\na O\n# newdoc\nb O")] == [
            ["#", "a", "b"]
        ]


def test_parse_conll_counts_comments_that_may_be_words(caplog) -> None:
    text = "@ann USR\nlove VB\n#python HT\n! .\n\nI PRP\nsee VB\n#snow HT\n. .\n"
    assert [sentence.words for sentence in read(text)] == [["@ann", "love", "!"], ["I", "see", "."]]
    assert "2 lines that start with # are comments, such as '#python HT'." in caplog.text
    caplog.clear()
    words = [sentence.words for sentence in read(text.replace(" ", "\t"))]
    assert words == [["@ann", "love", "#python", "!"], ["I", "see", "#snow", "."]]
    assert not caplog.text


def test_parse_conll_keeps_no_break_spaces() -> None:
    for text in ("10\u00a0000 \t B-x\r\neuros\tO\n", "10\u00a0000  B-x\r\neuros O\n"):
        (sentence,) = read(text)
        assert (sentence.words, sentence.tags) == (["10\u00a0000", "euros"], ["B-x", "O"])


def test_parse_conll_accepts_empty_words_between_tabs() -> None:
    (sentence,) = read("a\tO\n\tO\n")
    assert sentence.words == ["a", ""]
    encoded = encode_tagged_words([sentence], TOKENIZER, 16)
    assert encoded.ids[encoded.first_tokens[1]] == TOKENIZER.unk_id


def test_read_tagged_file_reads_json_lines(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"tokens": ["a", "b"], "ner_tags": ["B-x", "O"], "document": 1}\n'
        '{"words": ["c"], "tags": ["U-x"], "document": 1}\n'
        '{"words": ["d"], "labels": ["O"], "document": 2}\n'
    )
    with pytest.raises(InputError, match=":1, word 1: tag 'B-x' violates the scheme"):
        read_tagged_file(path)
    data = read_tagged_file(path, fix_tags=True)
    assert [sentence.document for sentence in data.sentences] == [0, 0, 1]
    assert data.tags == ["B-x", "O", "B-x", "O"]


def test_label_names_do_not_depend_on_the_order_of_sentences() -> None:
    rows = [TaggedSentence(["a"], [tag], ["f:1"]) for tag in ("B-z", "O", "B-a-b", "B-m")]
    expected = ("O", "B-a-b", "I-a-b", "B-m", "I-m", "B-z", "I-z")
    for order in (rows, rows[::-1]):
        assert label_names(make_tagged_dataset("f", order)) == expected


@pytest.mark.seconds
def test_read_tagged_file_reads_published_files(data_dir: pathlib.Path) -> None:
    counts = {}
    for path in sorted((data_dir / "ner").glob("*/*[dl]")):  # .conll and .annotated
        data = read_tagged_file(path)
        counts[path.name] = len(data.sentences), len(data.words)
    assert counts["wnut17train.conll"] == (3394, 62730)
    assert counts["emerging.dev.conll"] == (1009, 15733)
    assert counts["emerging.test.annotated"] == (1287, 23394)
    assert [counts[f"{name}.conll"][0] for name in "abefgh"] == [1000, 2000, 200, 2000, 2138, 2001]


def tags_of(data) -> list[str]:
    return [f"{word}/{tag}" for word, tag in zip(data.words, data.tags, strict=True)]


GERMEVAL = """#\thttp://a.org\t[2010]\t
1\tPaul\tB-PER\tO
2\twohnt\tO\tO

1\tTor\tB-ORG\tO
2\tBonn\tI-ORG\tB-LOC
"""
_MIDDLE = "- - - Speaker#1"
ONTONOTES = f"""#begin document (a); part 000
a 0 0 Paul NNP (TOP(S(NP* {_MIDDLE} (PER* (0
a 0 1 Horn NNP *)) {_MIDDLE} *) 0)

a 0 0 ran VBD (TOP(S(VP* {_MIDDLE} * (V*) -
a 0 1 far RB *))) {_MIDDLE} * (ARGM*) -

#end document
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GERMEVAL, "Paul/B-PER wohnt/O Tor/B-ORG Bonn/I-ORG"),
        ("1 Paul NN I-NP B-PER\n2 in IN I-PP O\n", "Paul/B-PER in/O"),
        ("He PRP B-NP O\nran VBD B-VP O\nI PRP B-NP B-PER\n", "He/O ran/O I/B-PER"),
        ("he PRP B-NP\nran VBD B-VP\n", "he/B-NP ran/B-VP"),
        ("O\tin\nB-LOC\tBonn\n", "in/O Bonn/B-LOC"),  # MIT's movies
        ("en:Paul\tB-PER\nen:in\tO\n", "Paul/B-PER in/O"),
        ("en:Paul\tB-PER\nin\tO\n", "en:Paul/B-PER in/O"),
        ("Paul\tB-PER\n\u200b\ufeff\nin\tO\n", "Paul/B-PER in/O"),
        ("1-2\tzum\tO\n1\tzu\tO\n2\tdem\tO\n3\tTor\tB-LOC\n", "zu/O dem/O Tor/B-LOC"),
        ("Paul _ _ B-PER\nin _ _ O\n", "Paul/B-PER in/O"),
        ("TOKEN\tNE-LIT\tNE-METO\nParis\tB-loc\tO\nest\tO\tO\n", "Paris/B-loc est/O"),
        ("1\tPaul\tB-PER\n2\tran\tO\n1\tIda\tB-PER\n", "Paul/B-PER ran/O Ida/B-PER"),
        ("Paul B-PER\nran O\n" + "# two words O\n", "Paul/B-PER ran/O"),
        ("a NN\nb VB\n# NN\n", "a/NN b/VB #/NN"),
        ("a\tNN\nb\tVB\n#\t#\n", "a/NN b/VB #/#"),
        ("#a\t1\nPaul\tB-PER\nin\tO\n#a\t2\n", "Paul/B-PER in/O"),
        ("Paul\tPER\nHorn\tPER\nran\tO\nfar\tO\n", "Paul/B-PER Horn/I-PER ran/O far/O"),
        ("Paul B_PER\nHorn M_PER\nBoy E_PER\nran O\n", "Paul/B-PER Horn/I-PER Boy/I-PER ran/O"),
        ("Paul PER-B\nHorn PER-I\nran O\n", "Paul/B-PER Horn/I-PER ran/O"),
        ("@a\tO\nran\tV\ncat\tN\n", "@a/O ran/V cat/N"),  # O is a part of speech of Twitter
        ("Paul (PER*\nHorn *)\nran *\nBonn (LOC)\n", "Paul/B-PER Horn/I-PER ran/O Bonn/B-LOC"),
        ("Token\tTag\nPaul\tB-PER\n\nToken\tTag\nran\tO\n", "Paul/B-PER ran/O"),
        (ONTONOTES, "Paul/B-PER Horn/I-PER ran/O far/O"),
        ("科0\tO\n技1\tO\n王0\tB-PER\n", "科/O 技/O 王/B-PER"),  # Weibo NER
        ("B2 B-x\nB0 O\n", "B2/B-x B0/O"),
        ("Paul|NNP|I-PER ran|VBD|O\n\n#|SYM|O\n", "Paul/B-PER ran/O #/O"),
    ],
)
def test_read_tagged_file_chooses_columns_by_content(text: str, expected: str, tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text)
    data = read_tagged_file(path)
    assert tags_of(data) == expected.split()


def test_read_tagged_file_logs_the_choice_of_columns(tmp_path, caplog) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(GERMEVAL)
    with caplog.at_level("INFO"):
        read_tagged_file(path)
    assert "words in column 2, tags in column 3, such as 'Paul B-PER'" in caplog.text
    data = read_tagged_file(path, columns=ColumnNames("2", "4"))
    assert tags_of(data) == ["Paul/O", "wohnt/O", "Tor/O", "Bonn/B-LOC"]


def test_read_tagged_file_reads_conllu(tmp_path) -> None:
    path, rest, blank = tmp_path / "a.conllu", "\t_\t_\t0\troot\t_\t_\n", "\t_" * 8
    path.write_text(
        f"# newdoc\n1-2\tzum{blank}\n1\tzu\tzu\tADP{rest}2\tdem\tder\tDET{rest}"
        f"2.1\tx\tx\tX\t_\t_\t_\t_\t0:root\t_\n\n# newdoc\n1\tJa\tja\tINTJ{rest}"
    )
    data = read_tagged_file(path)
    assert tags_of(data) == ["zu/ADP", "dem/DET", "Ja/INTJ"]
    assert [sentence.document for sentence in data.sentences] == [1, 2]
    assert label_names(data) == ("ADP", "DET", "INTJ")
    lemmas = read_tagged_file(path, columns=ColumnNames(tag="lemma"))
    assert tags_of(lemmas) == ["zu/zu", "dem/der", "Ja/ja"]


def test_read_tagged_file_prefers_entities_in_the_last_column_of_conllu(tmp_path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text("1\tPaul\tP\tPROPN\t_\t_\t0\troot\t_\tSpaceAfter=No|name=B-PER\n")  # NorNE
    assert tags_of(read_tagged_file(path)) == ["Paul/B-PER"]
    assert tags_of(read_tagged_file(path, columns=ColumnNames(tag="upos"))) == ["Paul/PROPN"]
    ran = "2\tran\tr\tVERB\t_\t_\t0\troot\t_\t_\n"
    path.write_text(ran + path.read_text().replace("1\t", "3\t"))  # no name=O
    assert tags_of(read_tagged_file(path)) == ["ran/O", "Paul/B-PER"]
    path.write_text("1\tJe\tI\tPRON\t_\t_\t0\troot\t_\tGloss=I\n")
    assert tags_of(read_tagged_file(path)) == ["Je/PRON"]


@pytest.mark.parametrize(
    "content",
    [
        "Paul ran ||| B-PER O\nIn Bonn ||| O B-LOC\n",
        "Paul ran\nB-PER O\nIn Bonn\nO B-LOC\n",
        "Paul ran\nB-PER O\n\nIn Bonn\nO B-LOC\n",
    ],
)
def test_read_tagged_file_reads_sentences_and_their_tags(tmp_path, content: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(content)
    data = read_tagged_file(path)
    assert tags_of(data) == ["Paul/B-PER", "ran/O", "In/O", "Bonn/B-LOC"]
    assert len(data.sentences) == 2


def test_read_tagged_file_takes_lists_of_entities_as_tags(tmp_path) -> None:
    path = tmp_path / "a.json"  # Broad Twitter Corpus
    path.write_text('{"tokens": ["Paul", "ran"], "entities": ["B-PER", "O"], "id": 1}\n')
    assert tags_of(read_tagged_file(path)) == ["Paul/B-PER", "ran/O"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("T1\tPER 0 4\tPaul\nT2\tLOC 8 12\tBonn\n", ":1: spans of brat, without their text"),
        ("1|t|Paul\n1|a|He ran.\n1\t0\t4\tPaul\tPER\tP1\n", ":1: spans of PubTator"),
        ("<PER>Paul</PER> ran .\nHe ran .\n", ":1: marks around words"),
        ("text,entities\nPaul ran off,\"[{'start': 0, 'end': 4, 'label': 'PER'}]\"\n",
         ":2: spans in a table"),
        ("text,entities\nPaul ran off,\"[(0, 4, 'PER')]\"\n", ":2: spans in a table"),
        ('{"text": "Paul ran", "label": [{"start_offset": 0, "end_offset": 4, "label": 7}]}\n',
         "label 7 is a number, not a name"),
        ('{"text": "Paul ran", "spans": [{"start": 0, "end": 4, "labels": ["A", "B"]}]}\n',
         r"a span has labels \['A', 'B'\], not one"),
        ('{"tokenized_text": ["Paul", "ran"], "ner": [[0, 0, "PER"]]}\n', "spans 'ner' of words"),
        ("a B-x|B-y\nb I-x|I-y\nc O\n", "is several tags"),
        ("Paul B-PER\nran x_move\nin O\nBonn B-LOC\n", "'x_move' is neither O nor"),
    ],
)  # fmt: skip
def test_read_tagged_file_names_formats_that_it_rejects(text: str, message: str, tmp_path) -> None:
    path = tmp_path / ("a.csv" if "," in text.split("\n")[0] else "a.txt")
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_tagged_file(path)


def test_read_tagged_file_splits_rows_of_sentences(tmp_path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "Sentence #,Sentence,POS,Tag\n"
        "1,Paul isn't far,\"['NNP', 'VBZ', 'RB']\",\"['B-PER', 'O', 'O']\"\n"
        "2,Go,['VB'],['O']\n"
    )
    data = read_tagged_file(path)
    assert tags_of(data) == ["Paul/B-PER", "isn't/O", "far/O", "Go/O"]
    assert [len(sentence.words) for sentence in data.sentences] == [3, 1]


def test_read_tagged_file_names_numbers_of_hugging_face(tmp_path) -> None:
    features = {"ner_tags": {"feature": {"names": ["O", "B-x"], "_type": "ClassLabel"}}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"tokens": [["a", "b"]], "ner_tags": [[0, 1]], "pos_tags": [[5, 6]]})
    parquet.write_table(table.replace_schema_metadata(metadata), tmp_path / "a.parquet")
    assert tags_of(read_tagged_file(tmp_path / "a.parquet")) == ["a/O", "b/B-x"]
    parquet.write_table(table, tmp_path / "b.parquet")
    with pytest.raises(InputError, match="row 1: column 'ner_tags' is not a list of strings"):
        read_tagged_file(tmp_path / "b.parquet")


SPANS = [[0, 9, "PER"], [14, 18, "LOC"]]


@pytest.mark.parametrize(
    "rows",
    [
        [["Paul Horn, in Bonn", {"entities": SPANS}], ["He ran", {"entities": []}]],  # spaCy
        {"classes": ["PER"], "annotations": [["Paul Horn, in Bonn", {"entities": SPANS}]]},
        [{"text": "Paul Horn, in Bonn", "label": {"PER": {"Paul Horn": [[0, 8]]},
                                                  "LOC": {"Bonn": [[14, 17]]}}}],  # CLUENER
        [{"text": "Paul Horn, in Bonn",
          "entities": {"start": [0, 14], "end": [9, 18], "type": ["PER", "LOC"]}}],
        [{"document": "Paul Horn, in Bonn", "annotation": [
            {"offset": 14, "length": 4, "category": "LOC"},
            {"offset": 0, "length": 10, "category": "PER", "text": "Paul Horn "}]}],
    ],
)  # fmt: skip
def test_read_tagged_file_reads_layouts_of_spans(rows, tmp_path) -> None:
    path = tmp_path / "a.json"
    if "length" in str(rows):  # a span with a space at its end is the span without it
        rows[0]["document"] = rows[0]["document"].replace(",", " ")
    path.write_text(json.dumps(rows))
    words = [tag for tag in tags_of(read_tagged_file(path)) if not tag.startswith(",")]
    assert words[:4] == ["Paul/B-PER", "Horn/I-PER", "in/O", "Bonn/B-LOC"]


def test_read_tagged_file_counts_spans_that_do_not_fit(tmp_path, caplog) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": "Paul ran", "spans": [[0, 4, "PER"]]}] * 4
    rows += [{"text": "Pauls cat", "spans": [[0, 4, "PER"]]}]
    rows += [{"text": "no", "answer": "reject"}, {"text": "no", "spans": None}]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = read_tagged_file(path)
    assert tags_of(data)[-2:] == ["Pauls/B-PER", "cat/O"]
    assert "1 of 5 spans begin or end within a word" in caplog.text
    assert "a.jsonl:5: 'Paul' of 'Pauls'" in caplog.text
    assert 'left out 1 texts whose "answer"' in caplog.text
    assert "left out 1 texts without annotation in 'spans'" in caplog.text
    nested = {"text": "Bank of Bonn", "spans": [[8, 12, "LOC"], [0, 12, "ORG"]]}
    path.write_text(json.dumps(nested))
    data = read_tagged_file(path, fix_tags=True)
    assert data.tags == ["B-ORG", "I-ORG", "I-ORG"]
    assert "left out 1 spans that overlap" in caplog.text


def test_spans_may_begin_and_end_at_punctuation_within_a_word(tmp_path) -> None:
    text = "l'Allemagne et d'Angela Merkel-Sauer"
    row = {"text": text, "spans": [[2, 11, "LOC"], [17, 30, "PER"], [31, 36, "PER"]]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    data = read_tagged_file(tmp_path / "a.jsonl")
    assert [tag for tag in tags_of(data) if not tag.endswith("/O")] == [
        *("Allemagne/B-LOC", "Angela/B-PER", "Merkel/I-PER", "Sauer/B-PER")
    ]


def test_spans_within_words_need_words_or_fix_tags(tmp_path) -> None:
    """Korean has no space between a name and its particle."""
    text, path = "서울에서 만난 김철수는", tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text, "spans": [[0, 2, "LOC"], [8, 11, "PER"]]}))
    fix = "If words are written together, .*, write them in a list with their tags, or tag whole"
    with pytest.raises(InputError, match=f"2 of 2 spans begin or end within a word.* {fix}"):
        read_tagged_file(path)
    assert tags_of(read_tagged_file(path, fix_tags=True)) == [
        *("서울에서/B-LOC", "만난/O", "김철수는/B-PER")
    ]


def test_read_tagged_file_leaves_out_tasks_that_nobody_has_done(tmp_path, caplog) -> None:
    path, span = tmp_path / "a.json", {"start": 0, "end": 4, "labels": ["PER"]}
    annotations = [[{"result": [{"type": "labels", "value": span}]}], [{"result": []}], []]
    annotations += [[{"result": [], "was_cancelled": True}]]
    path.write_text(
        json.dumps([{"data": {"text": "Paul ran"}, "annotations": a} for a in annotations])
    )
    data = read_tagged_file(path)
    assert tags_of(data) == ["Paul/B-PER", "ran/O", "Paul/O", "ran/O"]
    assert "left out 2 texts without annotation in 'annotations'" in caplog.text
    annotations[0].append({"result": []})
    path.write_text(json.dumps([{"data": {"text": "Paul ran"}, "annotations": annotations[0]}]))
    with pytest.raises(InputError, match="annotators disagree"):
        read_tagged_file(path)


@pytest.mark.seconds
def test_read_tagged_file_is_fast_for_a_long_text_of_many_spans(tmp_path) -> None:
    """Lists of all words for each span took 6 s for this text."""
    spans = [[start, start + 3, "X"] for start in range(0, 160_000, 40)]
    row = {"text": "abc " * 40_000, "spans": spans}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    start = time.process_time()
    data = read_tagged_file(tmp_path / "a.jsonl")
    assert time.process_time() - start < 3  # 0.7 s
    assert data.tags == ["B-X", *["O"] * 9] * 4_000
