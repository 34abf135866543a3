"""Text, vocabulary and eval split of the speedrun, which are fixed, and the score."""

import dataclasses
import hashlib
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.config.config import Config
from bertjax.config.loading import load_config
from bertjax.tasks import registry
from bertjax.tasks.pretraining import PretrainingTask
from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.pretraining.data import PretrainingData
from data_pipelines.pretraining.options import PretrainingOptions
from experiments.ablations.commands import override_flags, run_bertjax

VOCAB_SIZE = 8192
MAX_SEQ_LENGTH = 128  # of the eval split; training may use another
EVAL_BATCH_SIZE = 64
DIGESTS = {
    "corpus": "1c26f75bb07223a718d148001925afee",  # training text, eval text and vocabulary
    "eval_batches": "4237df896ea8ebc75cc8ce3850a0d407",  # tokens and masks of the eval split
}


def prepare_data(texts: Sequence[str], directory: pathlib.Path) -> pathlib.Path:
    """Return the corpus in a directory, made from the texts if it is missing."""
    corpus, vocab = directory / "corpus", directory / "vocab.txt"
    if (corpus / MANIFEST).exists():
        if texts:
            print(f"{corpus}: exists, so that --text is not read.")
        return corpus
    if not texts:
        sys.exit(f"error: --data={directory}: no corpus. Name the texts with --text.")
    directory.mkdir(parents=True, exist_ok=True)
    if not vocab.exists():
        size = ["--vocab-size", str(VOCAB_SIZE)]
        run_bertjax("vocab", "--input", *texts, *size, "--output", str(vocab))
    run_bertjax("prepare", "--input", *texts, "--vocab", str(vocab), "--output", str(corpus))
    return corpus


def compute_digests(corpus: pathlib.Path) -> dict[str, str]:
    """Return hex digests of text and vocabulary, and of the eval batches with their masks."""
    options = PretrainingOptions(MAX_SEQ_LENGTH, EVAL_BATCH_SIZE, objective="mlm")
    data, content = PretrainingData(corpus, options, "eval"), hashlib.blake2b(digest_size=16)
    for step in range(data.steps or 0):
        for name, array in sorted(data.batch(step).items()):
            content.update(name.encode() + array.tobytes())
    (opened,) = data.corpora.values()
    manifest = opened.manifest
    shards = [dataclasses.astuple(info) for info in (*manifest.train_shards, *manifest.eval_shards)]
    text = json.dumps([data.tokenizer.tokens, shards]).encode()
    text_digest = hashlib.blake2b(text, digest_size=16)
    return {"corpus": text_digest.hexdigest(), "eval_batches": content.hexdigest()}


def eval_fields() -> dict[str, Any]:
    """Return the fields of the evaluation: no option of a run's `data` but the corpus counts."""
    data_fields = PretrainingTask.DATA_FIELDS.items()
    defaults = {f"data.{name}": field.default for name, field in data_fields if name != "dir"}
    return defaults | {
        "max_seq_length": MAX_SEQ_LENGTH,
        "eval_batch_size": EVAL_BATCH_SIZE,
        "eval_batches": 0,
        "packing": True,
        "loss_weights": "",
        "data.objective": "mlm",
    }


def check_evaluation(config: Config) -> None:
    """Check that a model can be evaluated, before it is trained.

    Raises:
      InputError: it is no masked LM, or has too few positions.
    """
    fields = eval_fields()
    registry.make_objective(load_config(config.to_dict(), fields, registry.data_fields()))


def evaluate(
    workdir: pathlib.Path, scores: pathlib.Path, corpus: pathlib.Path
) -> Mapping[str, float]:
    """Return the scores of a run on the whole eval split of a corpus."""
    target = ["--checkpoint", str(workdir), "--output", str(scores)]
    fields = {**eval_fields(), "data.dir": corpus}
    run_bertjax("evaluate", *target, *override_flags(fields))
    return json.loads((scores / "scores.json").read_text())
