"""Features and evaluation of SQuAD, compared with `transformers` on the same CPU.

    python -m experiments.bench.inference.squad --peer-python PYTHON --init MODEL \
      --data dev-v1.1.json

Features: from the questions of the file to windows with character offsets, compared with the slow
and the fast tokenizer of `transformers`, used as in its examples. Evaluation: from windows to
logits of some questions, compared with PyTorch; bertjax decodes and scores too. The peer pads to
384 tokens, as in its examples, or sorts windows by length and pads each batch to its longest.
MODEL is a directory of Hugging Face; precision is float32. PYTHON is an interpreter with torch and
transformers 4 (5 has no slow tokenizers).
"""

import functools
import json
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import harness
from experiments.bench.harness import BERTJAX, Work
from experiments.bench.peers.torch_finetuning import pad_inputs

MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH = 384, 128, 64  # the defaults of bertjax
BATCH_SIZE = 4  # the fastest of each
FAST, SLOW = "fast tokenizer", "slow tokenizer"
PADDED, BY_LENGTH = "PyTorch, padded to 384", "PyTorch, sorted by length"


def make_bertjax_features(init: str, data: str) -> Callable[[], Any]:
    """Return a function that returns the windows of a file's questions."""
    from data_pipelines.finetuning.question_answering.squad import read_squad
    from data_pipelines.finetuning.question_answering.windows import (
        PassageCache,
        WindowOptions,
        make_windows,
    )
    from data_pipelines.vocabulary.tokenization import load_tokenizer

    tokenizer, questions = load_tokenizer(init), read_squad(data).questions
    return lambda: make_windows(questions, tokenizer, WindowOptions(), PassageCache(tokenizer))


def read_items(data: str) -> list[tuple[str, str, str]]:
    """Return id, question and passage of each question in a file."""
    articles = json.loads(pathlib.Path(data).read_text(encoding="utf-8"))["data"]
    return [
        (item["id"], item["question"], paragraph["context"])
        for article in articles
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]


def make_fast_features(init: str, data: str) -> Work:
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


def make_slow_features(init: str, data: str) -> Work:
    import transformers
    from transformers.data.processors import squad

    tokenizer = transformers.AutoTokenizer.from_pretrained(init, use_fast=False)
    examples = [squad.SquadExample(*item, None, None, "") for item in read_items(data)]
    settings = (tokenizer, MAX_SEQ_LENGTH, DOC_STRIDE, MAX_QUERY_LENGTH, False)
    return lambda: squad.squad_convert_examples_to_features(examples, *settings, tqdm_enabled=False)


def make_bertjax_evaluation(init: str, data: str) -> Work:
    import jax

    from bertjax.steps.step_functions import StepFunctions
    from bertjax.tasks import registry
    from bertjax.training.evaluator import make_evaluator

    fields = {"data.eval_file": data, "model.dtype": "float32", "batch_size": BATCH_SIZE}
    config = harness.load(f"squad:version=1,init={init}", fields)
    task = registry.find_task(config.task)(config)
    params = jax.jit(task.objective.init_params)(jax.random.key(0))
    evaluator = make_evaluator(task, StepFunctions(config, task.objective))
    return lambda: evaluator([params])


def make_torch_evaluation(init: str, data: str, by_length: bool, cores: int) -> Work:
    import torch
    import transformers

    torch.set_num_threads(cores)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(init).float().eval()
    arrays = np.load(pathlib.Path(data).with_suffix(".npz"))
    lengths = arrays["lengths"]
    ids = np.split(arrays["ids"], np.cumsum(lengths)[:-1])
    shapes = zip(lengths, arrays["prefix_lengths"], strict=True)
    types = [(np.arange(length) >= prefix).astype(np.int32) for length, prefix in shapes]
    order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(lengths))
    batches = []
    for first in range(0, len(order), BATCH_SIZE):
        indices = order[first : first + BATCH_SIZE]
        length = int(lengths[indices].max()) if by_length else MAX_SEQ_LENGTH
        batches.append(pad_inputs([(ids[i], types[i]) for i in indices], length))

    def work() -> object:
        with torch.inference_mode():
            return [model(**inputs).start_logits.sum().item() for inputs in batches]

    return work


def write_sample(init: str, data: str, count: int, path: pathlib.Path) -> None:
    """Write some questions of a file, and beside them their windows for the peer."""
    content = json.loads(pathlib.Path(data).read_text(encoding="utf-8"))
    names = [name for name, _, _ in read_items(data)]
    ids = {names[i] for i in np.random.default_rng(0).permutation(len(names))[:count]}
    for article in content["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [item for item in paragraph["qas"] if item["id"] in ids]
    path.write_text(json.dumps(content))
    windows = make_bertjax_features(init, str(path))()
    arrays = {name: getattr(windows, name) for name in ("ids", "lengths", "prefix_lengths")}
    np.savez(path.with_suffix(".npz"), **arrays)


def main() -> None:
    parser = harness.make_parser(__doc__, cores=1)
    parser.add_argument("--init", required=True, metavar="MODEL")
    parser.add_argument("--data", required=True, metavar="FILE")
    parser.add_argument("--questions", type=int, default=400, help="questions to evaluate")
    parser.add_argument("--evaluation", action="store_true", help="of the worker")
    args = parser.parse_args()
    harness.limit_cores(args.cores)
    files = args.init, args.data
    features = {
        BERTJAX: functools.partial(make_bertjax_features, *files),
        FAST: functools.partial(make_fast_features, *files),
        SLOW: functools.partial(make_slow_features, *files),
    }
    evaluation = {
        BERTJAX: functools.partial(make_bertjax_evaluation, *files),
        PADDED: functools.partial(make_torch_evaluation, *files, False, args.cores),
        BY_LENGTH: functools.partial(make_torch_evaluation, *files, True, args.cores),
    }
    harness.serve_measurements(args, evaluation if args.evaluation else features)

    commands = {name: harness.worker_command(args, name) for name in features}
    rounds = harness.take_turns(commands, rounds=1, warm_up=0)
    harness.print_comparison("features", "questions", len(read_items(args.data)), rounds)
    with tempfile.TemporaryDirectory() as directory:
        sample = pathlib.Path(directory, "sample.json")
        write_sample(*files, args.questions, sample)
        options = ["--evaluation", "--data", str(sample)]
        commands = {name: harness.worker_command(args, name, *options) for name in evaluation}
        rounds = harness.take_turns(commands, args.rounds)
        harness.print_comparison("evaluation", "questions", args.questions, rounds)


if __name__ == "__main__":
    main()
