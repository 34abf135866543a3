"""The README.md of an exported model, filled from the run that made it."""

import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from bertjax.formats.tensors import NumpyModel


def model_card(model: NumpyModel, source: epath.Path, scores: Mapping[str, float]) -> str:
    """Text in Markdown.

    Args:
      source: the directory that the model came from; a run's checkpoint tells of the run.
      scores: of these very parameters on held-out data; may be empty.
    """
    config = model.config
    pipeline_tag, kind = "feature-extraction", "AutoModel"
    if model.head:
        pipeline_tag, kind = model.head.pipeline_tag, model.head.auto_class
    size = sum(array.size for array in model.tensors("hf").values())
    case = "" if model.tokenizer is None else (" cased" if model.tokenizer.cased else " uncased")
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {pipeline_tag}",
        "tags: [bert, bertjax]",
        "---",
        "",
        f"# BERT,{case} {config.num_hidden_layers} layers, {config.hidden_size} wide",
        "",
        f"{size / 1e6:,.1f} million parameters, {config.num_attention_heads} heads, {config.vocab_size:,} "
        f"pieces, at most {config.max_position_embeddings} pieces a text; exported by bertjax.",
        "",
        "```python",
        f"from transformers import {kind}, AutoTokenizer",
        "",
        f'model = {kind}.from_pretrained("DIRECTORY")',
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        "```",
        "",
        *_training(source, scores),
    ]
    return "\n".join(lines)


def _steps(steps: int | str) -> str:
    return steps if isinstance(steps, str) else f"{steps:,}"


def _training(source: epath.Path, scores: Mapping[str, float]) -> list[str]:
    """A table of the run, and its scores on held-out data if there are any."""
    if not (source / "run.json").exists():
        return []
    run, config = (json.loads((source / n).read_text()) for n in ("run.json", "config.json"))
    optimizer = config["optimizer"]
    rows: list[tuple[str, Any]] = [
        ("task", config["task"]),
        ("data", f"{config['data']['dir']} ({run['data_fingerprint'][:12]})"),
        *(("text", f"{name}: {said}") for name, said in run.get("data_card", {}).items()),
        ("steps", f"{run['step']:,} of {_steps(config['steps'])}"),
        ("rows a step", f"{config['batch_size']:,} of {config['max_seq_length']} pieces"),
        ("optimizer", f"{optimizer['name']}, learning rate {optimizer['learning_rate']:g}"),
        ("seed", config["seed"]),
        ("began with", config["init"] or "random parameters"),
    ]
    lines = ["## Training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    if scores:
        lines += ["", "## Scores on held-out data", "", "| | |", "|---|---:|"]
        lines += [
            f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value:.4f} |"
            for name, value in scores.items()
        ]
    return [*lines, ""]
