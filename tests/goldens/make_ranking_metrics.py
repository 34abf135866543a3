"""Make ranking_metrics.json: what trec_eval computes for random judgments and runs.

python tests/goldens/make_ranking_metrics.py  # where pytrec-eval-terrier 0.5.11 is

The reciprocal rank has no cutoff there, so that of the first ten documents is computed.
"""

import json
import pathlib
import random
import statistics

import pytrec_eval

TOP_K, NUM_QUERIES, NUM_DOCUMENTS = 20, 30, 60


def main() -> None:
    """Write the file."""
    draw = random.Random(0)
    documents = [f"d{number}" for number in range(NUM_DOCUMENTS)]
    cases = []
    for grades in ([1], [0, 1], [-1, 0, 1, 2, 3]):
        qrels = {
            f"q{number}": {
                name: draw.choice(grades) for name in draw.sample(documents, draw.randrange(1, 30))
            }
            for number in range(NUM_QUERIES)
        }
        run = {  # half of the scores are equal
            query: {
                name: draw.choice([0.5, draw.random()])
                for name in draw.sample(documents, draw.choice([3, TOP_K, TOP_K + 10]))
            }
            for query in qrels
        }
        cases.append({"qrels": qrels, "run": run, "metrics": evaluate(qrels, run)})
    path = pathlib.Path(__file__).with_name("ranking_metrics.json")
    path.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


def evaluate(qrels: dict, run: dict) -> dict[str, float]:
    """Return the means of trec_eval's metrics under the names of bertjax."""
    names = {f"recall_{k}": f"recall.{k}" for k in (1, 10, TOP_K)}
    names |= {"ndcg_10": "ndcg_cut.10", f"map_{TOP_K}": f"map_cut.{TOP_K}"}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, {*names.values()})
    per_query = evaluator.evaluate(run).values()
    metrics = {
        ours: statistics.fmean(values[theirs.replace(".", "_")] for values in per_query)
        for ours, theirs in names.items()
    }
    first = {}
    for query, scores in run.items():
        best = sorted(scores, key=lambda name: (scores[name], name), reverse=True)[:10]
        first[query] = {name: scores[name] for name in best}
    ranks = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first)
    return metrics | {"mrr_10": statistics.fmean(v["recip_rank"] for v in ranks.values())}


if __name__ == "__main__":
    main()
