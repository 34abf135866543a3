"""Pipeline that generates target texts from source texts."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.tasks.generation.continuation import TextGenerationPipeline
from bertjax.tasks.generation.objective import GenerationObjective
from bertjax.tasks.pipeline import Content, Pipeline, PredictInput, text_block
from data_pipelines.finetuning.generation import encode_source
from data_pipelines.finetuning.table import TableRow


class GenerationPipeline(TextGenerationPipeline):
    """Greedy generation of the target of a source, of at most `data.max_target_length` tokens."""

    description = "generates a text from a text"
    objective: GenerationObjective

    parse_lines = staticmethod(Pipeline.parse_lines)

    @property
    def max_input_tokens(self) -> int:
        """Longest sequence that the model is trained on."""
        return self.config.max_seq_length

    @property
    def max_new_tokens(self) -> int:
        """Maximal tokens of a target without its [SEP]."""
        return self.objective.max_target_length - 1

    def text_of(self, item: PredictInput) -> str:
        """Return the source: the input, or its column `data.source`."""
        if isinstance(item.content, str):
            return item.content
        row = TableRow(item.location, dict(item.content))
        return row.text((self.config.data["source"],))

    def encode_prompt(self, location: str, text: str) -> list[int]:
        """Return the token ids of a source, without its end if it is too long."""
        ids, _ = encode_source(text, self.tokenizer, self.objective.max_source_length)
        return ids

    def prefix_lengths(self, prompt_lengths: Sequence[int]) -> Sequence[int]:
        """Return the tokens of each source."""
        return prompt_lengths

    def sample_input(
        self, text: str = "Paris is the capital of France.", word: str = ""
    ) -> Content:
        """Return a source."""
        return text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the target."""
        return [text_block(answer["generated_text"])]
