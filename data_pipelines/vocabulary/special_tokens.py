"""The special pieces that every vocabulary holds, and what all tokenizers make of them."""

import hashlib

from data_pipelines.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_TOKENS_MAP = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
"""What `tokenizer_config.json` calls them."""
CONFIG_FILE = "tokenizer_config.json"


def special_token_ids(index: dict[str, int]) -> list[int]:
    """The ids of `SPECIAL_TOKENS`, in their order, given the id of each piece."""
    missing = [token for token in SPECIAL_TOKENS if token not in index]
    if missing:
        raise InputError(
            f"the vocabulary lacks the special piece{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}; it must hold {', '.join(SPECIAL_TOKENS)}"
        )
    return [index[token] for token in SPECIAL_TOKENS]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
