"""Model card (README.md) of an exported model."""

import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from bertjax.formats.tensors import NumpyModel


def model_card(model: NumpyModel, source: epath.Path, scores: Mapping[str, float]) -> str:
    """Return the model card in Markdown.

    Args:
      model: the exported model.
      source: directory that the model came from; a checkpoint describes its run.
      scores: evaluation scores of these parameters; may be empty.
    """
    config = model.config
    pipeline_tag, kind = "feature-extraction", "AutoModel"
    if model.head:
        pipeline_tag, kind = model.head.pipeline_tag, model.head.auto_class
    size = sum(array.size for array in model.named_arrays("hf").values())
    case = "" if model.tokenizer is None else (" cased" if model.tokenizer.cased else " uncased")
    lines = [
        "---",
        "library_name: transformers",
        f"pipeline_tag: {pipeline_tag}",
        "tags: [bert, bertjax]",
        "---",
        "",
        f"# BERT,{case} {config.num_hidden_layers} layers, hidden size {config.hidden_size}",
        "",
        f"{size / 1e6:,.1f} million parameters, {config.num_attention_heads} attention heads, "
        f"vocabulary of {config.vocab_size:,} tokens, at most {config.max_position_embeddings} "
        "tokens a sequence. Exported by bertjax.",
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
    """Return the lines of a table of the run, and of its evaluation scores."""
    if not (source / "run.json").exists():
        return []
    run, config = (json.loads((source / n).read_text()) for n in ("run.json", "config.json"))
    optimizer = config["optimizer"]
    rows: list[tuple[str, Any]] = [
        ("task", config["task"]),
        ("data", f"{config['data']['dir']} ({run['data_fingerprint'][:12]})"),
        *(("text", f"{name}: {value}") for name, value in run.get("data_card", {}).items()),
        ("steps", f"{run['step']:,} of {_steps(config['steps'])}"),
        ("batch", f"{config['batch_size']:,} x {config['max_seq_length']} tokens"),
        ("optimizer", f"{optimizer['name']}, learning rate {optimizer['learning_rate']:g}"),
        ("seed", config["seed"]),
        ("initialized from", config["init"] or "random parameters"),
    ]
    lines = ["## Training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows]
    if scores:
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
        lines += [
            f"| {name} | {value:,} |" if isinstance(value, int) else f"| {name} | {value:.4f} |"
            for name, value in scores.items()
        ]
    return [*lines, ""]
