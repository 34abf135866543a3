"""Make encoder_decoder.npz: logits of a random `EncoderDecoderModel` in PyTorch, in float64.

    PYTHON tests/goldens/make_encoder_decoder.py

PYTHON has torch and `transformers` 4.57. Sources and targets are padded. Encoder and decoder have
different parameters, which follow from their names.
"""

import json
import pathlib
import zlib
from typing import Any

import numpy as np

PATH = pathlib.Path(__file__).with_name("encoder_decoder.npz")
CLS, SEP = 2, 3
BERT: dict[str, Any] = {
    **{"vocab_size": 40, "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 32, "hidden_act": "gelu"},
}
PAIRS = [  # source, target
    ([5, 6, 7], [8, 9, 10, 11]),
    ([12, 13], [14, 15]),
    ([16, 17, 18, 19, 20, 21, 22], [23, 24, 25, 26, 27]),
    ([28], [29]),
]
TIED = ("decoder.cls.predictions.decoder.weight", "decoder.cls.predictions.decoder.bias")


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the parameter of a name in `transformers`, float32."""
    random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    mean = float(name.endswith("LayerNorm.weight"))
    return random.normal(mean, 0.2, shape).astype(np.float32)


def pad(rows: list[list[int]]) -> np.ndarray:
    return np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])


def main() -> None:
    import torch
    import transformers

    sections = [transformers.BertConfig(**BERT) for _ in range(2)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sections)
    model = transformers.EncoderDecoderModel(config).double().eval()
    state = model.state_dict()
    names = sorted(name for name in state if name not in TIED)
    shapes = {name: tuple(state[name].shape) for name in names}
    values = {name: torch.tensor(weight(name, shape)).double() for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert {*missing} <= {*TIED} and not unexpected
    model.tie_weights()
    sources = pad([[CLS, *source, SEP] for source, _ in PAIRS])
    inputs = pad([[CLS, *target] for _, target in PAIRS])
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor(sources),
            attention_mask=torch.tensor(sources > 0),
            decoder_input_ids=torch.tensor(inputs),
        ).logits.numpy()
    arrays = {f"logits/{i}": logits[i, : len(target) + 1] for i, (_, target) in enumerate(PAIRS)}
    texts = {"config": config.to_json_string(use_diff=True), "shapes": json.dumps(shapes)}
    np.savez_compressed(PATH, **{k: v.astype(np.float32) for k, v in arrays.items()}, **texts)


if __name__ == "__main__":
    main()
