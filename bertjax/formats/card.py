"""The README.md of an exported model, filled from the run that made it."""

import json
from typing import Any

from etils import epath

from bertjax.formats import Model

_USES = {  # of a head: what Hugging Face calls it, and the class that has it
    "span": ("question-answering", "AutoModelForQuestionAnswering"),
    "mlm": ("fill-mask", "AutoModelForMaskedLM"),
    "encoder": ("feature-extraction", "AutoModel"),
}


def model_card(model: Model, source: epath.Path) -> str:
    """Text in Markdown.

    Args:
      source: where the model came from; a checkpoint of ours tells of its run.
    """
    config = model.config
    pipeline, kind = next(use for head, use in _USES.items() if head in model.params)
    size = sum(array.size for array in model.tensors("hf").values())
    case = "" if model.tokenizer is None else (" cased" if model.tokenizer.cased else " uncased")
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {pipeline}",
        "tags: [bert, bertjax]",
        "---",
        "",
        f"# BERT,{case} {config.num_layers} layers, {config.hidden_size} wide",
        "",
        f"{size / 1e6:,.1f} million parameters, {config.num_heads} heads, {config.vocab_size:,} "
        f"pieces, at most {config.max_positions} pieces a text; exported by bertjax.",
        "",
        "```python",
        f"from transformers import {kind}, AutoTokenizer",
        "",
        f'model = {kind}.from_pretrained("DIRECTORY")',
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        "```",
        "",
        *_training(source),
    ]
    return "\n".join(lines)


def _training(source: epath.Path) -> list[str]:
    """A table of the run, and its newest scores on held-out data up to the checkpoint's step."""
    checkpoint = _newest(source)
    if checkpoint is None:
        return []
    run, config = (json.loads((checkpoint / n).read_text()) for n in ("run.json", "config.json"))
    optimizer = config["optimizer"]
    rows: list[tuple[str, Any]] = [
        ("task", config["task"]),
        ("data", f"{config['data']['dir']} ({run['data_fingerprint'][:12]})"),
        ("steps", f"{run['step']:,} of {config['steps']:,}"),
        ("rows a step", f"{config['batch_size']:,} of {config['seq_len']} pieces"),
        ("optimizer", f"{optimizer['name']}, learning rate {optimizer['learning_rate']:g}"),
        ("seed", config["seed"]),
        ("began with", config["init"] or "random parameters"),
    ]
    lines = ["## Training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    scores = _scores(checkpoint.parent.parent / "metrics.jsonl", run["step"])
    if scores:
        lines += ["", "## Scores on held-out data", "", "| | |", "|---|---:|"]
        lines += [f"| {name} | {value:.4f} |" for name, value in scores.items()]
    return [*lines, ""]


def _newest(source: epath.Path) -> epath.Path | None:
    """The checkpoint of a run at a path: itself, or the newest of a workdir."""
    found = [source, *sorted((source / "checkpoints").glob("*"), reverse=True)]
    return next(
        (path for path in found if (path / "files.json").exists() and (path / "run.json").exists()),
        None,
    )


def _scores(metrics: epath.Path, step: int) -> dict[str, float]:
    if not metrics.exists():
        return {}
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    heldout = [each for each in lines if each.get("split") == "heldout" and each["step"] <= step]
    if not heldout:
        return {}
    skipped = ("step", "split", "time")
    return {name: value for name, value in heldout[-1].items() if name not in skipped}
