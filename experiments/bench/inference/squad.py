"""Features, evaluation and decoding of SQuAD, compared with `transformers` on the same CPU.

    python -m experiments.bench.inference.squad --peer-python PYTHON --init MODEL \
      --data dev-v1.1.json

Features: from the questions of the file to windows with character offsets, compared with the slow
and the fast tokenizer of `transformers`, used as in its examples. Evaluation: from windows to
logits of some questions, compared with PyTorch; bertjax decodes and scores too. The peer pads to
384 tokens, as in its examples, or sorts windows by length and pads each batch to its longest.
Decoding: from random logits of the whole file to answers. MODEL is a directory of Hugging Face;
precision is float32. PYTHON is an interpreter with torch and transformers 4 (5 has no slow
tokenizers).
"""

import argparse
import functools
import json
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from experiments.bench.harness import (
    BERTJAX,
    comparison_table,
    limit_cores,
    make_parser,
    serve_measurements,
    take_turns,
)

MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 384, 128, 64
BATCH_SIZE = 4  # the fastest of each
FAST, SLOW = "fast tokenizer", "slow tokenizer"
PADDED, BY_LENGTH = "PyTorch, padded to 384", "PyTorch, sorted by length"


def make_bertjax_features(init: str, data: str) -> Callable[[], tuple[Any, ...]]:
    """Return a function that returns the questions of a file, their windows and passages."""
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
    """Return id, question and passage of each question in a file."""
    articles = json.loads(pathlib.Path(data).read_text(encoding="utf-8"))["data"]
    return [
        (item["id"], item["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def make_fast_features(init: str, data: str) -> Callable[[], object]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(init, use_fast=True)
    _, questions, passages = zip(*read_items(data), strict=True)
    return lambda: tokenizer(
        [question.lstrip() for question in questions],
        list(passages),
        truncation="only_second",
        max_length=MAX_SEQ_LENGTH,
        stride=DOC_STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )


def make_slow_features(init: str, data: str) -> Callable[[], object]:
    import transformers
    from transformers.data.processors import squad

    tokenizer = transformers.AutoTokenizer.from_pretrained(init, use_fast=False)
    examples = [squad.SquadExample(*item, None, None, "") for item in read_items(data)]
    settings = (tokenizer, MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH, False)
    return lambda: squad.squad_convert_examples_to_features(examples, *settings, tqdm_enabled=False)


def make_bertjax_evaluation(init: str, data: str) -> Callable[[], object]:
    import jax

    from bertjax.config.loading import load_config
    from bertjax.formats.loading import find_bert_config
    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry
    from bertjax.training.evaluator import make_evaluator

    spec = f"{pathlib.Path(__file__).parents[2] / 'squad.py'}:version=1,init={init}"
    overrides = {
        "data.eval_file": data,
        "model.dtype": "float32",
        "batch_size": str(BATCH_SIZE),
    }
    config = load_config(spec, overrides, registry.data_fields(), find_bert_config)
    task = registry.find_task(config.task)(config)
    params = jax.jit(task.objective.init_params)(jax.random.key(0))
    evaluator = make_evaluator(task, StepFunctions(config, task.objective))
    return lambda: evaluator([params])


def make_torch_evaluation(
    init: str, windows: pathlib.Path, by_length: bool, cores: int
) -> Callable[[], object]:
    import torch
    import transformers

    torch.set_num_threads(cores)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(init).float().eval()
    arrays = np.load(windows)
    lengths, prefix_lengths = arrays["lengths"], arrays["prefix_lengths"]
    ends = np.cumsum(lengths)
    order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))
    batches = []
    for first in range(0, len(order), BATCH_SIZE):
        indices = order[first : first + BATCH_SIZE]
        shape = len(indices), int(lengths[indices].max()) if by_length else MAX_SEQ_LENGTH
        names = ("input_ids", "token_type_ids", "attention_mask")
        inputs = {name: torch.zeros(shape, dtype=torch.long) for name in names}
        for row, index in enumerate(indices):
            length = lengths[index]
            ids = arrays["ids"][ends[index] - length : ends[index]]
            inputs["input_ids"][row, :length] = torch.from_numpy(ids)
            inputs["token_type_ids"][row, prefix_lengths[index] : length] = 1
            inputs["attention_mask"][row, :length] = 1
        batches.append(inputs)

    def work() -> object:
        with torch.inference_mode():
            return [model(**inputs).start_logits.sum().item() for inputs in batches]

    return work


def make_work(args: argparse.Namespace) -> Callable[[], object]:
    """Return the function of the worker that `args.worker` names."""
    kind, program = args.worker.split(": ")
    if kind == "features":
        features = {
            BERTJAX: make_bertjax_features,
            FAST: make_fast_features,
            SLOW: make_slow_features,
        }
        return features[program](args.init, args.data)
    if program == BERTJAX:
        return make_bertjax_evaluation(args.init, args.data)
    windows = pathlib.Path(args.data).with_suffix(".npz")
    return make_torch_evaluation(args.init, windows, program == BY_LENGTH, args.cores)


def compare(
    args: argparse.Namespace, kind: str, peers: Sequence[str], data: str, count: int, rounds: int
) -> None:
    """Print the table of bertjax and its peers."""
    commands = {
        program: [
            *(sys.executable if program == BERTJAX else args.peer_python, __file__),
            *("--worker", f"{kind}: {program}", f"--cores={args.cores}"),
            *("--init", args.init, "--data", data),
        ]
        for program in (BERTJAX, *peers)
    }
    costs = list(take_turns(commands, rounds, warm_up=int(kind == "evaluation")))
    print("\n".join(comparison_table(kind, "questions", count, costs)), flush=True)


def write_sample(
    init: str, data: str, questions: Sequence[Any], count: int, path: pathlib.Path
) -> None:
    """Write some questions of a file, and beside them their windows for the peer."""
    content = json.loads(pathlib.Path(data).read_text(encoding="utf-8"))
    chosen = np.random.default_rng(0).permutation(len(questions))[:count]
    ids = {questions[index].id for index in chosen}
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [item for item in paragraph["qas"] if item["id"] in ids]
    path.write_text(json.dumps(content))
    _, windows, _ = make_bertjax_features(init, str(path))()
    names = ("ids", "lengths", "prefix_lengths")
    arrays: dict[str, Any] = {name: getattr(windows, name) for name in names}
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **arrays)


def main() -> None:
    parser = make_parser(__doc__, cores=1)
    parser.add_argument("--init", required=True, metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="FILE")
    parser.add_argument("--questions", type=int, default=400, help="questions to evaluate")
    args = parser.parse_args()
    limit_cores(args.cores)
    if args.worker:
        return serve_measurements(functools.partial(make_work, args))

    questions, windows, passages = make_bertjax_features(args.init, args.data)()
    compare(args, "features", [FAST, SLOW], args.data, len(questions), rounds=1)
    with tempfile.TemporaryDirectory() as directory:
        sample = pathlib.Path(directory) / "sample.json"
        write_sample(args.init, args.data, questions, args.questions, sample)
        peers = [PADDED, BY_LENGTH]
        compare(args, "evaluation", peers, str(sample), args.questions, args.rounds)

    from bertjax.tasks.question_answering.decoding import decode

    draw = np.random.default_rng(0)
    logits = [draw.normal(size=(length, 2)).astype(np.float32) for length in windows.lengths]
    started = time.perf_counter()
    count = sum(1 for _ in decode(questions, windows, passages, logits))
    print(f"\ndecoding: {count:,} questions in {time.perf_counter() - started:.1f} s")
    return None


if __name__ == "__main__":
    main()
