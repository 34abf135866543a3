"""The special tokens of every vocabulary."""

from data_pipelines.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_TOKENS_MAP = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
"""Special tokens by their names in `tokenizer_config.json`."""
CONFIG_FILE = "tokenizer_config.json"
VOCABULARY_FIX = "Name a vocabulary, or run `bertjax vocab`."
"""Fix in the error for a path without a vocabulary."""


def special_token_ids(index: dict[str, int]) -> list[int]:
    """Return the ids of `SPECIAL_TOKENS`, in their order.

    Args:
      index: the id of each token.

    Raises:
      InputError: a special token is missing.
    """
    missing = [token for token in SPECIAL_TOKENS if token not in index]
    if missing:
        raise InputError(
            f"the vocabulary lacks {', '.join(missing)}. Add all special tokens: "
            f"{', '.join(SPECIAL_TOKENS)}."
        )
    return [index[token] for token in SPECIAL_TOKENS]
