"""`tokenizer.json`, the one file in which the `tokenizers` library keeps all of a tokenizer.

Today's `transformers` saves no other one.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX

JSON_FILE = "tokenizer.json"


class StoredWordPiece(NamedTuple):
    """A WordPiece tokenizer, as such a file has it.

    Attributes:
      pieces: the piece of each id.
      switches: in the words of `tokenizer_config.json`.
      added: pieces found in a text before it is cut, by their ids; special ones are among them.
    """

    tokens: list[str]
    config: dict[str, Any]
    added_tokens: dict[int, str]


def read_wordpiece(content: bytes) -> StoredWordPiece:
    """The WordPiece in a file.

    Raises:
      InputError: it is damaged, or cuts texts in another way than BERT does.
    """
    try:
        said = parse_json(content.decode())
        model, normalizer = said["model"], said["normalizer"] or {}
        before = (said["pre_tokenizer"] or {}).get("type")
        added_tokens = {
            int(each["id"]): str(each["content"]) for each in said.get("added_tokens", ())
        }
        longest = model.get("max_input_chars_per_word")
        kind = model.get("type", "WordPiece" if longest else None)  # which older files leave out
        index: Mapping[str, int] = model["vocab"] if kind == "WordPiece" else {}
        tokens = sorted(index, key=index.__getitem__)
        whole = sorted(index.values()) == [*range(len(tokens))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{JSON_FILE} is no tokenizer ({error!r}): fetch it again") from error
    found = (kind, normalizer.get("type"), before, model.get("continuing_subword_prefix"))
    bert = ("WordPiece", "BertNormalizer", "BertPreTokenizer", CONTINUATION_PREFIX)
    for name, ours, theirs in zip(
        ("model", "normalizer", "pre-tokenizer", "mark"), bert, found, strict=True
    ):
        if ours != theirs:
            raise InputError(
                f"the {name} of {JSON_FILE} is {theirs!r} and BERT's {ours!r}: take a model whose "
                "texts are cut as BERT's are, or a SentencePiece one with its spm.model"
            )
    if not whole:
        raise InputError(f"the pieces of {JSON_FILE} have not the ids from 0 on: fetch it again")
    config = {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
        "max_input_chars_per_word": longest,
    }
    return StoredWordPiece(tokens, config, added_tokens)
