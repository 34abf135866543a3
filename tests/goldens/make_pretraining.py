"""Make pretraining.npz: outputs, gradients and losses of `transformers` under PyTorch.

    python tests/goldens/make_pretraining.py

Needs torch and `transformers` (extra `bench`). Weights and batches are drawn from NumPy's Philox
stream, keyed by their names, so only results are stored. The single batch is computed in float64,
so that the reference has no rounding error of its own; the 200 steps of training in float32.
"""

import pathlib
import zlib
from collections.abc import Callable

import numpy as np

PATH = pathlib.Path(__file__).with_name("pretraining.npz")
MODEL = dict(
    vocab_size=120,
    num_hidden_layers=3,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=40,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
STEPS, WARMUP, LEARNING_RATE = 200, 20, 2e-3
WEIGHT_DECAY, B1, B2, EPS, MAX_GRAD_NORM = 0.01, 0.9, 0.999, 1e-6, 1.0
# Parameter names here and in `transformers`; {} is the layer. Kernels are transposed there.
NAMES = {
    "encoder/embeddings/word": "bert.embeddings.word_embeddings.weight",
    "encoder/embeddings/type": "bert.embeddings.token_type_embeddings.weight",
    "encoder/embeddings/position": "bert.embeddings.position_embeddings.weight",
    "encoder/embeddings/norm": "bert.embeddings.LayerNorm",
    "encoder/blocks/attention/query": "bert.encoder.layer.{}.attention.self.query",
    "encoder/blocks/attention/key": "bert.encoder.layer.{}.attention.self.key",
    "encoder/blocks/attention/value": "bert.encoder.layer.{}.attention.self.value",
    "encoder/blocks/attention/output": "bert.encoder.layer.{}.attention.output.dense",
    "encoder/blocks/attention_norm": "bert.encoder.layer.{}.attention.output.LayerNorm",
    "encoder/blocks/feed_forward/up": "bert.encoder.layer.{}.intermediate.dense",
    "encoder/blocks/feed_forward/down": "bert.encoder.layer.{}.output.dense",
    "encoder/blocks/feed_forward_norm": "bert.encoder.layer.{}.output.LayerNorm",
    "pooler/transform": "bert.pooler.dense",
    "mlm/transform": "cls.predictions.transform.dense",
    "mlm/norm": "cls.predictions.transform.LayerNorm",
    "mlm": "cls.predictions",
    "nsp": "cls.seq_relationship",
}
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}


def uniform(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float64 numbers in [0, 1) from the stream keyed by `name`."""
    return np.random.Generator(np.random.Philox(key=zlib.crc32(name.encode()))).random(shape)


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 weights for a parameter of `transformers`; no bias is 0 and no scale 1."""
    center = 1.0 if name.endswith("LayerNorm.weight") else 0.0
    return (center + 0.4 * (uniform(name, shape) - 0.5)).astype(np.float32)


def array(name: str, shape: tuple[int, ...], source: Callable[..., np.ndarray]) -> np.ndarray:
    """Return a parameter by its name and shape here.

    Args:
      name: name of the parameter here.
      shape: shape of the parameter here.
      source: function of name and shape in `transformers` that returns the array there.
    """
    parent, leaf = name.rsplit("/", 1)
    peer_name = NAMES.get(name) or f"{NAMES[parent]}.{'bias' if leaf == 'bias' else 'weight'}"
    if "{}" in peer_name:
        return np.stack(
            [_one(leaf, peer_name.format(i), shape[1:], source) for i in range(shape[0])]
        )
    return _one(leaf, peer_name, shape, source)


def _one(leaf: str, peer_name: str, shape: tuple[int, ...], source: Callable[..., np.ndarray]):
    return source(peer_name, shape[::-1]).T if leaf == "kernel" else source(peer_name, shape)


def batch(name: str, batch_size: int, length: int, slots: int) -> dict[str, np.ndarray]:
    """Return sequences of one pair each, of different lengths, with 1 to `slots` masked tokens.

    Small ids are more frequent and labels of even sequences are 0, so that a model can learn.
    """

    def integers(key: str, shape: tuple[int, ...], low: int | np.ndarray, high: int | np.ndarray):
        drawn = low + np.floor(uniform(f"{name}/{key}", shape) * (high - low))
        return drawn.astype(np.int32)

    column = np.arange(length, dtype=np.int32)
    ends = integers("length", (batch_size,), length // 2, length + 1)
    middles = integers("middle", (batch_size,), 3, ends - 2)
    real = column < ends[:, None]
    tokens = 5 + np.floor(uniform(f"{name}/pieces", (batch_size, length)) ** 3 * 115)
    order = np.argsort(
        uniform(f"{name}/order", (batch_size, length - 1)) + 2 * ~real[:, 1:], kind="stable"
    )
    filled = np.arange(slots) < integers("filled", (batch_size,), 1, slots + 1)[:, None]
    positions = np.where(filled, 1 + np.sort(order[:, :slots]), 0).astype(np.int32)
    labels = (np.arange(batch_size) % 2).astype(np.int32)
    input_ids = np.where(real, tokens, 0).astype(np.int32)
    input_ids[:, 0] = 2 + labels
    targets = np.where(filled, np.take_along_axis(input_ids, positions, 1), 0).astype(np.int32)
    np.put_along_axis(input_ids, positions[:, :1], 4, 1)
    return {
        "input_ids": input_ids,
        "token_type_ids": (real & (column >= middles[:, None])).astype(np.int32),
        "example_ids": real.astype(np.int32),
        "position_ids": np.where(real, column, 0).astype(np.int32),
        "masked_lm_positions": positions,
        "masked_lm_ids": targets,
        "masked_lm_weights": filled.astype(np.float32),
        "cls_positions": np.zeros((batch_size, 1), np.int32),
        "next_sentence_labels": labels[:, None],
        "next_sentence_weights": np.ones((batch_size, 1), np.float32),
    }


def check_batch() -> dict[str, np.ndarray]:
    return batch("check", batch_size=4, length=24, slots=5)


def train_batch(step: int) -> dict[str, np.ndarray]:
    return batch(f"train/{step}", batch_size=8, length=32, slots=6)


def learning_rate_factor(step: int) -> float:
    """Return the learning rate of update `step`, counted from 0, divided by the peak rate."""
    return min(step / WARMUP, (STEPS - step) / (STEPS - WARMUP))


def make_model(hidden_act: str):
    import torch
    import transformers

    hidden_act = ACTIVATIONS[hidden_act]
    config = transformers.BertConfig(**MODEL, hidden_act=hidden_act, attn_implementation="eager")
    model = transformers.BertForPreTraining(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape))))
    return model


