"""The special tokens of every vocabulary."""

from collections.abc import Mapping, Sequence

from data_pipelines.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_TOKENS_MAP = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
"""Special tokens by their names in `tokenizer_config.json`."""
CONFIG_FILE = "tokenizer_config.json"
VOCABULARY_FIX = "Name a vocabulary, or run `bertjax vocab`."
"""Fix in the error for a path without a vocabulary."""


def special_token_ids(
    index: Mapping[str, int], special_tokens: Sequence[str] = SPECIAL_TOKENS
) -> list[int]:
    """Return the ids of the special tokens, in the order of `SPECIAL_TOKENS`.

    Args:
      index: the id of each token.
      special_tokens: their names.

    Raises:
      InputError: a special token is missing.
    """
    missing = [token for token in special_tokens if token not in index]
    if missing:
        raise InputError(
            f"the vocabulary lacks {', '.join(missing)}; it begins with {next(iter(index))!r}. Use "
            f"one with all special tokens, {', '.join(special_tokens)}, or name its own in "
            f"{CONFIG_FILE}."
        )
    return [index[token] for token in special_tokens]
