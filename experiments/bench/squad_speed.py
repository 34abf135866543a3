"""How fast SQuAD is prepared, evaluated and decoded, beside `transformers`, on the same CPU.

    python -m experiments.bench.squad_speed --peer-python PYTHON --init MODEL --data dev-v1.1.json

Features: from the questions of the file to windows with the characters of each piece, beside the
slow and the fast tokenizer of `transformers`, the way its own examples use them. Evaluation: from
windows to logits, of some questions of the file, beside PyTorch; ours decodes and scores too. The
peer pads batches to 384 pieces, as its examples do, or gets windows by length and pads each batch
to its longest. Decoding: from random logits of the whole file to answers. MODEL is a directory of
Hugging Face; precision is float32. PYTHON needs torch and transformers 4 (slow features are gone
from 5); it may be the interpreter of another environment.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench.alternating_runs import serve_measurements, take_turns

MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 384, 128, 64
BATCH = {"bertjax": 4, "PyTorch padded": 4, "PyTorch by length": 4}  # the fastest of each
TOKENIZERS = ["bertjax", "fast tokenizer", "slow tokenizer"]
EVALUATION = list(BATCH)


def bertjax_features(init: str, data: str) -> Callable[[], tuple[Any, ...]]:
    """A function that gives the questions of a file, their windows and their passages."""
    from data_pipelines.finetuning.squad import read_squad
    from data_pipelines.finetuning.windows import PassageCache, WindowOptions, make_windows
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer, questions = load_tokenizer(init), read_squad(data).questions
    options = WindowOptions(MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH)

    def work() -> tuple[Any, ...]:
        passages = PassageCache(tokenizer)
        return questions, make_windows(questions, tokenizer, options, passages), passages

    return work


def read_items(data: str) -> list[tuple[str, str, str]]:
    """Id, question and passage of each question in a file."""
    articles = json.loads(pathlib.Path(data).read_text(encoding="utf-8"))["data"]
    return [
        (item["id"], item["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def fast_features(init: str, data: str) -> Callable[[], object]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(init, use_fast=True)
    items = read_items(data)

    def work() -> object:
        return tokenizer(
            [question.lstrip() for _, question, _ in items],
            [passage for *_, passage in items],
            truncation="only_second",
            max_length=MAX_SEQ_LENGTH,
            doc_stride=DOC_STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )

    return work


def slow_features(init: str, data: str) -> Callable[[], object]:
    import transformers
    from transformers.data.processors.squad import (
        SquadExample,
        squad_convert_examples_to_features,
    )

    tokenizer = transformers.AutoTokenizer.from_pretrained(init, use_fast=False)
    examples = [SquadExample(*item, None, None, "") for item in read_items(data)]

    def work() -> object:
        settings = (tokenizer, MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH, False)
        return squad_convert_examples_to_features(examples, *settings, tqdm_enabled=False)

    return work


def bertjax_evaluation(init: str, data: str) -> Callable[[], object]:
    import jax

    from bertjax.config.loading import load_config
    from bertjax.formats.loading import find_bert_config
    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry
    from bertjax.training.evaluator import make_evaluator

    spec = f"{pathlib.Path(__file__).parents[1] / 'squad.py'}:version=1,init={init}"
    overrides = {
        "data.eval_file": data,
        "model.dtype": "float32",
        "batch_size": str(BATCH["bertjax"]),
    }
    config = load_config(spec, overrides, registry.data_fields(), find_bert_config)
    task = registry.find_task(config.task)(config)
    programs = StepFunctions(config, task.objective)
    params = jax.jit(task.objective.init_params)(jax.random.key(0))
    evaluator = make_evaluator(task, programs)
    return lambda: evaluator([params])


def peer_evaluation(
    init: str, windows: pathlib.Path, contestant: str, threads: int
) -> Callable[[], object]:
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(init).float().eval()
    arrays = np.load(windows)
    lengths, prefix = arrays["lengths"], arrays["prefix_lengths"]
    ends = np.cumsum(lengths)
    by_length, rows = contestant == "PyTorch by length", BATCH[contestant]
    order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))
    batches = []
    for first in range(0, len(order), rows):
        own = order[first : first + rows]
        shape = len(own), int(lengths[own].max()) if by_length else MAX_SEQ_LENGTH
        names = ("input_ids", "token_type_ids", "attention_mask")
        inputs = {name: torch.zeros(shape, dtype=torch.long) for name in names}
        for row, number in enumerate(own):
            length = lengths[number]
            ids = arrays["ids"][ends[number] - length : ends[number]]
            inputs["input_ids"][row, :length] = torch.from_numpy(ids)
            inputs["token_type_ids"][row, prefix[number] : length] = 1
            inputs["attention_mask"][row, :length] = 1
        batches.append(inputs)

    def work() -> object:
        with torch.inference_mode():
            return [model(**inputs).start_logits.sum().item() for inputs in batches]

    return work


def compare(
    title: str, names: list[str], args: argparse.Namespace, work: list[str], count: int, rounds: int
) -> None:
    """Prints a table of questions a second and of ratios, medians over the rounds."""
    commands = {
        name: [
            *(sys.executable if name == "bertjax" else args.peer_python, __file__),
            *("--work", f"{title} {name}", "--cores", str(args.cores), *work),
        ]
        for name in names
    }
    found = list(take_turns(commands, rounds, 1, warm_up=int(title == "evaluation")))
    print(f"\n{title:20}{'questions/s':>12}{'processor s':>13}{'bertjax is faster by':>24}")
    for name in names:
        wall, cpu_seconds = (statistics.median(costs[name][i] for costs in found) for i in (0, 1))
        ratios = (
            statistics.median(costs[name][i] / costs["bertjax"][i] for costs in found)
            for i in (0, 1)
        )
        times = "" if name == "bertjax" else "{:.2f} ({:.2f} processor)".format(*ratios)
        print(f"{name:20}{count / wall:12.1f}{cpu_seconds:13.2f}{times:>24}", flush=True)


def make_worker(args: argparse.Namespace) -> Callable[[], object]:
    """What the contestant that `args.work` names does."""
    kind, name = args.work.split(" ", 1)
    if (kind, name) == ("evaluation", "bertjax"):
        return bertjax_evaluation(args.init, args.data)
    if kind == "evaluation":
        windows = pathlib.Path(args.data).with_suffix(".npz")
        return peer_evaluation(args.init, windows, name, args.cores)
    features = dict(zip(TOKENIZERS, (bertjax_features, fast_features, slow_features), strict=True))
    return features[name](args.init, args.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--init", required=True, metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="FILE")
    parser.add_argument("--questions", type=int, default=400, help="to evaluate")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    if args.work:
        return serve_measurements(functools.partial(make_worker, args))

    questions, windows, passages = bertjax_features(args.init, args.data)()
    whole = ["--init", args.init, "--data", args.data]
    compare("features", TOKENIZERS, args, whole, len(questions), 1)

    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "some.json"
        content = json.loads(pathlib.Path(args.data).read_text(encoding="utf-8"))
        chosen = np.random.default_rng(0).permutation(len(questions))[: args.questions]
        ids = {questions[number].id for number in chosen}
        for article in content["data"]:
            for paragraph in article["paragraphs"]:
                paragraph["qas"] = [qa for qa in paragraph["qas"] if qa["id"] in ids]
        path.write_text(json.dumps(content))
        _, some, _ = bertjax_features(args.init, str(path))()
        arrays = {"ids": some.ids, "lengths": some.lengths, "prefix_lengths": some.prefix_lengths}
        np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)
        work = ["--init", args.init, "--data", str(path)]
        compare("evaluation", EVALUATION, args, work, args.questions, args.rounds)

    from bertjax.tasks.question_answering.decoding import decode

    draw = np.random.default_rng(0)
    logits = [draw.normal(size=(length, 2)).astype(np.float32) for length in windows.lengths]
    started = time.perf_counter()
    count = sum(1 for _ in decode(questions, windows, passages, logits))
    print(f"\ndecoding: {count:,} questions in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
