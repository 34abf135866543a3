"""Small random models in the format of Hugging Face."""

import json
import pathlib

from random_models import assert_same_params, draw_model

from bertjax.formats import huggingface
from bertjax.formats.tensors import NumpyModel
from bertjax.model.bert_config import BertConfig
from data_pipelines.vocabulary.special_tokens import SPECIAL_TOKENS
from data_pipelines.vocabulary.wordpiece import WordPieceTokenizer

LAYERS, HIDDEN, VOCAB_SIZE = 2, 64, 40
CONFIG = BertConfig(
    VOCAB_SIZE, LAYERS, HIDDEN, 1, max_position_embeddings=32, hidden_act="gelu_tanh"
)
TOKENIZER = WordPieceTokenizer(
    [*SPECIAL_TOKENS, *map(chr, range(ord("a"), ord("z") + 1))], cased=False
)


def draw(*heads: str, tokenizer=TOKENIZER) -> NumpyModel:
    return draw_model(CONFIG, tokenizer, *heads)


def write_hf(model: NumpyModel, path: pathlib.Path, **changed: object) -> pathlib.Path:
    """Write a directory of Hugging Face; `changed` replaces fields of its config.json."""
    path.mkdir(exist_ok=True)
    huggingface.write(model, path)
    config = json.loads((path / "config.json").read_text()) | changed
    (path / "config.json").write_text(json.dumps(config))
    return path


def assert_same(a: NumpyModel, b: NumpyModel) -> None:
    assert_same_params(a.params, b.params)
    assert huggingface.bert_config_dict(a.config) == huggingface.bert_config_dict(b.config)
    assert (a.tokenizer and a.tokenizer.fingerprint()) == (
        b.tokenizer and b.tokenizer.fingerprint()
    )