def run(model, batch: dict[str, np.ndarray]):
    """Return the output of `transformers`, whose MLM labels have the shape of `input_ids`."""
    import torch

    labels = np.full(batch["input_ids"].shape, -100)
    sequences, slots = np.nonzero(batch["masked_lm_weights"])
    positions = batch["masked_lm_positions"][sequences, slots]
    labels[sequences, positions] = batch["masked_lm_ids"][sequences, slots]
    return model(
        input_ids=torch.from_numpy(batch["input_ids"]).long(),
        token_type_ids=torch.from_numpy(batch["token_type_ids"]).long(),
        attention_mask=torch.from_numpy(batch["example_ids"]).long(),
        labels=torch.from_numpy(labels).long(),
        next_sentence_label=torch.from_numpy(batch["next_sentence_labels"][:, 0]).long(),
        output_hidden_states=True,
    )


def curve() -> list[float]:
    """Return the losses of 200 steps of AdamW."""
    import torch

    model = make_model("gelu").train()
    groups: dict[bool, list] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[not ("LayerNorm" in name or name.endswith("bias"))].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": WEIGHT_DECAY},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE,
        betas=(B1, B2),
        eps=EPS,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate_factor)
    losses = []
    for step in range(STEPS):
        loss = run(model, train_batch(step)).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        schedule.step()
    return losses


def main() -> None:
    stored: dict[str, np.ndarray] = {"curve": np.array(curve())}
    checked = check_batch()
    for hidden_act in ACTIVATIONS:
        model = make_model(hidden_act).double().eval()
        output = run(model, checked)
        stored[f"loss/{hidden_act}"] = output.loss.detach().numpy()
        if hidden_act == "gelu":
            output.loss.backward()
            hidden = np.stack([layer.detach().numpy() for layer in output.hidden_states])
            stored["hidden"] = hidden.astype(np.float32)
            positions = checked["masked_lm_positions"][..., None]
            logits = output.prediction_logits.detach().numpy()
            stored["mlm_logits"] = np.take_along_axis(logits, positions, 1).astype(np.float32)
            stored["nsp_logits"] = output.seq_relationship_logits.detach().numpy()[:, None]
            for name, parameter in model.named_parameters():
                stored[f"gradient/{name}"] = parameter.grad.numpy().astype(np.float32)
    np.savez_compressed(PATH, **stored)
    losses = stored["curve"]
    print(f"{PATH.name}: {PATH.stat().st_size} bytes, curve {losses[0]:.4f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
