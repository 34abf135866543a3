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

# Texts, their token ids, tokens of each prompt, batches of a step.
Context = tuple[list[str], list[np.ndarray], list[int], PackedTexts]


class TextGenerationPipeline(Pipeline[Context]):
    """Greedy continuation of a text, of at most 32 tokens or to the first [SEP].

    A subclass may have other inputs and another prompt.
    """

    method = "generate"
    description = "continues texts"
    max_batch_inputs = 64  # each position has as many scores as the vocabulary tokens

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence of the encoder."""
        return self.config.model.max_position_embeddings

    @property
    def max_new_tokens(self) -> int:
        """Maximal tokens of a generated text."""
        return _MAX_NEW_TOKENS

    @staticmethod
    def parse_arguments(texts: str | Iterable[str]) -> Any:
        """Return the text that a model generates, token by token: {"text", "generated_text"}.

        A causal model continues the text, a model of `generation` takes it as the source.

        Args:
          texts: a text, or several; a source may be a dictionary with its column.

        Raises:
          InputError: the model has another head, or a text to continue is too long.
        """
        return texts

    parse_lines = staticmethod(parse_text_lines)

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches with a prediction slot at the end of each text."""
        texts = [self.text_of(item) for item in inputs]
        ids = [
            np.array(self.encode_prompt(item.location, text), np.int32)
            for item, text in zip(inputs, texts, strict=True)
        ]
        prompt_lengths = [len(text_ids) for text_ids in ids]
        packed = self._pack(ids, prompt_lengths)
        return packed.batches(), (texts, ids, prompt_lengths, packed)

    def text_of(self, item: PredictInput) -> str:
        """Return the text of an input.

        Raises:
          InputError: the input has none.
        """
        return require_text(item)

    def encode_prompt(self, location: str, text: str) -> list[int]:
        """Return the token ids after which the model generates."""
        ids = [self.tokenizer.cls_id, *self.tokenizer.encode(text)]
        check_num_tokens(location, len(ids), self.max_input_tokens - 1)
        return ids

    def prefix_lengths(self, prompt_lengths: Sequence[int]) -> Sequence[int] | None:
        """Return how many tokens of each text have type 0, from the tokens of its prompt."""
        return None

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Return texts whose ids end with the generated tokens; `predict` gives no outputs."""
        texts, all_ids, *_ = context
        for text, ids in zip(texts, all_ids, strict=True):
            yield {"text": text, "generated_text": self.tokenizer.decode(ids.tolist())}

    def predict(
        self, run: RunFunction, inputs: Sequence[PredictInput], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yield the continuations, computed token by token."""
        batches, (texts, ids, prompt_lengths, packed) = self.preprocess(inputs)
        num_tokens = len(self.tokenizer.tokens)
        unfinished = list(range(len(ids)))
        for _ in range(self.max_new_tokens):
            next_ids = packed.reduce_scores(run(batches), num_tokens, lambda row: int(row.argmax()))
            for i, next_id in zip(list(unfinished), next_ids, strict=True):
                if next_id != self.tokenizer.sep_id:
                    ids[i] = np.append(ids[i], np.int32(next_id))
                if next_id == self.tokenizer.sep_id or len(ids[i]) == self.max_input_tokens:
                    unfinished.remove(i)
            if not unfinished:
                break
            packed = self._pack(
                [ids[i] for i in unfinished], [prompt_lengths[i] for i in unfinished]
            )
            batches = packed.batches()
        generated = [text_ids[n:] for text_ids, n in zip(ids, prompt_lengths, strict=True)]
        return self.postprocess((texts, generated, prompt_lengths, packed), (), return_all_scores)

    def sample_input(self, text: str = "The capital of France is", word: str = "") -> Content:
        """Return the beginning of a text."""
        return text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the text with its continuation marked."""
        text, generated = answer["text"], answer["generated_text"]
        whole = f"{text} {generated}"
        return [text_block(whole, [(len(text) + 1, len(whole), "")])]

    def _pack(self, ids: Sequence[np.ndarray], prompt_lengths: Sequence[int]) -> PackedTexts:
        last_positions = [np.array([len(text_ids) - 1]) for text_ids in ids]
        prefix_lengths = self.prefix_lengths(prompt_lengths)
        return PackedTexts(ids, last_positions, self.max_input_tokens, prefix_lengths)
