"""Pipeline that continues texts with a left-to-right model."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertjax.model.decoder.options import Decoding, DecodingOptions
from bertjax.tasks.fill_mask import check_num_tokens
from bertjax.tasks.generation.sources import SourceBatches, program_options
from bertjax.tasks.pipeline import (
    Content,
    FormField,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    RunFunction,
    add_options,
    input_options,
    option_fields,
    option_names,
    parse_text_lines,
    text_block,
    truncation_mark,
)
from data_pipelines.errors import InputError

_TEXT = "text"  # key of the text in an input object


class Context(NamedTuple):
    """Inputs of `preprocess`.

    Attributes:
      texts: their texts.
      sources: their token ids in batches.
      decoding: constants of their program.
      truncated: whether each text lost tokens.
    """

    texts: list[str]
    sources: SourceBatches
    decoding: Decoding
    truncated: list[bool]


class TextGenerationPipeline(Pipeline[Context]):
    """Continuation of a text, to the first [SEP] or the maximal number of tokens.

    A subclass may have other inputs and another prompt.
    """

    method = "generate"
    description = "continues texts"
    max_batch_inputs = 256

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence of the encoder."""
        return self.config.model.max_position_embeddings

    @staticmethod
    def parse_arguments(texts: str | Iterable[str], **options: Any) -> Any:
        """Return the text that a model generates, token by token: {"text", "generated_text"}.

        A left-to-right model continues the text, a model of `generation` takes it as the source.
        With `return_all_scores`, or several returned sequences, the answer has `sequences`, a list
        of {"generated_text", "score"}.

        Args:
          texts: a text, or several; a source may be a dictionary with its column.
          options: fields of `decoding`, such as num_beams=4; see docs/configuration.md.

        Raises:
          InputError: the model has another head, a text to continue is too long, or an option is
            invalid.
        """
        return add_options(texts, options, DecodingOptions, _TEXT)

    parse_lines = staticmethod(parse_text_lines)

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the key of the text, and the options."""
        return {_TEXT, *option_names(DecodingOptions)}

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterable[HostBatch], Context]:
        """Return the batches of inputs that share `program_options`."""
        options = [input_options(item, self.objective.decoding_options) for item in inputs]
        texts = [self.text_of(item) for item in inputs]
        prompts = [
            self.encode_prompt(item.location, text)
            for item, text in zip(inputs, texts, strict=True)
        ]
        ids = [np.array(prompt, np.int32) for prompt, _ in prompts]
        limits = [
            self._max_target_tokens(item.location, len(source), item_options)
            for item, source, item_options in zip(inputs, ids, options, strict=True)
        ]
        num_devices = self.objective.batch_size_multiple
        sources = SourceBatches(ids, limits, self.max_input_tokens, options, num_devices)
        tokenizer = self.tokenizer
        decoding = sources.decoding(len(tokenizer.tokens), tokenizer.sep_id, tokenizer.mask_id)
        return sources, Context(texts, sources, decoding, [lost for _, lost in prompts])

    def _max_target_tokens(self, location: str, num_tokens: int, options: DecodingOptions) -> int:
        """Return the maximal tokens of a target, which may end at the model's last position.

        Raises:
          InputError: the model has too few positions for `min_new_tokens` or any `max_new_tokens`.
        """
        model = self.config.model
        free = positions = model.max_position_embeddings
        if not model.has_cross_attention:  # else the target has positions of its own
            free -= num_tokens
        for name, fits in (("min_new_tokens", free - 1), ("max_new_tokens", positions)):
            if (value := getattr(options, name)) > fits:
                raise InputError(
                    f"{location}: {name}={value}: the text has {num_tokens} tokens and the model "
                    f"{positions} positions. Use at most {fits}."
                )
        return min(options.max_new_tokens, free)

    def text_of(self, item: PredictInput) -> str:
        """Return the text of an input.

        Raises:
          InputError: the input has none.
        """
        content = item.content
        text = content.get(_TEXT) if isinstance(content, Mapping) else content
        if not isinstance(text, str):
            raise InputError(f"{item.location}: {_TEXT!r} is {text!r}. Give a text.")
        return text

    def encode_prompt(self, location: str, text: str) -> tuple[list[int], bool]:
        """Return the token ids after which the model generates, and whether the text lost some."""
        ids = [self.tokenizer.cls_id, *self.tokenizer.encode(text)]
        check_num_tokens(location, len(ids), self.max_input_tokens - 1)
        return ids, False

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Return texts with the generated ones."""
        options = context.decoding.options
        shows_all = return_all_scores or options.num_return_sequences > 1
        answers: list[dict[str, Any]] = [{}] * len(context.texts)
        numbers = iter(context.sources.order)
        for batch in outputs:
            arrays = (batch[f"target_{name}"] for name in ("ids", "lengths", "scores"))
            for rows in zip(*arrays, strict=True):
                number = next(numbers)
                sequences = [
                    {
                        "generated_text": self._decode(ids[:length].tolist()),
                        "score": round(float(score), 6),
                    }
                    for ids, length, score in zip(*rows, strict=True)
                    if length  # a search may find fewer hypotheses
                ]
                answer = {"text": context.texts[number], **sequences[0]}
                del answer["score"]
                answer |= {"sequences": sequences} if shows_all else {}
                answers[number] = answer | truncation_mark(context.truncated[number])
        return iter(answers)

    def predict(
        self, run: RunFunction, inputs: Sequence[PredictInput], return_all_scores: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Return the generated texts, those of inputs that share a program together."""
        groups: dict[DecodingOptions, list[int]] = {}
        for number, item in enumerate(inputs):
            options = input_options(item, self.objective.decoding_options)
            groups.setdefault(program_options(options), []).append(number)
        prepared = [
            (numbers, *self.preprocess([inputs[number] for number in numbers]))
            for numbers in groups.values()
        ]
        answers: list[dict[str, Any]] = [{}] * len(inputs)
        for numbers, batches, context in prepared:
            outputs = run(batches, context.decoding)
            generated = self.postprocess(context, outputs, return_all_scores)
            for number, answer in zip(numbers, generated, strict=True):
                answers[number] = answer
        return iter(answers)

    def decoding(self, context: Context) -> Decoding:
        """Return the constants of the program that computes the batches of `preprocess`."""
        return context.decoding

    def sample_input(self, text: str = "The capital of France is", word: str = "") -> Content:
        """Return the beginning of a text."""
        return text

    def form_fields(self) -> Sequence[FormField]:
        """Return text boxes for the text and the options that users change most."""
        sample = self.sample_input()
        assert isinstance(sample, str)
        options = self.config.decoding
        return [
            FormField(_TEXT, "Text", sample, 5),
            *option_fields(options, ("num_beams", "num_return_sequences", "do_sample", "seed")),
        ]

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the text with its continuation marked."""
        text = answer["text"]
        blocks = []
        for generated in self._texts_of(answer):
            whole = f"{text} {generated}"
            blocks.append(text_block(whole, [(len(text) + 1, len(whole), "")]))
        return blocks

    @staticmethod
    def _texts_of(answer: Mapping[str, Any]) -> list[str]:
        """Return the generated texts of an answer, best first."""
        sequences = answer.get("sequences", [answer])
        return [sequence["generated_text"] for sequence in sequences]

    def _decode(self, ids: list[int]) -> str:
        is_complete = bool(ids) and ids[-1] == self.tokenizer.sep_id
        return self.tokenizer.decode(ids[:-1] if is_complete else ids)
