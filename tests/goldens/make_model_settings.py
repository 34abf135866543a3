"""Make model_settings.json: what `transformers` computes with the settings of published models.

    PYTHON tests/goldens/make_model_settings.py

PYTHON has torch 2.13 and `transformers` 5.17. Of each tokenizer the ids of some texts are kept, of
each model its MLM logits. Weights are drawn from their names, so no file holds them.
"""

import json
import pathlib
import tempfile
import zlib

import numpy as np

TOKENS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<s>", "</s>", "<unk>", "<pad>", "<mask>"),
    *("aug", "AUG", "-", "1", "##-", "##1", "AUG-1", "b", "", "a", "é", "e", "ABC", "abc", "a"),
]
TEXTS = ["AUG-1 b", "a ABC é", "aug1 abc-", "zzz b"]


def added(token: str) -> dict:
    """Return a token as tokenizer_config.json has it."""
    options = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
    return {"__type": "AddedToken", "content": token, "special": True, **options}


NAMES = {"cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
# Name -> files of the tokenizer. Fast tokenizers of `transformers` ignore do_basic_tokenize.
TOKENIZERS: dict[str, dict[str, dict]] = {
    "default": {"tokenizer_config.json": {"do_lower_case": True}},
    "do_lower_case": {"tokenizer_config.json": {"do_lower_case": False}},
    "strip_accents": {"tokenizer_config.json": {"do_lower_case": True, "strip_accents": False}},
    "do_basic_tokenize": {"tokenizer_config.json": {"do_basic_tokenize": False}},
    **{
        f"{name}_token": {
            "tokenizer_config.json": {"do_lower_case": True, f"{name}_token": added(token)}
        }
        for name, token in NAMES.items()
    },
    "special_tokens_map": {
        "tokenizer_config.json": {"do_lower_case": True, "cls_token": "[CLS]"},
        "special_tokens_map.json": {f"{name}_token": token for name, token in NAMES.items()},
    },
    "added_tokens_decoder": {
        "tokenizer_config.json": {
            "do_lower_case": True,
            "cls_token": "[CLS]",
            "added_tokens_decoder": {"2": added("[CLS]")},
        },
        "special_tokens_map.json": {"cls_token": "<s>"},
    },
}
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": len(TOKENS),
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
}
IDS = [2, 10, 12, 13, 20, 3]
# Name -> changed fields of config.json.
MODELS: dict[str, dict] = {
    "default": {},
    "hidden_act=gelu_python": {"hidden_act": "gelu_python"},
    **{
        f"hidden_act={name}": {"hidden_act": name}
        for name in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "relu")
    },
    "layer_norm_eps": {"layer_norm_eps": 0.1},
    "is_decoder": {"is_decoder": True, "architectures": ["BertLMHeadModel"]},
    "num_attention_heads": {"num_attention_heads": 4},
    "decoder.bias": {},
    "chunk_size_feed_forward": {"chunk_size_feed_forward": 2},
    "use_cache": {"use_cache": False},
}


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the weights of a name, float32, large enough to show every difference."""
    random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    mean = float(name.endswith("LayerNorm.weight"))
    return (mean + 0.5 * random.standard_normal(shape)).astype("float32")


def tokenizer_ids(name: str, files: dict[str, dict]) -> dict:
    from transformers import AutoTokenizer
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        (folder / "vocab.txt").write_text("\n".join(TOKENS) + "\n", "utf-8")
        (folder / "config.json").write_text('{"model_type": "bert"}')
        for file, content in files.items():
            fields = {"tokenizer_class": "BertTokenizer"} if file == "tokenizer_config.json" else {}
            (folder / file).write_text(json.dumps(fields | content))
        if name == "do_basic_tokenize":
            tokenizer = BertTokenizerLegacy(str(folder / "vocab.txt"), do_basic_tokenize=False)
        else:
            tokenizer = AutoTokenizer.from_pretrained(directory)
    return {
        "ids": [tokenizer(text)["input_ids"] for text in TEXTS],
        "pad": tokenizer.pad_token_id,
        "mask": tokenizer.mask_token_id,
    }


def logits(name: str, fields: dict) -> list:
    import torch
    import transformers
    from safetensors.torch import save_file

    config = CONFIG | fields
    kind = getattr(transformers, config["architectures"][0])
    arrays = {
        key: torch.from_numpy(draw(key, tuple(value.shape)))
        for key, value in kind(transformers.BertConfig(**config)).state_dict().items()
        if "decoder" not in key and not key.endswith("position_ids")
    }
    if name == "decoder.bias":
        key = "cls.predictions.decoder.bias"
        arrays[key] = torch.from_numpy(draw(key, (len(TOKENS),)))
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(arrays, folder / "model.safetensors", {"format": "pt"})
        model = kind.from_pretrained(directory, attn_implementation="eager").eval()
    with torch.no_grad():
        result = model(torch.tensor([IDS])).logits[0]
    return [[round(float(value), 4) for value in row] for row in result]


def main() -> None:
    content = {
        "tokenizers": {name: tokenizer_ids(name, files) for name, files in TOKENIZERS.items()},
        "models": {name: logits(name, fields) for name, fields in MODELS.items()},
    }
    path = pathlib.Path(__file__).with_name("model_settings.json")
    path.write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
