"""The special pieces that every vocabulary holds, and what all tokenizers make of them."""

import hashlib

from data_pipelines.errors import InputError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SPECIAL_NAMES = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIALS}
"""What `tokenizer_config.json` calls them."""
CONFIG_FILE = "tokenizer_config.json"


def special_ids(index: dict[str, int]) -> list[int]:
    """The ids of `SPECIALS`, in their order, given the id of each piece."""
    missing = [piece for piece in SPECIALS if piece not in index]
    if missing:
        raise InputError(
            f"the vocabulary lacks the special piece{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}; it must hold {', '.join(SPECIALS)}"
        )
    return [index[piece] for piece in SPECIALS]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
