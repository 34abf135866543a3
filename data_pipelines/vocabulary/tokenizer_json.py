"""`tokenizer.json`, the single file of the `tokenizers` library.

transformers 5 saves no other file.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once
from data_pipelines.model_settings import check_settings
from data_pipelines.parsing import parse_json
from data_pipelines.schema import check_schema
from data_pipelines.vocabulary.added_tokens import ADDED_TOKEN_SCHEMA, AddedToken
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX

JSON_FILE = "tokenizer.json"
_PREFIX = {"continuing_subword_prefix": CONTINUATION_PREFIX}
_BERT_STEPS = {
    "normalizer": {"type": "BertNormalizer"},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
}
_MAX_GAPS = 0.25  # of the ids; more are damage
_FIX = "Download it again, or give vocab.txt."
_STEP = {"type?": str}
_SCHEMA = {
    "model": {
        "type?": str,
        "unk_token?": (str, int),
        "continuing_subword_prefix?": str,
        "vocab": ({str: int}, list),
        "max_input_chars_per_word?": int,
    },
    "normalizer?": _STEP | {"lowercase?": bool, "strip_accents?": bool},
    "pre_tokenizer?": _STEP,
    "added_tokens?": [{"id": int, **ADDED_TOKEN_SCHEMA}],
    "post_processor?": _STEP | {"single?": [{str: object}]},
}
_TEMPLATE = ["SpecialToken", "Sequence", "SpecialToken"]  # of a text


class StoredWordPiece(NamedTuple):
    """A WordPiece tokenizer as published.

    Attributes:
      tokens: the vocabulary, by id.
      config: options by their names in `tokenizer_config.json`.
      added_tokens: tokens that a text is searched for before it is split, by id; includes special
        tokens.
    """

    tokens: list[str]
    config: dict[str, Any]
    added_tokens: dict[int, AddedToken]


def read_wordpiece(content: bytes, path: epath.PathLike = JSON_FILE) -> StoredWordPiece:
    """Read a WordPiece tokenizer from the content of a `tokenizer.json`.

    An object from token to id alone, vocab.json, has BERT's options. An id without a token, which
    `tokenizers` leaves for a repeated line of vocab.txt, is "".

    Args:
      content: the content.
      path: the file, for messages.

    Raises:
      InputError: the file is damaged, or its tokenizer differs from BERT's.
    """
    try:
        data = parse_json(content.decode())
        is_index = isinstance(data, dict) and bool(data)
        if is_index and all(type(value) is int for value in data.values()):  # vocab.json
            data = {"model": {"type": "WordPiece", "vocab": data, **_PREFIX}, **_BERT_STEPS}
        check_schema(f"{JSON_FILE} is not a tokenizer: ", data, _SCHEMA, _FIX)
        model, normalizer = data["model"], data["normalizer"] or {}
        pre_tokenizer = (data["pre_tokenizer"] or {}).get("type")
        added_tokens = {
            token["id"]: AddedToken.from_settings(token) for token in data.get("added_tokens") or ()
        }
        max_input_chars = model.get("max_input_chars_per_word")
        kind = model.get("type", "WordPiece" if max_input_chars else None)  # not in older files
        index: Mapping[str, int] = model["vocab"] if kind == "WordPiece" else {}
        token_of_id = {i: token for token, i in index.items()}
        size = max(token_of_id, default=-1) + 1
        has_gaps = size - len(index) > _MAX_GAPS * size or len(token_of_id) < len(index)
        is_valid = not has_gaps and min(token_of_id, default=0) >= 0
        template = [*map(next, map(iter, (data.get("post_processor") or {}).get("single", ())))]
    except InputError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, StopIteration) as error:
        raise InputError(f"{JSON_FILE} is not a tokenizer ({error}). {_FIX}") from error
    splits_words = (normalizer.get("type"), pre_tokenizer) != (None, "WhitespaceSplit")
    for name, value, expected in (
        ("model", kind, "WordPiece"),
        ("normalizer", normalizer.get("type"), "BertNormalizer" if splits_words else None),
        ("pre_tokenizer", pre_tokenizer, "BertPreTokenizer" if splits_words else pre_tokenizer),
        ("continuing_subword_prefix", model.get("continuing_subword_prefix"), CONTINUATION_PREFIX),
    ):
        if value != expected:
            raise InputError(
                f"{JSON_FILE} has {name}={value!r} instead of {expected!r}. Use a model with "
                "BERT's tokenizer, or a SentencePiece model with its spm.model."
            )
    if not is_valid:
        raise InputError(f"ids in {JSON_FILE} are not contiguous from 0. Download it again.")
    check_settings(epath.Path(path), data, JSON_FILE)
    if template and template != _TEMPLATE:
        warn_once(
            (str(path), "single"),
            f"{path}: post_processor is not [CLS] text [SEP], which texts become nevertheless.",
        )
    config = {
        "do_lower_case": normalizer.get("lowercase"),
        "strip_accents": normalizer.get("strip_accents"),
        "max_input_chars_per_word": max_input_chars,
        "unk_token": model.get("unk_token"),
    } | ({} if splits_words else {"do_basic_tokenize": False})
    return StoredWordPiece([token_of_id.get(i, "") for i in range(size)], config, added_tokens)
