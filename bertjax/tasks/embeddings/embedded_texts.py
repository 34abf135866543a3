"""Eval sets of embedded texts, which keep the embeddings of the texts alone."""

from collections.abc import Sequence

import numpy as np

from bertjax.tasks.finetuning import PackedEvalSet
from bertjax.tasks.pipeline import Outputs


class EmbeddedTextsEvalSet(PackedEvalSet):
    """Eval set whose examples are single texts."""

    def keep_outputs(self, number: int, outputs: Outputs) -> Outputs:
        """Return the embeddings of a batch's texts alone, which take a fraction of the memory."""
        layout = self._layout[number]
        return {"embeddings": outputs["embeddings"][..., layout.sequence, layout.slot, :]}

    def join(self, outputs: Sequence[Outputs]) -> np.ndarray:
        """Return the embeddings of all texts, float32 [N, D], from what was kept of each batch."""
        size = outputs[0]["embeddings"].shape[-1]
        vectors = np.zeros((len(self._examples), size), np.float32)
        for layout, batch in zip(self._layout, outputs, strict=True):
            vectors[layout.indices] = batch["embeddings"]
        return vectors
