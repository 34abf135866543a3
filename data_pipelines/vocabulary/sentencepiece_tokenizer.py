"""SentencePiece models with the interface of `Tokenizer`."""

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes, atomic_write_text
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    special_token_ids,
)

MODEL_FILE = "spm.model"
METASPACE = "▁"  # prefix of a token that starts a word


class SentencePieceTokenizer:
    """A SentencePiece model (Kudo and Richardson 2018), BPE or unigram, with BERT's special tokens.

    Normalization, including lower-casing, is part of the model.

    Args:
      model: content of a `.model` file.

    Raises:
      InputError: the content is not a SentencePiece model, or lacks the special tokens.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError("not a SentencePiece model. Use a .model file.") from error
        size = self._processor.get_piece_size()
        self.tokens = [self._processor.id_to_piece(i) for i in range(size)]
        index = {token: i for i, token in enumerate(self.tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_token_ids(index)
        self.cased = "A" in self._processor.normalize("A")
        non_text = ("is_control", "is_unknown", "is_unused")
        self._is_text = [
            not any(getattr(self._processor, test)(i) for test in non_text) for i in range(size)
        ]
        for token in SPECIAL_TOKENS:
            if index[token] in self.encode(token) and index[token] != self.unk_id:
                raise InputError(
                    f"the model finds the special token {token} in raw text. Train it with {token} "
                    "as a control symbol, not a user-defined symbol."
                )
        starts = [token.startswith(METASPACE) for token in self.tokens]
        self.is_continuation = np.array(self._is_text) & ~np.array(starts)
        self.text_token_ids = np.flatnonzero(self._is_text).astype(np.int32)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.model,)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a raw text; special tokens are neither added nor recognized."""
        return self._processor.encode(_replace_surrogates(text))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return ids and character offsets; see `Tokenizer`."""
        text = _replace_surrogates(text)
        encoding: Any = self._processor.encode(text, out_type="offset_mapping")
        offsets = []
        for start, end in encoding["offsets"]:  # including the white space before a word
            offsets.append((end - len(text[start:end].lstrip()), end))
        return encoding["ids"], offsets

    def find_added_tokens(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of each user-defined symbol; see `Tokenizer`.

        Symbols of one character are left out. They are often marks such as "-", which separate no
        words, and nothing splits them.
        """
        symbols = {i for i in self.user_defined_ids if len(self.tokens[i]) > 1}
        if not symbols:
            return []
        pairs = zip(*self.encode_with_offsets(text), strict=True)
        return [span for token_id, span in pairs if token_id in symbols]

    @functools.cached_property
    def user_defined_ids(self) -> list[int]:
        """Ids of the user-defined symbols, ascending."""
        from sentencepiece import sentencepiece_model_pb2  # imports protobuf

        proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
        proto.ParseFromString(self.model)
        symbols = enumerate(proto.pieces)
        return [i for i, symbol in symbols if symbol.type == symbol.USER_DEFINED]

    def decode(self, ids: Sequence[int]) -> str:
        """Return readable text; special tokens appear by name."""
        parts: list[str] = []
        for is_text, group in itertools.groupby(map(int, ids), self._is_text.__getitem__):
            if is_text:
                parts.append(self._processor.decode(list(group)))
            else:
                parts.extend(self.tokens[i] for i in group)
        return " ".join(parts)

    def fingerprint(self) -> str:
        """Return a hex digest of the model, including its normalization rules and scores."""
        return hashlib.sha256(self.kind.encode() + self.model).hexdigest()

    def save(self, directory: epath.PathLike) -> None:
        """Write `spm.model`, and the `tokenizer_config.json` of the `tokenizer.json` of exports."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        atomic_write_bytes(directory / MODEL_FILE, self.model)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS_MAP}
        atomic_write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


def _replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which have no UTF-8 encoding, by question marks."""
    return text.encode("utf-8", "replace").decode()
