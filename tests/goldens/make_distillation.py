"""Write distillation.npz: losses of distillation and their gradients, from PyTorch.

Run with `python make_distillation.py` where torch is installed. The formulas are written from the
papers, one example and one head at a time, without packing or masks.
"""

import pathlib

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)

B, T, K, C, H, HT, HEADS = 2, 12, 3, 5, 8, 12, 4
EXAMPLE_IDS = np.array([[1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 0], [1] * 5 + [2] * 4 + [0] * 3])
GROUPS = np.array([[1, 1, 2], [1, 1, 0]])  # choices of a question
TEMPERATURES = 1.0, 2.5


def kl(student: torch.Tensor, teacher: torch.Tensor, t: float) -> torch.Tensor:
    p, log_q = F.softmax(teacher / t, -1), F.log_softmax(student / t, -1)
    return F.kl_div(log_q, p, reduction="sum") * t * t


def binary_kl(student: torch.Tensor, teacher: torch.Tensor, t: float) -> torch.Tensor:
    pairs = [torch.stack([x / t, torch.zeros_like(x)], -1) for x in (student, teacher)]
    return kl(*pairs, 1.0) * t * t / student.numel()


def examples(x: torch.Tensor):
    """Yield the tokens of each example."""
    for row in range(B):
        for example in range(1, EXAMPLE_IDS[row].max() + 1):
            yield x[row, torch.as_tensor(EXAMPLE_IDS[row] == example)]


def relations(student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, int]:
    total, count = torch.zeros((), dtype=torch.float64), 0
    for s, t in zip(examples(student), examples(teacher), strict=True):
        for head in range(HEADS):
            scores = []
            for x in (s, t):
                size = x.shape[-1] // HEADS
                part = x[:, head * size : (head + 1) * size]
                scores.append(part @ part.T / size**0.5)
            total = total + kl(*scores, 1.0)
            count += len(s)
    return total, count


def main() -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    shapes = {
        "slots": ((B, K, C),) * 2,
        "tokens": ((B, T, 2),) * 2,
        "choices": ((B, K, 1),) * 2,
        "regression": ((B, K, 1),) * 2,
        "states": ((B, T, HT),) * 2,
        "vectors": ((B, T, H), (B, T, HT)),
    }
    for name, (student, teacher) in shapes.items():
        arrays[f"{name}_student"] = rng.normal(size=student) * 2
        arrays[f"{name}_teacher"] = rng.normal(size=teacher) * 2

    def record(loss: str, inputs: str, function, *args) -> None:
        student = torch.tensor(arrays[f"{inputs}_student"], requires_grad=True)
        value, weight = function(student, torch.tensor(arrays[f"{inputs}_teacher"]), *args)
        value.backward()
        arrays[f"{loss}_sum"], arrays[f"{loss}_weight"] = value.detach().numpy(), np.array(weight)
        arrays[f"{loss}_gradient"] = student.grad.numpy()

    slots = [(row, k) for row in range(B) for k in range(EXAMPLE_IDS[row].max())]

    def over_slots(loss):
        return lambda s, t, *a: (sum(loss(s[x], t[x], *a) for x in slots), len(slots))

    def question_answering(s, t, temperature):
        pairs = zip(examples(s), examples(t), strict=True)
        return sum(kl(a.T, b.T, temperature) for a, b in pairs) / 2, len(slots)

    def choices(s, t, temperature):
        total, count = torch.zeros((), dtype=torch.float64), 0
        for row in range(B):
            for group in set(GROUPS[row]) - {0}:
                own = torch.as_tensor(GROUPS[row] == group)
                total = total + kl(s[row, own, 0], t[row, own, 0], temperature)
                count += 1
        return total, count

    def cosine(s, t):
        pairs = list(zip(examples(s), examples(t), strict=True))
        total = sum((1 - F.cosine_similarity(a, b, -1)).sum() for a, b in pairs)
        return total, sum(len(a) for a, _ in pairs)

    def mse(s, t):
        pairs = list(zip(examples(s), examples(t), strict=True))
        total = sum(((a - b) ** 2).mean(-1).sum() for a, b in pairs)
        return total, sum(len(a) for a, _ in pairs)

    for t in TEMPERATURES:
        record(f"single_label_{t}", "slots", over_slots(kl), t)
        record(f"multi_label_{t}", "slots", over_slots(binary_kl), t)
        record(f"question_answering_{t}", "tokens", question_answering, t)
        record(f"multiple_choice_{t}", "choices", choices, t)
    record("regression", "regression", over_slots(lambda s, t: ((s - t) ** 2).sum()))
    record("cosine", "states", cosine)
    record("mse", "states", mse)
    record("relations", "vectors", relations)
    np.savez(pathlib.Path(__file__).with_name("distillation.npz"), **arrays)


if __name__ == "__main__":
    main()
