"""Pipeline that continues texts with a left-to-right model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.tasks.fill_mask import PackedTexts, check_num_tokens
from bertjax.tasks.pipeline import (
    Content,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    RunFunction,
    parse_text_lines,
    require_text,
    text_block,
)

_MAX_NEW_TOKENS = 32


Context = tuple[list[str], list[np.ndarray], PackedTexts]  # texts, token ids, batches of a step


class TextGenerationPipeline(Pipeline[Context]):
    """Greedy continuation of a text, of at most 32 tokens or to the end of a sentence."""

    method = "generate"
    description = "continues texts"
    max_batch_inputs = 64  # each position has as many scores as the vocabulary tokens

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence of the encoder."""
        return self.config.model.max_position_embeddings

    @staticmethod
    def parse_arguments(texts: str | Iterable[str]) -> Any:
        """Return the greedy continuation of a text: {"text", "generated_text"}.

        Args:
          texts: a text, or several.

        Raises:
          InputError: the model has another head, or a text is too long.
        """
        return texts

    parse_lines = staticmethod(parse_text_lines)

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches with a prediction slot at the end of each text."""
        texts, tokenizer = [require_text(item) for item in inputs], self.tokenizer
        ids = [np.array([tokenizer.cls_id, *tokenizer.encode(text)], np.int32) for text in texts]
        for item, text_ids in zip(inputs, ids, strict=True):
            check_num_tokens(item.location, len(text_ids), self.max_input_tokens - 1)
        packed = self._pack(ids)
        return packed.batches(), (texts, ids, packed)

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Return texts whose ids end with the generated tokens; `predict` gives no outputs."""
        texts, all_ids, _ = context
        for text, ids in zip(texts, all_ids, strict=True):
            yield {"text": text, "generated_text": self.tokenizer.decode(ids.tolist())}

    def predict(
        self, run: RunFunction, inputs: Sequence[PredictInput], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the continuations, computed token by token."""
        batches, (texts, ids, packed) = self.preprocess(inputs)
        prompt_lengths, num_tokens = [len(text_ids) for text_ids in ids], len(self.tokenizer.tokens)
        unfinished = list(range(len(ids)))
        for _ in range(_MAX_NEW_TOKENS):
            next_ids = packed.reduce_scores(run(batches), num_tokens, lambda row: int(row.argmax()))
            for i, next_id in zip(list(unfinished), next_ids, strict=True):
                if next_id != self.tokenizer.sep_id:
                    ids[i] = np.append(ids[i], np.int32(next_id))
                if next_id == self.tokenizer.sep_id or len(ids[i]) == self.max_input_tokens:
                    unfinished.remove(i)
            if not unfinished:
                break
            packed = self._pack([ids[i] for i in unfinished])
            batches = packed.batches()
        generated = [text_ids[n:] for text_ids, n in zip(ids, prompt_lengths, strict=True)]
        return self.postprocess((texts, generated, packed), (), return_all_scores)

    def sample_input(self, text: str = "The capital of France is", word: str = "") -> Content:
        """Return the beginning of a text."""
        return text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the text with its continuation marked."""
        text, generated = answer["text"], answer["generated_text"]
        whole = f"{text} {generated}"
        return [text_block(whole, [(len(text) + 1, len(whole), "")])]

    def _pack(self, ids: Sequence[np.ndarray]) -> PackedTexts:
        last_positions = [np.array([len(text_ids) - 1]) for text_ids in ids]
        return PackedTexts(ids, last_positions, self.max_input_tokens)
