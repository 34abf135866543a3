"""Reranking: a classifier of pairs scores the first documents of each query."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from etils import epath

from bertjax.formats.detection import find_format
from bertjax.formats.loading import find_bert_config
from bertjax.formats.sentence_transformers import find_pooling_config
from bertjax.inference.predictor import Predictor
from bertjax.tasks.embeddings.retrieval.evaluation import check_top_k
from bertjax.tasks.embeddings.retrieval.metrics import ranking_metrics
from bertjax.tasks.sequence_classification.pipeline import SequenceClassificationPipeline
from bertjax.training.evaluator import evaluate
from bertjax.training.prediction.progress import progress_reporter
from bertjax.workdir.run_config import make_run_config
from data_pipelines.errors import InputError
from data_pipelines.finetuning.embeddings.beir import RetrievalDataset
from data_pipelines.finetuning.embeddings.run_files import (
    RUN_FILE,
    Ranking,
    Run,
    format_run,
    parse_run,
    rank,
)
from data_pipelines.finetuning.sequence_classification import SequenceClassificationDataset

_PAIRS_PER_CALL = 4096
_EVAL_SEQUENCES = 128  # of a batch
_RELEVANT_LABELS: Mapping[tuple[str, ...], str] = {
    ("0", "1"): "1",
    ("LABEL_0", "LABEL_1"): "LABEL_1",
}


ScorePairs = Callable[[SequenceClassificationDataset], np.ndarray]


class Reranking(NamedTuple):
    """A first stage and its documents in the order of a reranker.

    Attributes:
      first_stage: metrics of the first stage, see `ranking_metrics`.
      scores: metrics of the reranked documents.
      files: name -> content of the run file.
    """

    first_stage: dict[str, float]
    scores: dict[str, float]
    files: Mapping[str, str]


def search_documents(
    retriever: epath.PathLike, data: RetrievalDataset, qrels: str, top_k: int
) -> dict[str, Ranking]:
    """Return the documents that a model of embeddings ranks first.

    Args:
      retriever: a run of `embeddings`, or a model of sentence-transformers.
      data: the data set.
      qrels: name of its split.
      top_k: documents of each query.

    Raises:
      InputError: there is no such model, or it has no pooling.
    """
    pooling = find_pooling_config(retriever)
    if pooling is None:
        raise InputError(
            f"--retriever={retriever}: no model of embeddings. Name a run of embeddings, or a "
            "model of sentence-transformers."
        )
    fields: dict[str, object] = {"data.dir": data.name, "data.qrels": qrels, "data.top_k": top_k}
    source = None
    if find_format(pooling.model) == "bertjax":  # the rest is that of the run
        # Gradients of large batches are cached; an evaluation needs no large one.
        fields |= {"batch_size": _EVAL_SEQUENCES, "gradient_accumulation_steps": 1}
        names = ("train_file", "eval_file", "vocab", "texts")
        fields |= {f"data.{name}": "" for name in names}
        # Retrieval needs neither the user's functions nor a teacher, which may not be here.
        unused = ("loss", "metrics", "distill.teacher", "distill.embeddings")
        fields |= dict.fromkeys(unused, "")
    else:
        source = "embeddings"
        names = ("pooling", "normalize", "query_prompt", "document_prompt")
        fields |= {f"data.{name}": getattr(pooling, name) for name in names}
        positions = find_bert_config(pooling.model).max_position_embeddings
        fields["max_seq_length"] = min(pooling.max_seq_length or positions, positions)
    overrides = {
        name: repr(value) if isinstance(value, str) else value for name, value in fields.items()
    }
    config = make_run_config(source, overrides, checkpoint=pooling.model)
    lines = evaluate(config, pooling.model).files[RUN_FILE].splitlines()
    return parse_run(str(retriever), lines, data)


def rerank(
    score_pairs: ScorePairs,
    data: RetrievalDataset,
    run: Run,
    top_k: int,
    report_progress: Callable[[str], None] | None = None,
) -> Reranking:
    """Score the first documents of each query, and return both orders with their metrics.

    Args:
      score_pairs: function of `open_reranker`.
      data: queries, documents and judgments.
      run: first stage.
      top_k: documents of each query that are scored; others are dropped.
      report_progress: takes a line of progress every few seconds.

    Raises:
      InputError: the run has fewer documents.
    """
    check_top_k(top_k, data, "--top-k")
    if top_k > (longest := max(map(len, run.values()))):
        raise InputError(
            f"--top-k={top_k}: the run has at most {longest} documents of a query. Use at most "
            f"{longest}."
        )
    first = {query: ranking[:top_k] for query, ranking in run.items()}
    documents = dict(zip(data.document_ids, data.documents, strict=True))
    queries = dict(zip(data.query_ids, data.queries, strict=True))
    pairs = [(query, document) for query, ranking in first.items() for document, _ in ranking]
    report = progress_reporter("reranking", report_progress)
    scores: dict[str, dict[str, float]] = {query: {} for query in first}
    for start in range(0, len(pairs), _PAIRS_PER_CALL):
        part = pairs[start : start + _PAIRS_PER_CALL]
        dataset = SequenceClassificationDataset(
            f"pairs {start + 1:,} to {start + len(part):,}",
            [],
            [queries[query] for query, _ in part],
            [documents[document] for _, document in part],
        )
        for (query, document), score in zip(part, score_pairs(dataset).tolist(), strict=True):
            scores[query][document] = score
        report(f"{start + len(part):,} of {len(pairs):,} pairs")
    reranked = {query: rank(scores[query]) for query in first}
    return Reranking(
        ranking_metrics(first, data.qrels, top_k),
        ranking_metrics(reranked, data.qrels, top_k),
        {RUN_FILE: format_run(reranked)},
    )


def open_reranker(checkpoint: epath.PathLike, relevant_label: str = "") -> ScorePairs:
    """Return a function from pairs to scores, float64 [N].

    The query is the first text of a pair. The score is the number of a regression, or the logit of
    the relevant label minus that of the other one.

    Args:
      checkpoint: model of sequence classification.
      relevant_label: one of the two labels; "" for the second of 0 and 1.

    Raises:
      InputError: the model does not score pairs, or the label is unknown.
    """
    predictor = Predictor(checkpoint)
    pipeline, path = predictor.pipeline, predictor.path
    if not isinstance(pipeline, SequenceClassificationPipeline):
        raise InputError(
            f"{path}: the model {pipeline.description}. Name a model of sequence classification."
        )
    data = pipeline.config.data
    if (data["dir"] or data["train_file"]) and not (data["text_pair"] or data["glue"]):
        raise InputError(
            f"{path}: the model reads one text. Train it on pairs of query and document, with "
            "data.text_pair."
        )
    if pipeline.objective.problem_type == "regression":
        if relevant_label:
            raise InputError(
                f"--relevant-label={relevant_label}: the model predicts a number. Leave it out."
            )
        return lambda dataset: pipeline.predict_dataset(predictor.run, dataset)
    labels = pipeline.labels
    if pipeline.objective.problem_type != "single_label_classification" or len(labels) != 2:
        raise InputError(
            f"{path}: the model has {len(labels)} labels. Use one of two classes, or a regression."
        )
    relevant = relevant_label or _RELEVANT_LABELS.get(labels, "")
    if relevant not in labels:
        raise InputError(
            f"--relevant-label={relevant_label!r}: the labels are {labels[0]} and {labels[1]}. "
            "Name the one of relevant documents."
        )
    index = labels.index(relevant)

    def score(dataset: SequenceClassificationDataset) -> np.ndarray:
        probabilities = pipeline.predict_dataset(predictor.run, dataset)
        logs = np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))
        difference: np.ndarray = logs[:, index] - logs[:, 1 - index]
        return difference

    return score
