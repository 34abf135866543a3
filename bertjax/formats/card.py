"""The README.md of an exported model, filled from the run that made it."""

import json
from typing import Any

from etils import epath

from bertjax.formats.tensors import Model
from bertjax.runs.metrics import metrics_path, read_metrics

_USES = {  # of a head: what Hugging Face calls it, and the class that has it
    "span": ("question-answering", "AutoModelForQuestionAnswering"),
    "mlm": ("fill-mask", "AutoModelForMaskedLM"),
    "encoder": ("feature-extraction", "AutoModel"),
}


def model_card(model: Model, source: epath.Path) -> str:
    """Text in Markdown.

    Args:
      source: the directory that the model came from; a run's checkpoint tells of the run.
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
    """A table of the run, and scores on held-out data if the checkpoint's step was evaluated."""
    if not (source / "run.json").exists():
        return []
    run, config = (json.loads((source / n).read_text()) for n in ("run.json", "config.json"))
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
    scores = _scores(source.parent.parent, run["step"])
    if scores:
        lines += ["", "## Scores on held-out data", "", "| | |", "|---|---:|"]
        lines += [
            f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value:.4f} |"
            for name, value in scores.items()
        ]
    return [*lines, ""]


def _scores(workdir: epath.Path, step: int) -> dict[str, float]:
    if not metrics_path(workdir).exists():
        return {}
    found = [
        line for line in read_metrics(workdir) if (line["split"], line["step"]) == ("heldout", step)
    ]
    return {n: v for n, v in found[-1].items() if n not in ("step", "split")} if found else {}
