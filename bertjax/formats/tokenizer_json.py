"""Tokenizers as `tokenizer.json`, of which `transformers` and others make any tokenizer today."""

from collections.abc import Iterator, Mapping
from typing import Any

from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as CompiledTokenizer

from data_pipelines.vocabulary.sentencepiece_tokenizer import METASPACE, SentencePieceTokenizer
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.tokenization import Tokenizer
from data_pipelines.vocabulary.wordpiece import CONTINUATION_PREFIX, WordPieceTokenizer


def to_tokenizer_json(tokenizer: Tokenizer) -> str:
    """The content of the file, which gives the same ids.

    But for what holds for all such files: special pieces are found in raw text; a SentencePiece
    model sees its own mark of a space, and loses accents on characters that it normalises.
    """
    if isinstance(tokenizer, WordPieceTokenizer):
        whole = _wordpiece(tokenizer)
    else:
        assert isinstance(tokenizer, SentencePieceTokenizer)
        whole = _sentencepiece(tokenizer)
    tokens = ("[CLS]", tokenizer.cls_id), ("[SEP]", tokenizer.sep_id)
    whole.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=list(tokens),
    )
    whole.add_special_tokens(list(SPECIAL_TOKENS))
    return whole.to_str(pretty=True) + "\n"


def _wordpiece(tokenizer: WordPieceTokenizer) -> CompiledTokenizer:
    index = {token: i for i, token in enumerate(tokenizer.tokens)}
    whole = CompiledTokenizer(
        models.WordPiece(
            index, unk_token="[UNK]", max_input_chars_per_word=tokenizer.max_input_chars_per_word
        )
    )
    whole.normalizer = normalizers.BertNormalizer(
        lowercase=not tokenizer.cased, strip_accents=tokenizer.strip_accents
    )
    whole.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    whole.decoder = decoders.WordPiece(CONTINUATION_PREFIX)
    return whole


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> CompiledTokenizer:
    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(tokenizer.model)
    scores = {token.token: token.score for token in proto.tokens}
    if proto.trainer_spec.model_type == proto.trainer_spec.BPE:
        index = {token: i for i, token in enumerate(tokenizer.tokens)}
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
    whole.pre_tokenizer = pre_tokenizers.Metaspace(METASPACE, prepend_scheme=scheme)
    whole.decoder = decoders.Metaspace(METASPACE, prepend_scheme=scheme)
    return whole


def _merges(scores: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """What BPE may join, the best first: its model has the scores of what comes of it."""
    for token in sorted(scores, key=scores.__getitem__, reverse=True):
        for at in range(1, len(token)):
            if token[:at] in scores and token[at:] in scores:
                yield token[:at], token[at:]
