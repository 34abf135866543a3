"""Make tokenization.json.xz: every Unicode character as BERT's published algorithm splits it.

    BERTJAX_DATA=DIR python tests/goldens/make_tokenization.py     (needs transformers 4.x, [bench])

The algorithm is that of transformers' pure-Python BERT tokenizer, which derives from
google-research/bert. Three differences are reverted here:

- transformers composes the text (NFC) before splitting; google-research/bert does not;
- transformers drops every category that starts with C, including private, unassigned and surrogate
  characters; google-research/bert drops Cc and Cf only;
- words have up to 100 characters in transformers, 200 in google-research/bert.

Content:
  unicode: version of the character data. A newer Python has more characters; only those assigned in
    this version can be compared.
  unassigned: [first, last] runs of the other code points.
  words: for "cased" and "uncased", runs [first, last, alone, inside]: the words of `c` and of
    `a{c}b`, joined by spaces, with the character itself written as □.
  characters: for each released vocabulary, digests of the ids of the assigned characters, alone
    and inside, for each block of 4,096 code points that has any.
  texts: for each released vocabulary and each language, the digest of the ids of real text.
"""

import hashlib
import itertools
import json
import lzma
import os
import pathlib
import types
import unicodedata
from collections.abc import Iterable

from transformers.models.bert import tokenization_bert

PATH = pathlib.Path(__file__).with_name("tokenization.json.xz")
DATA = pathlib.Path(os.environ["BERTJAX_DATA"])
BLOCK = 4096
CODE_POINTS = 0x110000


def normalize(form: str, text: str) -> str:
    return text if form == "NFC" else unicodedata.normalize(form, text)


def is_control(char: str) -> bool:
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


tokenization_bert.unicodedata = types.SimpleNamespace(
    normalize=normalize, category=unicodedata.category
)
tokenization_bert._is_control = is_control

WORDS = {
    case: tokenization_bert.BasicTokenizer(do_lower_case=case == "uncased").tokenize
    for case in ("cased", "uncased")
}


class Reference:
    """The reference tokenizer with a released vocabulary."""

    def __init__(self, name: str):
        lines = (DATA / "vocab" / f"bert-base-{name}-vocab.txt").read_text("utf-8").split("\n")
        self.index = {token: i for i, token in enumerate(lines) if token}
        self.words = WORDS["uncased" if name == "uncased" else "cased"]
        self.tokens = tokenization_bert.WordpieceTokenizer(self.index, "[UNK]", 200).tokenize

    def __call__(self, text: str) -> list[int]:
        words = self.words(text)
        return [self.index[token] for word in words for token in self.tokens(word)]


def digest(ids: Iterable[list[int]]) -> str:
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:12]


def is_assigned(code_point: int) -> bool:
    return unicodedata.category(chr(code_point)) != "Cn"


def unassigned_runs() -> list[list[int]]:
    runs = []
    for assigned, run in itertools.groupby(range(CODE_POINTS), is_assigned):
        members = list(run)
        if not assigned:
            runs.append([members[0], members[-1]])
    return runs


def word_runs(case: str) -> list[list[int | str]]:
    def outcome(code_point: int) -> tuple[str, ...]:
        char = chr(code_point)
        return tuple(
            " ".join(word.replace(char, "□") for word in WORDS[case](text))
            for text in (char, f"a{char}b")
        )

    runs: list[list[int | str]] = []
    for outcomes, run in itertools.groupby(range(CODE_POINTS), outcome):
        members = list(run)
        runs.append([members[0], members[-1], *outcomes])
    return runs


def character_digests(encode: Reference) -> dict[str, str]:
    digests = {}
    for start in range(0, CODE_POINTS, BLOCK):
        chars = [chr(c) for c in range(start, start + BLOCK) if is_assigned(c)]
        if chars:
            ids = (encode(text) for char in chars for text in (char, f"a{char}b"))
            digests[f"{start:x}"] = digest(ids)
    return digests


def text_digests(encode: Reference) -> dict[str, str]:
    digests = {}
    for path in sorted((DATA / "xquad").glob("xquad.*.json")):
        articles = json.loads(path.read_text("utf-8"))["data"]
        paragraphs = [p["context"] for article in articles for p in article["paragraphs"]]
        digests[path.name] = digest(map(encode, paragraphs))
    return digests


def main() -> None:
    names = ("uncased", "cased", "multilingual-cased")
    references = {name: Reference(name) for name in names}
    golden = {
        "unicode": unicodedata.unidata_version,
        "unassigned": unassigned_runs(),
        "words": {case: word_runs(case) for case in WORDS},
        "characters": {name: character_digests(r) for name, r in references.items()},
        "texts": {name: text_digests(r) for name, r in references.items()},
    }
    PATH.write_bytes(lzma.compress(json.dumps(golden).encode(), preset=9))
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
