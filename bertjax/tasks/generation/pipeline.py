"""Pipeline that generates target texts from source texts."""

from collections.abc import Collection, Mapping
from typing import Any

from bertjax.tasks.generation.continuation import TextGenerationPipeline
from bertjax.tasks.generation.objective import GenerationObjective
from bertjax.tasks.pipeline import Content, Pipeline, PredictInput, text_block
from data_pipelines.finetuning.generation.pairs import encode_source
from data_pipelines.finetuning.table import TableRow


class GenerationPipeline(TextGenerationPipeline):
    """Generation of the target of a source, of at most `data.max_target_length` tokens."""

    description = "generates a text from a text"
    objective: GenerationObjective

    parse_lines = staticmethod(Pipeline.parse_lines)

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence that the model is trained on."""
        return self.config.max_seq_length

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the keys of a source, and the options."""
        return {self.config.data["source"], *super().known_keys(content)}

    def text_of(self, item: PredictInput) -> str:
        """Return the source: the input, its column `data.source`, or else its "text"."""
        if isinstance(item.content, str):
            return item.content
        column = self.config.data["source"]
        if column not in item.content and "text" in item.content:
            return super().text_of(item)
        return TableRow(item.location, dict(item.content)).text((column,))

    def encode_prompt(self, location: str, text: str) -> tuple[list[int], bool]:
        """Return the token ids of a source, and whether it lost its end."""
        return encode_source(text, self.tokenizer, self.objective.max_source_length)

    def sample_input(
        self, text: str = "Paris is the capital of France.", word: str = ""
    ) -> Content:
        """Return a source."""
        return text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the targets."""
        return [text_block(text) for text in self._texts_of(answer)]
