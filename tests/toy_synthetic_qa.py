"""Options, questions and a tagger for tests of synthetic question answering."""

import pathlib

from experiments.synthetic_qa import negatives, questions
from experiments.synthetic_qa.options import Options

CONTEXTS = [
    "In 1905 Norway left Sweden, and Oslo grew.",
    "In 1914 Denmark sold the islands; Norway stayed neutral like Sweden.",
]


def make_options(path: pathlib.Path, **fields) -> Options:
    return Options(path / "work", "encoder", path / "squad", ("text",), **fields)


def tag_capitals(words):
    """Tag capitalized words as proper nouns, numbers as numbers, and no others as content."""
    return ["CD" if w.isdigit() else "NNP" if w[0].isupper() else "IN" for w in words]


def make_rows() -> list[dict]:
    asked = [
        (0, "which country left Sweden ?", "Norway"),
        (0, "what grew in 1905 ?", "Oslo"),
        (1, "which country sold the islands ?", "Denmark"),
        (1, "when stayed Norway neutral ?", "1914"),
    ]
    return [
        {
            "id": f"q{i}",
            "document": 0,
            "context": CONTEXTS[number],
            "question": question,
            "answer": answer,
            "start": CONTEXTS[number].index(answer),
        }
        for i, (number, question, answer) in enumerate(asked)
    ]


def write_squad(directory: pathlib.Path) -> pathlib.Path:
    """Write SQuAD 2.0 with the same questions in train and in each of two articles of dev."""
    rows = make_rows()
    rows += negatives.make_negatives(rows, 1.0, tag_capitals, seed=0)
    questions.write_squad(directory / "train-v2.0.json", rows)
    others = [
        row | {"id": f"{row['id']}b", "document": 1, "context": f"{row['context']} So it stayed."}
        for row in rows
    ]
    questions.write_squad(directory / "dev-v2.0.json", [*rows, *others])
    return directory
