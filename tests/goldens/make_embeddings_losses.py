"""Losses and gradients of sentence-transformers 5.1.2, in float64, for random embeddings.

python tests/goldens/make_embeddings_losses.py  # where sentence-transformers and torch are
"""

import pathlib

import numpy as np
import torch
from sentence_transformers import losses
from sentence_transformers.losses.MatryoshkaLoss import shrink

EXAMPLES, SIZE, DIMS = 12, 16, (16, 8, 3)
# Name -> class, arguments, texts of an example, Matryoshka dimensions.
CASES = {
    "ranking_pairs": (losses.MultipleNegativesRankingLoss, {}, 2, ()),
    "ranking_negatives": (losses.MultipleNegativesRankingLoss, {"scale": 5.0}, 4, ()),
    "symmetric_pairs": (losses.MultipleNegativesSymmetricRankingLoss, {}, 2, ()),
    "symmetric_negatives": (losses.MultipleNegativesSymmetricRankingLoss, {"scale": 5.0}, 3, ()),
    "cosent": (losses.CoSENTLoss, {}, 2, ()),
    "cosine_similarity": (losses.CosineSimilarityLoss, {}, 2, ()),
    "ranking_matryoshka": (losses.MultipleNegativesRankingLoss, {}, 3, DIMS),
    "cosent_matryoshka": (losses.CoSENTLoss, {}, 2, DIMS),
    "cosine_similarity_matryoshka": (losses.CosineSimilarityLoss, {}, 2, DIMS),
}


def main() -> None:
    random = np.random.default_rng(0)
    arrays = {"scores": random.choice([0.0, 0.2, 0.5, 0.9, 1.0], EXAMPLES).astype(np.float32)}
    labels = torch.tensor(arrays["scores"], dtype=torch.float64)
    for name, (kind, options, num_texts, dims) in CASES.items():
        common = random.normal(size=(EXAMPLES, 1, SIZE))
        vectors = common + random.normal(size=(EXAMPLES, num_texts, SIZE))
        vectors = vectors.astype(np.float32)
        leaf = torch.tensor(vectors, dtype=torch.float64, requires_grad=True)
        loss = kind(None, **options)
        total = torch.zeros((), dtype=torch.float64)
        for dim in dims or (None,):
            texts = [leaf[:, i] for i in range(num_texts)]
            if dim is not None:
                texts = [shrink(text, dim) for text in texts]
            total = total + loss.compute_loss_from_embeddings(texts, labels)
        total.backward()
        arrays[f"{name}_vectors"] = vectors
        arrays[f"{name}_loss"] = np.array(total.item())
        arrays[f"{name}_gradient"] = leaf.grad.numpy()
    np.savez_compressed(pathlib.Path(__file__).with_name("embeddings_losses.npz"), **arrays)


if __name__ == "__main__":
    main()
