"""Pipeline that finds the entities of a text, or tags given words."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.tasks.pipeline import (
    Content,
    HostBatch,
    Outputs,
    Pipeline,
    PredictInput,
    round_scores,
    text_block,
)
from bertjax.tasks.token_classification.evaluation import TokenClassificationEvalSet
from bertjax.tasks.token_classification.objective import TokenClassificationObjective
from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow, is_table, read_table
from data_pipelines.finetuning.tag_schemes import entities, labels_to_tags
from data_pipelines.finetuning.token_classification.conll import is_conll, parse_conll
from data_pipelines.finetuning.token_classification.dataset import TokenClassificationDataset
from data_pipelines.finetuning.token_classification.running_text import word_offsets
from data_pipelines.finetuning.token_classification.sentences import (
    TaggedSentence,
    sentences_from_rows,
)
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines
from data_pipelines.vocabulary.tokenization import Tokenizer


class ParsedWords(NamedTuple):
    """Words of an input.

    Attributes:
      text: running text; None if the input is a list of words.
      sentence: its words.
      offsets: start (inclusive) and end (exclusive) of each word in the text.
    """

    text: str | None
    sentence: TaggedSentence
    offsets: list[tuple[int, int]]


Context = tuple[list[ParsedWords], TokenClassificationEvalSet]


class TokenClassificationPipeline(Pipeline[Context]):
    """Entities of a text, or tags of given words."""

    method = "tag"
    description = "tags the words of texts"
    objective: TokenClassificationObjective

    @staticmethod
    def parse_arguments(texts: Content | Iterable[Content]) -> Any:
        """Return the entities of a text: {"text", "entities"}.

        An entity is {"entity_group", "score", "word", "start", "end"}. Its score is that of its
        least probable word, and `start` and `end` are characters of the text. For an input
        {"words": [...]} the answer is {"words", "tags"}. `return_all_scores` adds "scores", the
        probability of each tag for each word.

        If the labels of a published model have no scheme such as BIO, adjacent words of one label
        form an entity where some words are O. Otherwise each word does, as for parts of speech.

        Args:
          texts: a text, or an object with "text" or "words", or several.

        Raises:
          InputError: the model has another head, or a text is empty.
        """
        return texts

    @staticmethod
    def parse_lines(lines: Iterable[str], file_name: str = "") -> Iterable[PredictInput]:
        """Return the inputs in lines, or the sentences of a CoNLL file."""
        if not (file_name and is_conll(file_name)):
            return Pipeline.parse_lines(lines, file_name)
        return (
            PredictInput(sentence.locations[0], {"words": [*sentence.words]})
            for sentence in parse_conll(file_name, lines, has_tags=False)
        )

    def known_keys(self, content: Mapping[str, Any]) -> Collection[str]:
        """Return the key of a text; without one words have keys of many layouts."""
        return {"text"} if "text" in content else content.keys()

    def preprocess(self, inputs: Sequence[PredictInput]) -> tuple[Iterator[HostBatch], Context]:
        """Return packed batches of the words."""
        parsed = [_parse_input(*item, self.tokenizer) for item in inputs]
        # Each input is a document, so that no context comes from another input.
        sentences = [
            dataclasses.replace(words.sentence, document=number)
            for number, words in enumerate(parsed)
        ]
        data = TokenClassificationDataset("input", sentences)
        eval_set = TokenClassificationEvalSet(
            "input", data, self.tokenizer, self.objective, self.labels
        )
        return eval_set.batches(), (parsed, eval_set)

    def postprocess(
        self, context: Context, outputs: Iterable[Outputs], return_all_scores: bool
    ) -> Iterator[dict[str, Any]]:
        """Yield the entities of each text, or the tags of its words."""
        inputs, eval_set = context
        scheme_tags = labels_to_tags(self.labels)
        for words, (tags, scores) in zip(inputs, eval_set.predictions(outputs), strict=True):
            answer: dict[str, Any] = {"words": list(words.sentence.words), "tags": tags}
            if words.text is not None:
                in_scheme = [scheme_tags[tag] for tag in tags]
                entity_records = _extract_entities(words.text, words.offsets, in_scheme, scores)
                answer = {"text": words.text, "entities": entity_records}
            if return_all_scores:
                answer["scores"] = [
                    dict(zip(self.labels, round_scores(word_scores), strict=True))
                    for word_scores in scores
                ]
            yield answer

    def sample_input(
        self, text: str = "Ada Lovelace wrote to Charles Babbage.", word: str = ""
    ) -> Content:
        """Return a text."""
        return text

    def display(self, content: Content, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the text with its entities marked."""
        if "entities" not in answer:
            return []
        spans = [(item["start"], item["end"], item["entity_group"]) for item in answer["entities"]]
        return [
            text_block(answer["text"], spans) if spans else text_block("No entities.", muted=True)
        ]


def read_sentences(path: epath.PathLike, tokenizer: Tokenizer) -> list[TaggedSentence]:
    """Return the sentences of a file without their tags, each a document of its own.

    Args:
      path: lines of text or JSON objects with "text" or "words", a table with such a column, or
        words in the columns of a CoNLL file.
      tokenizer: the model's tokenizer, whose added tokens are words of a text.

    Raises:
      InputError: the file is missing or empty, or a row has no words.
    """
    path = check_file(path)
    inputs: Iterable[PredictInput]
    if is_table(path):
        inputs = (PredictInput(row.location, row.values) for row in read_table(path))
    else:
        inputs = TokenClassificationPipeline.parse_lines(read_lines(path), str(path))
    try:
        sentences = [_parse_input(*item, tokenizer).sentence for item in inputs]
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(f"{path}: {error}") from error
    if not sentences:
        raise InputError(f"{path}: no sentences. Write some.")
    return [dataclasses.replace(item, document=i) for i, item in enumerate(sentences)]


def _parse_input(location: str, content: Content, tokenizer: Tokenizer) -> ParsedWords:
    if not isinstance(content, str) and "text" not in content:
        (sentence,) = sentences_from_rows([TableRow(location, dict(content))])
        return ParsedWords(None, dataclasses.replace(sentence, tags=None), [])
    text = content if isinstance(content, str) else content["text"]
    offsets = list(word_offsets(text, tokenizer)) if isinstance(text, str) else []
    if not offsets:
        raise InputError(f'{location}: "text" is {text!r}. Write some text, or a list "words".')
    words = [text[start:end] for start, end in offsets]
    return ParsedWords(text, TaggedSentence(words, None, [location] * len(words)), offsets)


def _extract_entities(
    text: str, offsets: Sequence[tuple[int, int]], tags: Sequence[str], scores: np.ndarray
) -> list[dict[str, Any]]:
    """Return the entities of a text; the score of one is that of its least probable word."""
    records = []
    for entity in entities(tags):
        start, end = offsets[entity.first][0], offsets[entity.last][1]
        score = scores[entity.first : entity.last + 1].max(axis=-1).min()
        records.append(
            {
                "entity_group": entity.type,
                "score": round(float(score), 6),
                "word": text[start:end],
                "start": start,
                "end": end,
            }
        )
    return records
