"""Embeddings by sentence-transformers: the peer's side of `embeddings_peer`.

    PYTHON experiments/bench/peers/torch_embeddings.py DIR MODEL CORES

Trains after DIR/recipe.json and evaluates; writes DIR/output.json. The scores lack nDCG if the
grades of relevant documents differ, as the evaluator ignores grades.
"""

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from experiments.bench.peers.torch_finetuning import TrainingInterval
from experiments.bench.peers.torch_pretraining import parameter_groups


def open_model(recipe: dict[str, Any], init: str) -> Any:
    """Return the model, its highest layers drawn anew."""
    import torch
    from sentence_transformers import SentenceTransformer

    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    options = {name: recipe[name] for name in names}
    model = SentenceTransformer(init, device="cpu", config_kwargs=options).float()
    model.max_seq_length = recipe["max_seq_length"]
    layers = model[0].auto_model.encoder.layer
    for layer in layers[len(layers) - recipe["reinit_layers"] :]:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=recipe["initializer_range"])
                torch.nn.init.zeros_(module.bias)
            elif isinstance(module, torch.nn.LayerNorm):
                module.reset_parameters()
    return model


def make_loss(recipe: dict[str, Any], model: Any) -> Any:
    """Return the loss module."""
    from sentence_transformers import losses

    classes = {
        "multiple_negatives_ranking": losses.MultipleNegativesRankingLoss,
        "cosent": losses.CoSENTLoss,
    }
    return classes[recipe["loss"]](model, scale=recipe["scale"])


def train(recipe: dict[str, Any], model: Any) -> list[TrainingInterval]:
    """Train the model; return the mean losses and the examples per second of intervals."""
    import torch

    loss_module = make_loss(recipe, model)
    groups = parameter_groups(model, recipe["weight_decay"])
    betas = recipe["b1"], recipe["b2"]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=recipe["eps"], fused=True)
    rates = recipe["learning_rates"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rates.__getitem__)
    steps = []
    for rows in recipe["steps"]:
        columns = zip(*(recipe["texts"][row] for row in rows), strict=True)
        labels = torch.tensor([recipe["scores"][row] for row in rows]) if recipe["scores"] else None
        steps.append(([model.tokenize(list(column)) for column in columns], labels))
    intervals: list[TrainingInterval] = []
    values: list[float] = []
    model.train()
    began = time.perf_counter()
    for step, (features, labels) in enumerate(steps, 1):
        loss = loss_module(features, labels)
        loss.backward()
        values.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe["max_grad_norm"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % recipe["log_every"] == 0 or step == len(steps):
            seconds, began = time.perf_counter() - began, time.perf_counter()
            rate = len(values) * recipe["batch_size"] / seconds
            intervals.append([step, statistics.fmean(values), rate])
            print("step {:g}  loss {:.7g}  {:.2f} examples/s".format(*intervals[-1]), flush=True)
            values.clear()
    return intervals


def evaluate(recipe: dict[str, Any], model: Any) -> dict[str, float]:
    """Return the scores under the names of bertjax."""
    import numpy as np
    import scipy.stats
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    model.eval()
    if pairs := recipe.get("pairs"):
        first, second = (
            model.encode(list(texts), normalize_embeddings=True)
            for texts in zip(*pairs["texts"], strict=True)
        )
        cosines = np.sum(first * second, axis=1)
        return {"spearman": float(scipy.stats.spearmanr(cosines, pairs["scores"]).statistic)}
    data = recipe["retrieval"]
    k = data["top_k"]
    relevant = {
        query: {document for document, grade in grades.items() if grade > 0}
        for query, grades in data["qrels"].items()
    }
    evaluator = InformationRetrievalEvaluator(
        data["queries"],
        data["documents"],
        relevant,
        mrr_at_k=[10],
        ndcg_at_k=[10],
        accuracy_at_k=[1],
        precision_recall_at_k=[1, 10, k],
        map_at_k=[k],
        write_csv=False,
        score_functions={"cosine": model.similarity},
    )
    scores = evaluator(model)
    names = {"mrr_10": "mrr@10", "ndcg_10": "ndcg@10", f"map_{k}": f"map@{k}"}
    names |= {f"recall_{n}": f"recall@{n}" for n in (1, 10, k)}
    means = {ours: float(scores[f"cosine_{theirs}"]) for ours, theirs in names.items()}
    return comparable_scores(means, data["qrels"])


def comparable_scores(
    means: Mapping[str, float], qrels: Mapping[str, Mapping[str, int]]
) -> dict[str, float]:
    """Return the scores that bertjax defines equally, as means over all judged queries.

    Args:
      means: means over the queries with relevant documents.
      qrels: grades of the documents of each judged query.
    """
    relevant = [[grade for grade in grades.values() if grade > 0] for grades in qrels.values()]
    fraction = sum(map(bool, relevant)) / len(relevant)
    is_graded = len({grade for grades in relevant for grade in grades}) > 1
    return {
        name: fraction * mean
        for name, mean in means.items()
        if not (is_graded and name.startswith("ndcg"))
    }


def main() -> None:
    import torch

    directory, init, cores = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    recipe = json.loads((directory / "recipe.json").read_text())
    torch.manual_seed(recipe["seed"])
    torch.set_num_threads(cores)
    model = open_model(recipe, init)
    intervals = train(recipe, model) if recipe["steps"] else []
    output = {"scores": evaluate(recipe, model), "intervals": intervals}
    (directory / "output.json").write_text(json.dumps(output))


if __name__ == "__main__":
    main()
