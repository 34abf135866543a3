"""Model card (README.md) of an exported model."""

import html
import re
from collections.abc import Mapping
from typing import Any

from etils import epath

from bertjax.config.loading import read_run_record
from bertjax.formats.tensors import NumpyModel
from bertjax.model.bert_config import BertConfig
from bertjax.model.heads import HEADS
from data_pipelines.schedules import parse_schedule
from data_pipelines.schema import check_schema, read_json_object

_SCHEMA = {
    "task": str,
    "batch_size": int,
    "max_seq_length": int,
    "steps": (int, str),
    "seed": int,
    "init": str,
    "data": {"dir": str},
    "optimizer": {"name": str, "learning_rate": float},
    "eval_batches": int,
    "init_layers": str,
    "init_positions": str,
    "distill": {"teacher": str},
}
_PRETRAINING = "pretraining"
_PRETRAINING_SCHEMA = {
    "objective": str,
    "masking": str,
    "mlm_probability": (float, str),
    "mask_replace_prob": float,
    "random_replace_prob": float,
    "mixture_weights": str,
    "sampling_alpha": float,
}
_MASKED = ("mlm", "mlm_nsp")  # objectives
# Of the arrays that each class reads; it draws its own head at random beside others.
_ARRAY_PREFIXES = {
    **dict.fromkeys(
        (
            "AutoModelForSequenceClassification",
            "AutoModelForTokenClassification",
            "AutoModelForMultipleChoice",
        ),
        "classifier",
    ),
    "AutoModelForQuestionAnswering": "qa_outputs",
}
_MARKDOWN = re.compile(r"[\\`*\[\]|!]")


def model_card(model: NumpyModel, source: epath.Path, scores: Mapping[str, float]) -> str:
    """Return the model card in Markdown.

    Args:
      model: the exported model.
      source: directory of the model. If it is a bertjax checkpoint (it has run.json), the card gets
        sections on training and evaluation; otherwise `scores` is not used.
      scores: evaluation scores of these parameters; may be empty.
    """
    config = model.config
    library, pipeline_tag, auto_class = "transformers", "feature-extraction", "AutoModel"
    unread = _unread_arrays(model)
    if model.head:
        pipeline_tag = model.head.pipeline_tag
        auto_class = auto_class if unread else model.head.auto_class
    lines_of_code = [
        f"from transformers import {auto_class}, AutoTokenizer",
        "",
        f'model = {auto_class}.from_pretrained("DIRECTORY")',
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
    ]
    if model.head and config.mask_kind == "prefix":
        library = "bertjax"
        lines_of_code = [
            "import bertjax",
            "",
            'model = bertjax.load("DIRECTORY")',
            'print(model.generate("a text"))',
        ]
    if model.pooling:
        library, pipeline_tag = "sentence-transformers", "sentence-similarity"
        lines_of_code = [
            "from sentence_transformers import SentenceTransformer",
            "",
            'model = SentenceTransformer("DIRECTORY")',
            'embeddings = model.encode(["a text", "another text"])',
        ]
    size = sum(array.size for array in model.named_arrays("hf").values())
    case = "" if model.tokenizer is None else (" cased" if model.tokenizer.cased else " uncased")
    lines = [
        "---",
        f"library_name: {library}",
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
        *lines_of_code,
        "```",
        "",
        *_mask_lines(config),
        *unread,
        *_training_section(source, scores),
        *_history_section(model, has_run=(source / "run.json").exists()),
    ]
    return "\n".join(lines)


def _mask_lines(config: BertConfig) -> list[str]:
    """Return lines on an attention mask that no class of transformers has; none for others."""
    if config.mask_kind != "prefix":
        return []
    return [
        f"`decoder={config.decoder}`: a token of type 0 attends to all tokens of type 0. A token "
        "of type 1 also attends to itself and to earlier tokens of type 1. Classes of transformers "
        "read the parameters, but attend to all tokens.",
        "",
    ]


def _unread_arrays(model: NumpyModel) -> list[str]:
    """Return lines on heads that the class of a card would draw at random; none if it reads all."""
    head, names = model.head, list[str]()
    for part in model.params:
        if part in HEADS:
            names += [name for _, name, _, _ in HEADS[part].module_names]
    prefix = _ARRAY_PREFIXES.get(head.auto_class, "") if head else ""
    if all(name.startswith(prefix) for name in names):
        return []
    arrays = ", ".join(f"`{name}`" for name in names)
    return [f"`AutoModel` reads the encoder. Arrays of the heads: {arrays}.", ""]


