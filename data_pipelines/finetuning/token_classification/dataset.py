"""Data sets of tagged words, from files of any format."""

import collections
import dataclasses
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import LIST_SUFFIXES, TableRow, file_format, read_table
from data_pipelines.finetuning.tag_schemes import (
    IO,
    OUTSIDE,
    WORD_TAGS,
    brackets_to_tags,
    detect_scheme,
    entities,
    entities_to_tags,
    is_tag,
    join_tag,
    parse_tag,
    tag_style,
    to_standard_form,
)
from data_pipelines.finetuning.token_classification.conll import CONLL_SUFFIXES, parse_conll
from data_pipelines.finetuning.token_classification.json_rows import read_json_rows
from data_pipelines.finetuning.token_classification.sentences import (
    ANY_COLUMNS,
    ColumnNames,
    TaggedSentence,
    is_sentence_row,
    sentences_from_rows,
)
from data_pipelines.finetuning.token_classification.spans import sentences_from_spans
from data_pipelines.paths import check_file
from data_pipelines.text import arrow_tables
from data_pipelines.text.lines import read_lines
from data_pipelines.vocabulary.tokenization import Tokenizer

_log = logging.getLogger("data_pipelines")

TAGGED_SUFFIXES = (*CONLL_SUFFIXES[:3], ".txt", ".tsv", ".csv", *CONLL_SUFFIXES[3:], *LIST_SUFFIXES)


@dataclasses.dataclass(frozen=True)
class TokenClassificationDataset:
    """A data set with BIO tags."""

    name: str
    sentences: Sequence[TaggedSentence]

    @property
    def words(self) -> list[str]:
        """The words of all sentences."""
        return [word for sentence in self.sentences for word in sentence.words]

    @property
    def tags(self) -> list[str]:
        """The tags of all words."""
        return [tag for sentence in self.sentences for tag in sentence.tags or ()]


def read_tagged_file(
    path: epath.PathLike,
    fix_tags: bool = False,
    columns: ColumnNames = ANY_COLUMNS,
    load_tokenizer: Callable[[], Tokenizer] | None = None,
) -> TokenClassificationDataset:
    """Read a file of tagged sentences.

    Args:
      path: Parquet or Arrow by suffix, JSON by its first line, with columns "words" (or "tokens")
        and "tags" (or "labels", "ner_tags", "ner"), or with a text and its spans. Other files have
        one word per line; see `parse_conll`.
      fix_tags: accept tags that violate the scheme, as conlleval does, with a warning. An I that
        continues no entity begins one. Of overlapping spans the longest one counts.
      columns: columns of the words and the tags.
      load_tokenizer: returns the tokenizer, whose added tokens are words of a text with spans. It
        is called for such texts alone.

    Raises:
      InputError: the file has another format, a word has no tag, or tags violate the scheme.
    """
    path = check_file(path)
    if file_format(path) in arrow_tables.SUFFIXES:
        rows: list[TableRow] | None = read_table(path)
        tag_names = arrow_tables.read_class_names(path)
    else:
        lines = list(read_lines(path))
        rows, tag_names = read_json_rows(str(path), lines), {}
    sentences = None
    if rows is None:
        sentences = parse_conll(str(path), lines, columns)
    elif not is_sentence_row(rows[0], columns):
        sentences = sentences_from_spans(str(path), rows, columns, fix_tags, load_tokenizer)
    if sentences is None:
        sentences = sentences_from_rows(rows or (), columns, tag_names)
    return make_tagged_dataset(str(path), sentences, fix_tags)


