"""Loss and gradient of MSELoss of sentence-transformers 5.7, in float64, for random embeddings.

python tests/goldens/make_teacher_loss.py  # where sentence-transformers and torch are
"""

import pathlib

import numpy as np
import torch
from sentence_transformers.sentence_transformer.losses import MSELoss

TEXTS, SIZE = 12, 16


def main() -> None:
    random = np.random.default_rng(0)
    teacher = random.normal(size=(TEXTS, SIZE)).astype(np.float32)
    vectors = (teacher + random.normal(size=(TEXTS, SIZE))).astype(np.float32)
    leaf = torch.tensor(vectors, dtype=torch.float64, requires_grad=True)
    loss = MSELoss(lambda features: features)  # the model
    labels = torch.tensor(teacher, dtype=torch.float64)
    value = loss([{"sentence_embedding": leaf}], labels)
    value.backward()
    np.savez_compressed(
        pathlib.Path(__file__).with_name("teacher_loss.npz"),
        vectors=vectors,
        teacher=teacher,
        loss=np.array(value.item()),
        gradient=leaf.grad.numpy(),
    )


if __name__ == "__main__":
    main()
