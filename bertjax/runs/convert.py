"""From one format of a model to another: Hugging Face, the original TF1 code, and bertjax."""

import json
from functools import partial
from typing import Any

import jax
from etils import epath

from bertjax.formats import huggingface, tf1
from bertjax.formats.card import model_card
from bertjax.formats.opening import read_model
from bertjax.runs.metrics import metrics_path, read_metrics
from bertjax.formats.tensors import Model
from bertjax.mesh.sharding import named_leaves
from bertjax.model.encoder import BertConfig
from bertjax.tasks import registry
from bertjax.training.checkpoint import FILES, find_checkpoint, write_params
from bertjax.training.config import Config
from data_pipelines.vocabulary.tokenization import load_tokenizer
from data_pipelines.errors import InputError

_SPAN_SEQ_LEN = 384  # of the paper's SQuAD; strides of 128, questions of 64


def convert(source: epath.PathLike, target: epath.PathLike, style: str, to: str) -> Model:
    """Writes the model in a directory as another directory, which must not exist or be empty.

    Raises:
      InputError: as `read_model`; the target holds something; or the model
        cannot be said in that format. Nothing is left behind.
    """
    source, target = epath.Path(source), epath.Path(target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already: name a new directory.")
    if style == "bertjax":
        source = find_checkpoint(source)
    model = read_model(source, style)
    _check(model, source)
    draft = epath.Path(f"{target}.partial")
    if draft.exists():
        draft.rmtree()
    draft.mkdir(parents=True)
    try:
        if to == "bertjax":
            own = style == "bertjax"
            describe = partial(_copy_description, source) if own else partial(_describe, model)
            write_params(draft, model.params, describe)
        elif to == "tf1":
            tf1.write(model, draft)
        else:
            huggingface.write(model, draft)
            (draft / "README.md").write_text(model_card(model, source, _scores(source)))
        if target.exists():
            target.rmdir()
        draft.rename(target)
    except BaseException:
        draft.rmtree(missing_ok=True)
        raise
    return model


def _scores(checkpoint: epath.Path) -> dict[str, float]:
    """What the run of a checkpoint found of its very step on held-out data; empty for no run."""
    workdir = checkpoint.parent.parent
    if not (checkpoint / "run.json").exists() or not metrics_path(workdir).exists():
        return {}
    step = json.loads((checkpoint / "run.json").read_text())["step"]
    found = [
        line for line in read_metrics(workdir) if (line["split"], line["step"]) == ("heldout", step)
    ]
    return {n: v for n, v in found[-1].items() if n not in ("step", "split")} if found else {}


def _copy_description(source: epath.Path, path: epath.Path) -> None:
    """What a checkpoint of ours says of itself stays true of its parameters."""
    for file in source.iterdir():
        if not file.is_dir() and file.name != FILES:
            file.copy(path / file.name)


def _describe(model: Model, path: epath.Path) -> None:
    config = _config(model.config, *_task(model))
    (path / "config.json").write_text(json.dumps(config.to_dict(), indent=1))
    if model.tokenizer is not None:
        model.tokenizer.save(path)


def _task(model: Model) -> tuple[str, dict[str, Any]]:
    """The task whose head the model has, and what its data must be for that."""
    if "span" in model.params:
        seq_len = min(_SPAN_SEQ_LEN, model.config.max_positions)
        return "squad", {"stride": seq_len // 3, "max_query": seq_len // 6}
    return "pretrain", {"objective": "mlm_nsp" if "nsp" in model.params else "mlm"}


def _config(model: BertConfig, task: str, data: dict[str, Any]) -> Config:
    """That of a run which could have made the model."""
    seq_len = min(_SPAN_SEQ_LEN if task == "squad" else Config.seq_len, model.max_positions)
    return Config(task, seq_len=seq_len, model=model, data=registry.data_fields()[task] | data)


def _check(model: Model, path: epath.Path) -> None:
    """Refuses arrays of other shapes than the configuration says, and too large a vocabulary."""
    expected: dict[str, Any] = {}
    for task, data in (("pretrain", {"objective": "mlm_nsp"}), ("squad", {})):
        objective = registry.objective(_config(model.config, task, data))
        shapes = jax.eval_shape(objective.init_params, jax.random.key(0))
        expected |= dict(named_leaves(shapes))
    for name, array in named_leaves(model.params):
        if array.shape != expected[name].shape:
            raise InputError(
                f"{path} has {name} of shape {array.shape}, where its configuration says "
                f"{expected[name].shape}: the two belong to different models."
            )
    pieces = len(model.tokenizer.pieces) if model.tokenizer else 0
    if pieces > model.config.vocab_size:
        raise InputError(
            f"the vocabulary in {path} has {pieces:,} pieces and the model "
            f"{model.config.vocab_size:,}: they belong to different models."
        )
