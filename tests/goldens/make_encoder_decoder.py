"""Make encoder_decoder.npz: logits and generated targets of random `EncoderDecoderModel`s.

    PYTHON tests/goldens/make_encoder_decoder.py

PYTHON has torch and `transformers` 4.57. The models compute in float64; `generate` rounds logits to
float32. Sources and targets are padded. Encoder and decoder have different parameters, which follow
from their names.
"""

import json
import pathlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Draw = Callable[[str, tuple[int, ...]], np.ndarray]  # of a name and a shape

PATH = pathlib.Path(__file__).with_name("encoder_decoder.npz")
CLS, SEP = 2, 3
BERT: dict[str, Any] = {
    "vocab_size": 40,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "hidden_act": "gelu",
}
PAIRS = [  # source, target
    ([5, 6, 7], [8, 9, 10, 11]),
    ([12, 13], [14, 15]),
    ([16, 17, 18, 19, 20, 21, 22], [23, 24, 25, 26, 27]),
    ([28], [29]),
]
# Of parts of names; other matrices have 2.5.
GAINS = {"LayerNorm": 1.0, "word_emb": 1.5, "crossattention": 5.0, "position_emb": 10.0}
NUM_SOURCES, MAX_NEW_TOKENS = 200, 12
# Hypotheses end at many lengths. None has a second [CLS]: `transformers` counts the first, the
# start token, in n-grams.
BIASES = {CLS: -20.0, SEP: 3.0}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 4},
    "never": {
        "num_beams": 4,
        "num_return_sequences": 4,
        "length_penalty": 0.0,
        "early_stopping": "never",
    },
    "constrained": {
        "num_beams": 3,
        "num_return_sequences": 3,
        "early_stopping": True,
        "no_repeat_ngram_size": 2,
        "min_new_tokens": 3,
    },
}
TIED = ("decoder.cls.predictions.decoder.weight", "decoder.cls.predictions.decoder.bias")


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the parameter of a name in `transformers`, float32."""
    random = np.random.Generator(np.random.Philox(zlib.crc32(name.encode())))
    mean = float(name.endswith("LayerNorm.weight"))
    return random.normal(mean, 0.2, shape).astype(np.float32)


def generating_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return the parameter of the model that generates: its targets depend on source and length."""
    array = weight(name, shape)
    if name.endswith("bias"):
        array[:] = 0
        if name == "decoder.cls.predictions.bias":
            array[[*BIASES]] = [*BIASES.values()]
        return array
    gain = next((gain for part, gain in GAINS.items() if part in name), 2.5)
    return array * np.float32(gain)


def draw_sources() -> list[list[int]]:
    """Return token ids of sources, [CLS] and [SEP] included."""
    random = np.random.Generator(np.random.Philox(1))
    lengths = random.integers(1, 15, NUM_SOURCES)
    rows = [random.integers(SEP + 1, BERT["vocab_size"], length) for length in lengths]
    return [[CLS, *row.tolist(), SEP] for row in rows]


def pad(rows: list[list[int]]) -> np.ndarray:
    return np.array([row + [0] * (max(map(len, rows)) - len(row)) for row in rows])


def make_model(draw: Draw) -> Any:
    """Return `EncoderDecoderModel` in float64 with the parameters that `draw` returns."""
    import torch
    import transformers

    sections = [transformers.BertConfig(**BERT) for _ in range(2)]
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(*sections)
    model = transformers.EncoderDecoderModel(config).double().eval()
    shapes = parameter_shapes(model)
    values = {name: torch.tensor(draw(name, shape)).double() for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert {*missing} <= {*TIED} and not unexpected
    model.tie_weights()
    return model


def parameter_shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parameters that a file holds."""
    state = model.state_dict()
    return {name: tuple(state[name].shape) for name in sorted({*state} - {*TIED})}


def compute_logits(model: Any) -> dict[str, np.ndarray]:
    """Return the logits of each target of `PAIRS`."""
    import torch

    sources = pad([[CLS, *source, SEP] for source, _ in PAIRS])
    inputs = pad([[CLS, *target] for _, target in PAIRS])
    with torch.no_grad():
        logits = model(
            input_ids=torch.tensor(sources),
            attention_mask=torch.tensor(sources > 0),
            decoder_input_ids=torch.tensor(inputs),
        ).logits.numpy()
    return {
        f"logits/{i}": logits[i, : len(target) + 1].astype(np.float32)
        for i, (_, target) in enumerate(PAIRS)
    }


def generate(model: Any, options: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return targets [B, R, G], without their start token, and their scores [B, R]."""
    import torch

    sources = torch.tensor(pad(draw_sources()))
    output = model.generate(
        input_ids=sources,
        attention_mask=sources > 0,
        decoder_start_token_id=CLS,
        eos_token_id=SEP,
        pad_token_id=0,
        max_new_tokens=MAX_NEW_TOKENS,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    tokens = output.sequences[:, 1:]
    scores = output.get("sequences_scores")
    if scores is None:
        each = model.compute_transition_scores(
            output.sequences, output.scores, normalize_logits=True
        )
        is_after_end = (tokens == SEP).cumsum(1) - (tokens == SEP).int() > 0
        scores = each.masked_fill(is_after_end, 0).sum(1)
    shape = NUM_SOURCES, options.get("num_return_sequences", 1)
    return tokens.reshape(*shape, -1).numpy(), scores.reshape(shape).numpy()


def main() -> None:
    model = make_model(weight)
    config, shapes = model.config.to_json_string(use_diff=True), parameter_shapes(model)
    texts = {"config": config, "shapes": json.dumps(shapes)}
    arrays = compute_logits(model)
    model = make_model(generating_weight)
    for name, options in SEARCHES.items():
        tokens, scores = generate(model, options)
        arrays[f"{name}/tokens"] = tokens.astype(np.int8)
        arrays[f"{name}/scores"] = scores.astype(np.float32)
    np.savez_compressed(PATH, **arrays, **texts)


if __name__ == "__main__":
    main()
