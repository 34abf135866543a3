"""Run files of retrieval: the ranked documents of each query, in the format of TREC.

A line has a query id, `Q0`, a document id, a rank, a score and the name of the system.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import CORPUS_FILE, RetrievalDataset
from data_pipelines.paths import check_file
from data_pipelines.text.lines import read_lines

_log = logging.getLogger("data_pipelines")
RUN_FILE = "predictions.trec"
_COLUMNS = "QUERY Q0 DOCUMENT RANK SCORE NAME"

Ranking = Sequence[tuple[str, float]]  # document ids and scores, the best first
Run = Mapping[str, Ranking]  # by query id


def rank(scores: Mapping[str, float], top_k: int | None = None) -> Ranking:
    """Return the documents with the highest scores, which are compared in float32.

    Of equal scores the larger id comes first, as in trec_eval, which reads float32 and ignores the
    ranks in a file.

    Args:
      scores: score of each document.
      top_k: number of documents to return; None for all.
    """

    def key(item: tuple[str, float]) -> tuple[float, bytes]:
        return float(np.float32(item[1])), item[0].encode(errors="surrogatepass")

    return sorted(scores.items(), key=key, reverse=True)[:top_k]


def format_run(run: Run, name: str = "bertjax") -> str:
    """Return the content of a run file, with the shortest decimals that identify each float32."""
    return "".join(
        f"{query} Q0 {document} {position} {np.float32(score)!s} {name}\n"
        for query, ranking in run.items()
        for position, (document, score) in enumerate(ranking, 1)
    )


def read_run(path: epath.PathLike, data: RetrievalDataset) -> dict[str, Ranking]:
    """Read a run file; its scores alone decide the order, see `rank`.

    Queries that `data` does not judge are left out, and those without documents are counted.

    Raises:
      InputError: the file does not exist; see also `parse_run`.
    """
    path = check_file(path)
    return parse_run(str(path), read_lines(path), data)


def parse_run(name: str, lines: Iterable[str], data: RetrievalDataset) -> dict[str, Ranking]:
    """Return the run in some lines; see `read_run`.

    Raises:
      InputError: a line has other columns, a document is not in the corpus or repeated, or no query
        is that of the data.
    """
    documents, judged = {*data.document_ids}, {*data.query_ids}
    scores: dict[str, dict[str, float]] = {}
    for number, line in enumerate(lines, 1):
        parts = line.split()
        if not parts:
            continue
        location = f"{name}:{number}"
        if len(parts) != 6:
            raise InputError(f"{location}: {len(parts)} columns. Write {_COLUMNS}.")
        query, _, document, _, text, _ = parts
        score = _read_score(location, text)
        if query not in judged:
            continue
        if document not in documents:
            raise InputError(
                f"{location}: document {document!r} is no _id in {data.name}/{CORPUS_FILE}. Name "
                "the data set of this run."
            )
        found = scores.setdefault(query, {})
        if document in found:
            raise InputError(
                f"{location}: query {query!r} has document {document!r} twice. Remove a line."
            )
        found[document] = score
    if not scores:
        raise InputError(
            f"{name}: has no query that {data.name} judges. Name the data set and the split of "
            "this run."
        )
    if missing := len(data) - len(scores):
        _log.warning(
            "%s: has no documents for %d of %d queries, whose metrics are 0.",
            name,
            missing,
            len(data),
        )
    return {query: rank(scores[query]) for query in data.query_ids if query in scores}


def _read_score(location: str, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise InputError(f"{location}: score {text!r} is no finite number. Write {_COLUMNS}.")
    return score
