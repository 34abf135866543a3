"""Retrieval data sets in the layout of BEIR: documents, queries, and judgments of a split.

A directory holds `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv` (Thakur et al. 2021).
"""

import dataclasses
import logging
from collections.abc import Mapping, Sequence

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.table import TableRow, check_unique_ids, read_table
from data_pipelines.vocabulary.basic_tokenization import is_blank

CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER = "corpus.jsonl", "queries.jsonl", "qrels"
_QRELS_COLUMNS = ("query-id", "corpus-id", "score")
_log = logging.getLogger("data_pipelines")

Qrels = Mapping[str, Mapping[str, int]]  # query id -> document id -> grade of relevance


@dataclasses.dataclass(frozen=True)
class RetrievalDataset:
    """Documents, the judged queries of a split, and the judgments.

    Attributes:
      name: directory of the data set.
      document_ids: unique ids of the documents.
      documents: title and text of each document, joined by a space.
      query_ids: unique ids of the queries that have a judgment, in the order of their file.
      queries: text of each query.
      qrels: grades of the judged documents of each query; from 1 on they are relevant.
    """

    name: str
    document_ids: list[str]
    documents: list[str]
    query_ids: list[str]
    queries: list[str]
    qrels: Qrels

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.queries)

    @property
    def all_texts(self) -> list[str]:
        """All queries, then all documents."""
        return self.queries + self.documents

    def check_top_k(self, top_k: int, field: str) -> None:
        """Raise InputError, naming `field`, if a query has fewer documents to rank than `top_k`.

        A document that has the id of a query is not ranked for it, as in BEIR.
        """
        count = len(self.document_ids)
        own = " but the one with a query's id" if {*self.query_ids} & {*self.document_ids} else ""
        count -= bool(own)
        if top_k > count:
            raise InputError(
                f"{field}={top_k}: {self.name} has {count} documents{own}. Use at most {count}."
            )


def is_retrieval_directory(path: epath.Path) -> bool:
    """Return whether a directory has a file of BEIR's layout."""
    names = (CORPUS_FILE, QUERIES_FILE, QRELS_FOLDER)
    return path.is_dir() and any((path / name).exists() for name in names)


def read_retrieval_dataset(directory: epath.Path, split: str) -> RetrievalDataset:
    """Read the documents, the queries of a split and their judgments.

    Args:
      directory: directory of the data set.
      split: name of a file in `qrels`, such as "test".

    Raises:
      InputError: a file is missing, empty or has other columns; an id is repeated, has a space or
        is judged without being in its file; a grade is no whole number, or none is positive.
    """
    qrels_file = _find_qrels(directory, split)
    for name in (CORPUS_FILE, QUERIES_FILE):
        if not (directory / name).exists():
            raise InputError(
                f"{directory / name}: no such file. A retrieval data set has {CORPUS_FILE}, "
                f"{QUERIES_FILE} and {QRELS_FOLDER}/SPLIT.tsv: add it."
            )
    corpus, queries = (read_table(directory / name) for name in (CORPUS_FILE, QUERIES_FILE))
    document_ids, query_ids = _read_ids(corpus, "document"), _read_ids(queries, "query")
    qrels = _read_qrels(read_table(qrels_file), {*query_ids}, {*document_ids})
    if not any(grade > 0 for grades in qrels.values() for grade in grades.values()):
        raise InputError(
            f"{qrels_file}: no document has a positive score. Give some relevant ones."
        )
    judged = [i for i, name in enumerate(query_ids) if name in qrels]
    if len(judged) < len(query_ids):
        _log.info("%s: judges %d of %d queries.", qrels_file, len(judged), len(query_ids))
    return RetrievalDataset(
        str(directory),
        document_ids,
        [_document_text(row) for row in corpus],
        [query_ids[i] for i in judged],
        [queries[i].text(("text",)) for i in judged],
        qrels,
    )


def _find_qrels(directory: epath.Path, split: str) -> epath.Path:
    path = directory / QRELS_FOLDER / f"{split}.tsv"
    if not path.exists():
        splits = sorted(file.stem for file in (directory / QRELS_FOLDER).glob("*.tsv"))
        fix = f"Name another split: {', '.join(splits)}" if splits else "Add it"
        raise InputError(f"{path}: no such file. {fix}.")
    return path


def _read_ids(rows: Sequence[TableRow], unit: str) -> list[str]:
    ids = [row.text(("_id",)) for row in rows]
    locations = [row.location for row in rows]
    for name, location in zip(ids, locations, strict=True):
        if len(name.split()) > 1:
            raise InputError(
                f"{location}: _id {name!r} has a space, which separates the columns of a run file. "
                "Write another character."
            )
    check_unique_ids(ids, locations, unit)
    return ids


def _document_text(row: TableRow) -> str:
    """Return the title and the text of a document as BEIR joins them; both may be empty."""
    title, text = row.values.get("title") or "", row.value("text")
    for column, value in (("title", title), ("text", text)):
        if not isinstance(value, str):
            raise InputError(
                f"{row.location}: column {column!r} is {value!r}, not text. Fix the row."
            )
    return text.strip() if is_blank(title) else f"{title} {text}".strip()


def _read_qrels(
    rows: Sequence[TableRow], query_ids: set[str], document_ids: set[str]
) -> dict[str, dict[str, int]]:
    qrels: dict[str, dict[str, int]] = {}
    for row in rows:
        query, document, text = (row.text((column,)) for column in _QRELS_COLUMNS)
        for name, known, file in (
            (query, query_ids, QUERIES_FILE),
            (document, document_ids, CORPUS_FILE),
        ):
            if name not in known:
                raise InputError(
                    f"{row.location}: {name!r} is no _id in {file}. Remove the row, or add it."
                )
        try:
            grade = int(text)
        except ValueError:
            raise InputError(
                f"{row.location}: score {text!r} is no whole number. Write 1 for relevant, 0 for "
                "not."
            ) from None
        grades = qrels.setdefault(query, {})
        if document in grades:
            raise InputError(
                f"{row.location}: query {query!r} has document {document!r} twice. Remove a row."
            )
        grades[document] = grade
    return qrels
