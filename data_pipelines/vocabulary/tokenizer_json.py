"""`tokenizer.json`, the single file of the `tokenizers` library.

transformers 5 saves no other file.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX

JSON_FILE = "tokenizer.json"


class StoredWordPiece(NamedTuple):
    """A WordPiece tokenizer as published.

    Attributes:
      tokens: the vocabulary, by id.
      config: options by their names in `tokenizer_config.json`.
      added_tokens: tokens that are matched in a text before it is split, by id; includes special
        tokens.
    """

    tokens: list[str]
    config: dict[str, Any]
    added_tokens: dict[int, str]


def read_wordpiece(content: bytes) -> StoredWordPiece:
    """Read a WordPiece tokenizer from the content of a `tokenizer.json`.

    Raises:
      InputError: the file is damaged, or its tokenizer differs from BERT's.
    """
    try:
        data = parse_json(content.decode())
        model, normalizer = data["model"], data["normalizer"] or {}
        pre_tokenizer = (data["pre_tokenizer"] or {}).get("type")
        added_tokens = {
            int(token["id"]): str(token["content"]) for token in data.get("added_tokens", ())
        }
        max_input_chars = model.get("max_input_chars_per_word")
        kind = model.get("type", "WordPiece" if max_input_chars else None)  # not in older files
        index: Mapping[str, int] = model["vocab"] if kind == "WordPiece" else {}
        tokens = sorted(index, key=index.__getitem__)
        is_contiguous = sorted(index.values()) == [*range(len(tokens))]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(
            f"{JSON_FILE} is not a tokenizer ({error!r}). Download it again."
        ) from error
    for name, value, expected in (
        ("model", kind, "WordPiece"),
        ("normalizer", normalizer.get("type"), "BertNormalizer"),
        ("pre_tokenizer", pre_tokenizer, "BertPreTokenizer"),
        ("continuing_subword_prefix", model.get("continuing_subword_prefix"), CONTINUATION_PREFIX),
    ):
        if value != expected:
            raise InputError(
                f"{JSON_FILE} has {name}={value!r} instead of {expected!r}. Use a model with "
                "BERT's tokenizer, or a SentencePiece model with its spm.model."
            )
    if not is_contiguous:
        raise InputError(f"ids in {JSON_FILE} are not contiguous from 0. Download it again.")
    config = {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars", True),
        "max_input_chars_per_word": max_input_chars,
    }
    return StoredWordPiece(tokens, config, added_tokens)
