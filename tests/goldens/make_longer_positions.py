"""Make longer_positions.npz: hidden states of a random `BertModel` whose positions were extended.

    PYTHON tests/goldens/make_longer_positions.py

PYTHON has torch and `transformers` 4.57. The table of 512 positions becomes one of 1,024, repeated
or interpolated by torch, and the model reads a text of 700 tokens. Hidden states are stored as
products with a few random vectors, in which any difference shows.
"""

import pathlib
import sys
from typing import Any

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_encoder_decoder import weight

PATH = pathlib.Path(__file__).with_name("longer_positions.npz")
FIELDS: dict[str, Any] = {
    "vocab_size": 40,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
}
TABLE = "embeddings.position_embeddings.weight"
POSITIONS, TOKENS, VECTORS = 1024, 700, 3


def text() -> np.ndarray:
    """Return token ids [1, TOKENS]."""
    return np.random.Generator(np.random.Philox(1)).integers(4, FIELDS["vocab_size"], (1, TOKENS))


def vectors() -> np.ndarray:
    random = np.random.Generator(np.random.Philox(7))
    return random.standard_normal((FIELDS["hidden_size"], VECTORS))


def main() -> None:
    import torch
    import transformers

    table = torch.from_numpy(weight(TABLE, (512, FIELDS["hidden_size"])))
    longer = torch.nn.functional.interpolate(
        table.T[None], size=POSITIONS, mode="linear", align_corners=True
    )[0].T
    tables = {"copy": torch.cat([table, table]), "interpolate": longer}
    config = transformers.BertConfig(**FIELDS | {"max_position_embeddings": POSITIONS})
    model = transformers.BertModel(config, add_pooling_layer=False).double().eval()
    arrays = {}
    for method, extended in tables.items():
        state = {
            name: torch.from_numpy(weight(name, tuple(tensor.shape)))
            for name, tensor in model.state_dict().items()
        }
        model.load_state_dict(state | {TABLE: extended})
        with torch.no_grad():
            hidden = model(torch.from_numpy(text())).last_hidden_state.numpy()
        arrays[method] = (hidden[0] @ vectors()).astype(np.float32)
    np.savez_compressed(PATH, **arrays)


if __name__ == "__main__":
    main()