def escape_markdown(value: object) -> str:
    """Return a value as one line of plain text in Markdown: no link, no HTML, no table cell."""
    text = html.escape(" ".join(str(value).split()), quote=False)
    return _MARKDOWN.sub(r"\\\g<0>", text)


def _format_steps(steps: int | str) -> str:
    return steps if isinstance(steps, str) else f"{steps:,}"


def _format_batch(config: Mapping[str, Any]) -> str:
    """Return the batch size in its unit: sequences in pre-training, examples in fine-tuning."""
    if config["task"] == _PRETRAINING:
        return f"{config['batch_size']:,} sequences of {config['max_seq_length']} tokens"
    return f"{config['batch_size']:,} examples in sequences of {config['max_seq_length']} tokens"


def _history_section(model: NumpyModel, has_run: bool) -> list[str]:
    """Return the lines of a list of what made the parameters; [] if the run's table shows all."""
    if len(model.history) <= has_run:
        return []
    entries = [f"{i}. {escape_markdown(line)}" for i, line in enumerate(model.history, 1)]
    return ["## History", "", *entries, ""]


def _format_init(config: Mapping[str, Any]) -> str:
    """Return the model of the initial parameters, and the fields that changed its shape."""
    changes = [f"{name}={config[name]}" for name in ("init_layers", "init_positions")]
    changes = [change for change in changes if not change.endswith("=")]
    return ", ".join([config["init"] or "random parameters", *changes])


def _pretraining_rows(source: epath.Path, data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows on objective, masking and mixture of a run of pre-training.

    Args:
      source: directory of the checkpoint.
      data: section of its configuration.
    """
    check_schema(f"{source / 'config.json'}: data.", data, _PRETRAINING_SCHEMA, "Use another one.")
    rows = [("objective", data["objective"])]
    if data["objective"] in _MASKED:
        first, last = parse_schedule("data.mlm_probability", data["mlm_probability"])
        rate = f"{100 * first:g}%" + (
            f" at first, {100 * last:g}% at last" if last != first else ""
        )
        replaced = [data["mask_replace_prob"], data["random_replace_prob"]]
        parts = "/".join(f"{100 * part:g}" for part in (*replaced, 1 - sum(replaced)))
        rows.append(("masking", f"{data['masking']}, {rate} of the tokens, {parts}"))
    names = data["dir"].split("+")
    if weights := data["mixture_weights"]:
        numbers = [float(weight) for weight in weights.split("+")]
        shares = [
            f"{number / sum(numbers):.1%} {name}"
            for number, name in zip(numbers, names, strict=True)
        ]
        rows.append(("mixture", f"{', '.join(shares)} (of the sequences)"))
    elif len(names) > 1:
        rows.append(("mixture", f"by size, sampling_alpha={data['sampling_alpha']:g}"))
    return rows


def _training_section(source: epath.Path, scores: Mapping[str, float]) -> list[str]:
    """Return the lines of a table of the run, and of its evaluation scores; [] without a run."""
    if not (source / "run.json").exists():
        return []
    run = read_run_record(source)
    config = read_json_object(source / "config.json", _SCHEMA, "Use another checkpoint.")
    optimizer, is_pretraining = config["optimizer"], config["task"] == _PRETRAINING
    rows: list[tuple[str, Any]] = [
        ("task", config["task"]),
        ("data", f"{config['data']['dir']} ({run['data_fingerprint'][:12]})"),
        *(
            ("corpus", f"{name}: {description}")
            for name, description in run.get("corpus_descriptions", {}).items()
        ),
        *(_pretraining_rows(source, config["data"]) if is_pretraining else ()),
        ("steps", f"{run['step']:,} of {_format_steps(config['steps'])}"),
        ("batch", _format_batch(config)),
        ("optimizer", f"{optimizer['name']}, learning rate {optimizer['learning_rate']:g}"),
        ("seed", config["seed"]),
        ("initialized from", _format_init(config)),
    ]
    if teacher := config["distill"]["teacher"]:
        rows.append(("teacher", teacher))
    lines = ["## Training", "", "| | |", "|---|---|"]
    lines += [f"| {escape_markdown(name)} | {escape_markdown(value)} |" for name, value in rows]
    if scores:
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
        lines += [
            f"| {escape_markdown(name)} | {value:{',' if isinstance(value, int) else '.4f'}} |"
            for name, value in scores.items()
        ]
        if is_pretraining and config["data"]["objective"] in _MASKED:
            lines += ["", "15% of the tokens of the eval splits are masked, 80/10/10."]
        if is_pretraining and (count := config["eval_batches"]):
            lines += [
                "",
                f"At most the first {count:,} batches of each eval split are evaluated on.",
            ]
    return [*lines, ""]
