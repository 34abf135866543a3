"""Published update rules of the optimizers in NumPy, and a small tree of parameters."""

import functools
from typing import Any

import numpy as np

from bertjax.config.optimizer_config import OptimizerConfig

LAYERS = 3
# A small tree with names and shapes as in the model.
SHAPES: dict[str, tuple[int, ...]] = {
    "encoder/embeddings/word": (11, 4),
    "encoder/embeddings/norm/scale": (4,),
    "encoder/blocks/attention/query/kernel": (LAYERS, 4, 4),
    "encoder/blocks/attention/query/bias": (LAYERS, 4),
    "encoder/blocks/attention_norm/bias": (LAYERS, 4),
    "encoder/blocks/feed_forward/up/kernel": (LAYERS, 4, 8),
    "encoder/blocks/feed_forward/down/kernel": (LAYERS, 8, 4),
    "mlm/transform/kernel": (4, 4),
    "mlm/bias": (11,),
}
DECAYED = [
    "encoder/embeddings/word",
    "encoder/blocks/attention/query/kernel",
    "encoder/blocks/feed_forward/up/kernel",
    "encoder/blocks/feed_forward/down/kernel",
    "mlm/transform/kernel",
]
Arrays = dict[str, np.ndarray]


def draw(seed: int, scale: float) -> Arrays:
    random = np.random.default_rng(seed)
    return {
        name: random.normal(0, scale, shape).astype(np.float32) for name, shape in SHAPES.items()
    }


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *folders, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), folders, tree)[last] = value
    return tree


def config(**fields: Any) -> OptimizerConfig:
    fields = {"warmup_steps": 10, "total_steps": 100, "num_hidden_layers": LAYERS, **fields}
    return OptimizerConfig(**fields)


def orthogonal(matrix: np.ndarray) -> np.ndarray:
    """Return Muon's update from a matrix of momentum."""
    x = matrix / max(np.linalg.norm(matrix), 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x * 0.2 * max(x.shape) ** 0.5


def rate_factors(c: OptimizerConfig, name: str) -> np.ndarray:
    """Return the factor of the learning rate, by layer if stacked; 0 for frozen parameters."""
    if "/embeddings/" in name:
        return np.array(0 if c.frozen_layers else c.layerwise_lr_decay**4)
    if "/blocks/" not in name:
        return np.array(1)
    layers = np.array([c.layerwise_lr_decay**3, c.layerwise_lr_decay**2, c.layerwise_lr_decay])
    layers[: c.frozen_layers] = 0
    return layers.reshape(-1, *[1] * (len(SHAPES[name]) - 1))


def published_updates(c: OptimizerConfig, params: Arrays, gradients: list[Arrays]) -> Arrays:
    """Compute the published update rules in NumPy, float64, one layer at a time."""
    w = {name: value.astype(np.float64) for name, value in params.items()}
    m = {name: np.zeros_like(value) for name, value in w.items()}
    v = {name: np.zeros_like(value) for name, value in w.items()}
    trace = {name: np.zeros_like(value) for name, value in w.items()}
    for step, full_gradient in enumerate(gradients):
        gradient = {name: g * (rate_factors(c, name) > 0) for name, g in full_gradient.items()}
        norm = np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in gradient.values()))
        if step < c.warmup_steps:
            rate = c.learning_rate * step / c.warmup_steps
        elif c.schedule == "linear":
            remaining = c.total_steps - step
            rate = c.learning_rate * remaining / (c.total_steps - c.warmup_steps)
        else:
            rate = c.learning_rate * (1 - step / c.total_steps)
        for name in w:
            g = gradient[name].astype(np.float64) * min(1, c.max_grad_norm / norm)
            m[name] = c.b1 * m[name] + (1 - c.b1) * g
            v[name] = c.b2 * v[name] + (1 - c.b2) * g**2
            m_hat, v_hat = m[name], v[name]
            if c.name != "bert_adam":
                m_hat = m_hat / (1 - c.b1 ** (step + 1))
                v_hat = v_hat / (1 - c.b2 ** (step + 1))
            u = m_hat / (np.sqrt(v_hat) + c.eps)
            if c.name == "muon" and "/blocks/" in name and "/kernel" in name:
                trace[name] = 0.95 * trace[name] + g
                u = np.stack([orthogonal(layer) for layer in g + 0.95 * trace[name]])
            if name in DECAYED:
                u = u + c.weight_decay * w[name]
                if c.name == "lamb":
                    stacked = "/blocks/" in name
                    layers = zip(u, w[name], strict=True) if stacked else [(u, w[name])]
                    for layer_u, layer_w in layers:
                        layer_u *= np.linalg.norm(layer_w) / np.linalg.norm(layer_u)
            w[name] = w[name] - rate * rate_factors(c, name) * u
    return w
