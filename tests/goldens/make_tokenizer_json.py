"""Make tokenizer_json.json: BERT's tokenizers as transformers 5 saves them, and their ids.

    python tests/goldens/make_tokenizer_json.py

Needs transformers 5, which saves no vocab.txt. One of the tokenizers has added tokens, such as
entity markers.
"""

import json
import pathlib
import string
import tempfile

from transformers import BertTokenizer

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = string.ascii_letters + "éü" + ".,'"
TOKENS = [
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
    "more tokens": ({"do_lower_case": False}, ["[E1]", "there"]),
}


def save_tokenizer(fields: dict, added_tokens: list[str]) -> dict:
    vocab = {token: number for number, token in enumerate(TOKENS)}
    tokenizer = BertTokenizer(vocab=vocab, **fields)
    tokenizer.add_tokens(added_tokens)
    with tempfile.TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        files = {path.name: path.read_text() for path in pathlib.Path(directory).iterdir()}
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    return {"files": files, "ids": ids}


def main() -> None:
    tokenizers = {name: save_tokenizer(*options) for name, options in TOKENIZERS.items()}
    path = pathlib.Path(__file__).with_name("tokenizer_json.json")
    path.write_text(json.dumps({"texts": TEXTS, "tokenizers": tokenizers}) + "\n")


if __name__ == "__main__":
    main()
