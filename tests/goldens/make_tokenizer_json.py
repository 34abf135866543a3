"""Makes tokenizer_json.json: what `transformers` 5 saves of BERT's tokenizers, and their ids.

    python tests/goldens/make_tokenizer_json.py

Needs `transformers` 5, which saves no vocab.txt. One of the tokenizers has pieces added to it, as
authors do who mark entities in texts.
"""

import json
import pathlib
import string
import tempfile

from transformers import BertTokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_letters + "éü" + ".,'"
PIECES = [
    *SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "the",
    "##ing",
    "日",
    "本",
]
TEXTS = [
    "Being there, the Éclair's über-thing.",
    "日本 the 日本",
    "x" * 100,
    "x" * 101,
    "naïve\tcafé\n the",
    "",
]
TOKENIZERS = {
    "uncased": ({"do_lower_case": True}, []),
    "cased": ({"do_lower_case": False}, []),
    "accents": ({"do_lower_case": True, "strip_accents": False}, []),
    "more pieces": ({"do_lower_case": False}, ["[E1]", "there"]),
}


def to_tokenizer_json(fields: dict, more: list[str]) -> dict:
    vocab = {token: number for number, token in enumerate(PIECES)}
    tokenizer = BertTokenizer(vocab=vocab, **fields)
    tokenizer.add_tokens(more)
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        files = {path.name: path.read_text() for path in pathlib.Path(directory).iterdir()}
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    return {"files": files, "ids": ids}


def main() -> None:
    found = {name: to_tokenizer_json(*given) for name, given in TOKENIZERS.items()}
    path = pathlib.Path(__file__).with_name("tokenizer_json.json")
    path.write_text(json.dumps({"texts": TEXTS, "tokenizers": found}) + "\n")


if __name__ == "__main__":
    main()
