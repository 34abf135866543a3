"""SentencePiece models behind the protocol of `Tokenizer`."""

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sentencepiece
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.special_tokens import (
    CONFIG_FILE,
    SPECIAL_TOKENS,
    SPECIAL_TOKENS_MAP,
    digest,
    special_token_ids,
)

MODEL_FILE = "spm.model"
METASPACE = "▁"  # the mark of a piece that starts a word


class SentencePieceTokenizer:
    """A SentencePiece model (Kudo and Richardson 2018), BPE or unigram, with BERT's special pieces.

    Normalisation, lower-casing included, is part of the model.

    Args:
      model: the content of a `.model` file.

    Raises:
      InputError: not a SentencePiece model, or one without the special pieces.
    """

    kind = "sentencepiece"

    def __init__(self, model: bytes):
        self.model = model
        try:
            self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise InputError("not a SentencePiece model; give the .model file itself") from error
        size = self._processor.get_piece_size()
        self.tokens = [self._processor.id_to_piece(i) for i in range(size)]
        index = {token: i for i, token in enumerate(self.tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = special_token_ids(index)
        self.cased = "A" in self._processor.normalize("A")
        no_text = ("is_control", "is_unknown", "is_unused")
        self._is_text = [
            not any(getattr(self._processor, test)(i) for test in no_text) for i in range(size)
        ]
        for token in SPECIAL_TOKENS:
            if index[token] in self.encode(token) and index[token] != self.unk_id:
                raise InputError(
                    f"the model finds the special piece {token} in raw text; declare it a control "
                    "symbol, not a user-defined one, when the model is trained"
                )
        starts = [token.startswith(METASPACE) for token in self.tokens]
        self.is_continuation = np.array(self._is_text) & ~np.array(starts)
        self.text_token_ids = np.flatnonzero(self._is_text).astype(np.int32)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.model,)

    def encode(self, text: str) -> list[int]:
        """The ids of a raw text. No special piece is added, nor recognised in the text."""
        return self._processor.encode(_replace_surrogates(text))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """See `Tokenizer`."""
        text = _replace_surrogates(text)
        found: Any = self._processor.encode(text, out_type="offset_mapping")
        spans = []
        for start, end in found["offsets"]:  # with the white space before a word
            spans.append((end - len(text[start:end].lstrip()), end))
        return found["ids"], spans

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; special pieces appear by their names."""
        parts: list[str] = []
        for is_text, run in itertools.groupby(map(int, ids), self._is_text.__getitem__):
            if is_text:
                parts.append(self._processor.decode(list(run)))
            else:
                parts.extend(self.tokens[i] for i in run)
        return " ".join(parts)

    def fingerprint(self) -> str:
        """A hex digest of the model, its normalisation rules and scores included."""
        return digest(self.kind.encode() + self.model)

    def save(self, directory: epath.PathLike) -> None:
        """Writes `spm.model`, and `tokenizer_config.json` as it is beside a `tokenizer.json`."""
        directory = epath.Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MODEL_FILE).write_bytes(self.model)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **SPECIAL_TOKENS_MAP}
        atomic_write_text(directory / CONFIG_FILE, json.dumps(config, indent=2) + "\n")


def _replace_surrogates(text: str) -> str:
    # Half of a surrogate pair has no UTF-8: it becomes a question mark.
    return text.encode("utf-8", "replace").decode()
