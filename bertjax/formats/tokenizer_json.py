"""Tokenizers as tokenizer.json of Hugging Face, and the length at which they cut texts."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as CompiledTokenizer

from data_pipelines.paths import atomic_write_text
from data_pipelines.vocabulary.sentencepiece_tokenizer import METASPACE, SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import CONFIG_FILE, SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer, read_tokenizer_config
from data_pipelines.vocabulary.vocab_file import index_tokens
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX, WordPieceTokenizer


def to_tokenizer_json(tokenizer: Tokenizer) -> str:
    """Return the content of tokenizer.json, which gives the same token ids with two exceptions.

    Special tokens are found in raw text. A SentencePiece model sees its own space symbol in text,
    and loses accents on characters that it normalizes.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        compiled = _wordpiece(tokenizer)
    else:
        assert isinstance(tokenizer, SentencePieceTokenizer)
        compiled = _sentencepiece(tokenizer)
    special_tokens = getattr(
        tokenizer, "special_tokens", SPECIAL_TOKENS
    )  # an attribute of WordPiece
    cls, sep = special_tokens[2:4]
    compiled.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, tokenizer.cls_id), (sep, tokenizer.sep_id)],
    )
    compiled.add_special_tokens(list(special_tokens))
    compiled.add_tokens(
        [
            AddedToken(token.content, normalized=token.normalized, single_word=token.single_word)
            for token in getattr(tokenizer, "added_tokens", ())
        ]
    )
    return compiled.to_str(pretty=True) + "\n"


def _wordpiece(tokenizer: WordPieceTokenizer) -> CompiledTokenizer:
    compiled = CompiledTokenizer(
        models.WordPiece(
            index_tokens(tokenizer.tokens),
            unk_token=tokenizer.special_tokens[1],
            max_input_chars_per_word=tokenizer.max_input_chars_per_word,
        )
    )
    if tokenizer.do_basic_tokenize:
        compiled.normalizer = normalizers.BertNormalizer(
            lowercase=not tokenizer.cased, strip_accents=tokenizer.strip_accents
        )
        compiled.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    else:
        compiled.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    compiled.decoder = decoders.WordPiece(CONTINUATION_PREFIX)
    return compiled


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> CompiledTokenizer:
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(tokenizer.model)
    scores = {piece.piece: piece.score for piece in proto.pieces}
    symbols = [tokenizer.tokens[i] for i in tokenizer.user_defined_ids]
    is_bpe = proto.trainer_spec.model_type == proto.trainer_spec.BPE
    if is_bpe:
        index = {token: i for i, token in enumerate(tokenizer.tokens)}
        merges = list(_merges(scores))
        # No merge makes a user-defined symbol: it is looked up in the vocabulary.
        model: models.Model = models.BPE(
            index, merges, unk_token="[UNK]", fuse_unk=True, ignore_merges=bool(symbols)
        )
    else:
        model = models.Unigram(list(scores.items()), tokenizer.unk_id)
    compiled, spec = CompiledTokenizer(model), proto.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    compiled.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    split: pre_tokenizers.PreTokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme=scheme)
    if symbols and is_bpe:
        pattern = "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))
        split = pre_tokenizers.Sequence(
            [split, pre_tokenizers.Split(Regex(pattern), behavior="isolated")]
        )
    compiled.pre_tokenizer = split
    compiled.decoder = decoders.Metaspace(METASPACE, prepend_scheme=scheme)
    return compiled


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Yield the merges of BPE, best first; the model stores the scores of their results."""
    for token in sorted(scores, key=scores.__getitem__, reverse=True):
        for middle in range(1, len(token)):
            if token[:middle] in scores and token[middle:] in scores:
                yield token[:middle], token[middle:]


def read_max_length(path: epath.Path) -> int | None:
    """Return `model_max_length` of tokenizer_config.json; None without one."""
    config_dict = read_tokenizer_config(path)
    length = config_dict.get("model_max_length", config_dict.get("max_len"))
    if isinstance(length, int | float) and 0 < length < 1 << 31:  # 1e30 stands for none
        return int(length)
    return None


def write_max_length(path: epath.Path, length: int) -> None:
    """Write `model_max_length` to the tokenizer_config.json of a directory."""
    file = path / CONFIG_FILE
    settings = json.loads(file.read_text()) | {"model_max_length": length}
    atomic_write_text(file, json.dumps(settings, indent=2) + "\n")