def make_tagged_dataset(
    name: str, sentences: Sequence[TaggedSentence], fix_tags: bool = False
) -> TokenClassificationDataset:
    """Return the data set of the sentences; see `read_tagged_file`.

    Tags of entities are converted to BIO. Tags of single words stay as they are.
    """
    if not sentences:
        raise InputError(f"{name}: no sentences. Give a file with words and their tags.")
    untagged = next((sentence for sentence in sentences if sentence.tags is None), None)
    if untagged:
        raise InputError(
            f"{untagged.locations[0]}: words without tags. Give a file with words and their tags, "
            "in columns between tabs or spaces or in lists."
        )
    sentences = _replace_brackets(name, sentences)
    counts = collections.Counter(tag for sentence in sentences for tag in sentence.tags or ())
    style = tag_style(counts)
    _check_tags(sentences, counts, style)
    if style != "prefix" and (standard := to_standard_form(counts)):
        example = next(tag for tag in counts if standard[tag] not in (tag, OUTSIDE))
        _log.info("%s: read tags such as %r as %r.", name, example, standard[example])
        sentences, style = _replace_tags(sentences, standard), "prefix"
    elif style != "prefix":
        types = ", ".join([tag for tag, _ in counts.most_common() if tag != OUTSIDE][:3])
        if style == WORD_TAGS:
            _log.info("%s: tags of single words, such as %s, scored by accuracy.", name, types)
            return TokenClassificationDataset(name, sentences)
        _log.info("%s: entity types without prefix, such as %s.", name, types)
        standard = {tag: tag if tag == OUTSIDE else join_tag("I", tag) for tag in counts}
        sentences = _replace_tags(sentences, standard)
    for sentence in sentences:
        for tag, location in zip(sentence.tags or (), sentence.locations, strict=True):
            try:
                parse_tag(tag)
            except ValueError as error:
                raise InputError(f"{location}: {error}. Fix the tag.") from None
    tags = [sentence.tags or () for sentence in sentences]
    try:
        scheme, violations = detect_scheme(tags)
    except ValueError as error:
        raise InputError(f"{name}: {error}. Write all tags in one scheme.") from None
    if violations and not fix_tags:
        number, word = violations[0]
        raise InputError(
            f"{sentences[number].locations[word]}: tag {tags[number][word]!r} violates the scheme "
            f"of the file, {scheme} ({len(violations)} in all). Fix the tags, or read them as "
            "conlleval does with data.fix_tags=True."
        )
    if violations:
        _log.warning("%s: fixed %d tags that violate scheme %s.", name, len(violations), scheme)
    if scheme != "BIO":
        old_scheme = IO if style == IO else scheme
        _log.info("%s: converted tags from %s to BIO.", name, old_scheme)
    # Most sentences share their tags with others.
    bio_tags = {
        old: entities_to_tags(entities(old), len(old)) for old in dict.fromkeys(map(tuple, tags))
    }
    pairs = zip(sentences, tags, strict=True)
    converted = [
        dataclasses.replace(sentence, tags=[*bio_tags[tuple(old)]]) for sentence, old in pairs
    ]
    return TokenClassificationDataset(name, converted)


def _replace_tags(
    sentences: Sequence[TaggedSentence], replacements: Mapping[str, str]
) -> list[TaggedSentence]:
    return [
        dataclasses.replace(sentence, tags=[replacements[tag] for tag in sentence.tags or ()])
        for sentence in sentences
    ]


def _replace_brackets(name: str, sentences: Sequence[TaggedSentence]) -> Sequence[TaggedSentence]:
    """Return the sentences with BIO tags if all tags are brackets of CoNLL-2012."""
    if not any(tag == "*" for sentence in sentences for tag in sentence.tags or ()):
        return sentences
    result = []
    for sentence in sentences:
        tags = brackets_to_tags(sentence.tags or ())
        if tags is None:
            return sentences
        result.append(dataclasses.replace(sentence, tags=tags))
    _log.info("%s: converted tags from brackets to BIO.", name)
    return result


def _check_tags(sentences: Sequence[TaggedSentence], tags: Iterable[str], style: str) -> None:
    """Raise InputError if a tag is several, or one without a prefix a number or a placeholder."""
    problems = {"several tags": {tag for tag in tags if _is_several(tag, style)}}
    if style != "prefix":
        problems["a number"] = {tag for tag in tags if tag.removeprefix("-").isdecimal()}
        problems["no tag"] = {tag for tag in tags if tag in ("", "_")}
    for problem, found in problems.items():
        for sentence in sentences if found else ():
            for tag, location in zip(sentence.tags or (), sentence.locations, strict=True):
                if tag in found:
                    raise InputError(
                        f"{location}: tag {tag!r} is {problem}. Write the name of one tag for "
                        "each word, O outside of entities, or choose another column with "
                        "data.tag_column."
                    )


def _is_several(tag: str, style: str) -> bool:
    parts = tag.split()
    joined = re.split(r"[\s|,;]+", tag)  # of nested entities
    are_tags = all(is_tag(part) and part[1:2] in ("", "-") for part in joined)
    return (tag[:1] == "[" and len(tag) > 1) or (
        len(joined) > 1 and (are_tags or (len(parts) > 1 and style != "prefix"))
    )


def label_names(*datasets: TokenClassificationDataset) -> tuple[str, ...]:
    """Return "O" and the BIO tags of all entity types, sorted by type, or all tags of words.

    Raises:
      InputError: there are no entities.
    """
    tags = sorted({tag for data in datasets for tag in set(data.tags)})
    if tag_style(dict.fromkeys(tags, 1)) == WORD_TAGS:
        return tuple(tags)
    types = {parse_tag(tag)[1] for tag in tags if tag != OUTSIDE}
    if not types:
        raise InputError(f"{datasets[0].name}: all tags are O. Give data with entities.")
    return (OUTSIDE, *(join_tag(prefix, name) for name in sorted(types) for prefix in "BI"))
