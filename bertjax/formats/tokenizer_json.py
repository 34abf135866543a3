"""Tokenizers as `tokenizer.json`, of which `transformers` and others make any tokenizer today."""

from collections.abc import Iterator, Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as CompiledTokenizer

from data_pipelines.vocabulary.sentencepieces import SPACE, SentencePieceTokenizer
from data_pipelines.vocabulary.specials import SPECIALS
from data_pipelines.vocabulary.tokenization import Tokenizer
from data_pipelines.vocabulary.wordpiece import CONTINUES, WordPieceTokenizer


def describe(tokenizer: Tokenizer) -> str:
    """The content of the file, which gives the same ids.

    But for what holds for all such files: special pieces are found in raw text; a SentencePiece
    model sees its own mark of a space, and loses accents on characters that it normalises.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        whole = _wordpiece(tokenizer)
    else:
        assert isinstance(tokenizer, SentencePieceTokenizer)
        whole = _sentencepiece(tokenizer)
    pieces = ("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=list(pieces),
    )
    whole.add_special_tokens(list(SPECIALS))
    return whole.to_str(pretty=True) + "\n"


def _wordpiece(tokenizer: WordPieceTokenizer) -> CompiledTokenizer:
    index = {piece: i for i, piece in enumerate(tokenizer.pieces)}
    whole = CompiledTokenizer(
        models.WordPiece(index, unk_token="[UNK]", max_input_chars_per_word=tokenizer.longest_word)
    )
    whole.normalizer = normalizers.BertNormalizer(
        lowercase=not tokenizer.cased, strip_accents=tokenizer.strip_accents
    )
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece(CONTINUES)
    return whole


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> CompiledTokenizer:
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(tokenizer.model)
    scores = {piece.piece: piece.score for piece in proto.pieces}
    if proto.trainer_spec.model_type == proto.trainer_spec.BPE:
        index = {piece: i for i, piece in enumerate(tokenizer.pieces)}
        merges = list(_merges(scores))
        model: models.Model = models.BPE(index, merges, unk_token="[UNK]", fuse_unk=True)
    else:
        model = models.Unigram(list(scores.items()), tokenizer.unk_id)
    whole, spec = CompiledTokenizer(model), proto.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" +"), " ")]
    whole.normalizer = normalizers.Sequence(steps)
    scheme = "always" if spec.add_dummy_prefix else "never"
    whole.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme)
    whole.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    return whole


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What BPE may join, the best first: its model has the scores of what comes of it."""
    for piece in sorted(scores, key=scores.__getitem__, reverse=True):
        for at in range(1, len(piece)):
            if piece[:at] in scores and piece[at:] in scores:
                yield piece[:at], piece[at:]
