"""Ablation tables of the paper (Devlin et al. 2019, section 5, A.3 and C.2) and their tasks."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
      name: name in the table.
      options: options of `experiments/pretraining.py` in which it differs.
      fields: pre-training configuration fields in which it differs.
      finetuning: fine-tuning configuration fields; {width} is the encoder's hidden size.
      step_fraction: fraction of the pre-training steps after which the model is evaluated.
    """

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    finetuning: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step_fraction: float = 1.0

    @property
    def pretraining_name(self) -> str:
        """Name of the pre-training run, which variants of other tables may share.

        It becomes part of options, and so contains no comma.
        """
        settings = {**self.options, **{name.split(".")[-1]: v for name, v in self.fields.items()}}
        return "+".join(f"{name}={value}" for name, value in sorted(settings.items())) or "plain"

    def without_shared_options(self, options: Mapping[str, str]) -> "Variant":
        """Return the variant without the options of all runs, so that it may be the plain run."""
        changed = {name: v for name, v in self.options.items() if options.get(name) != v}
        return dataclasses.replace(self, options=changed)


@dataclasses.dataclass(frozen=True)
class Finding:
    """A claim that one row is better than another, such as a finding of the paper.

    Attributes:
      claim: the claim in words.
      better_row: index of the better row.
      worse_row: index of the worse row.
      tasks: first words of the names of the compared scores, mostly tasks; empty for all scores.
      lower_is_better: whether a lower score is better.
    """

    claim: str
    better_row: int
    worse_row: int
    tasks: Sequence[str] = ()
    lower_is_better: bool = False


@dataclasses.dataclass(frozen=True)
class AblationTable:
    """A table of variants.

    Attributes:
      caption: title, with the paper's table.
      variants: the rows.
      findings: the claims to check.
    """

    caption: str
    variants: Sequence[Variant]
    findings: Sequence[Finding]


def objectives_table(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """Return table 5."""
    causal = {"objective": "clm"}
    return AblationTable(
        "Objectives of pre-training (table 5 of the paper).",
        [
            Variant("MLM and NSP"),
            Variant("no NSP", {"objective": "mlm"}),
            Variant("left to right, no NSP", causal),
            Variant("left to right, with a BiLSTM", causal, finetuning={"model.bilstm": "{width}"}),
        ],
        [
            Finding("NSP helps", 0, 1, ("qnli", "squad")),
            Finding("both directions help", 1, 2),
            Finding("a BiLSTM on one direction helps question answering", 3, 2, ("squad",)),
            Finding("a BiLSTM on one direction harms sentence pairs", 2, 3, ("mrpc", "qnli")),
        ],
    )


def masking_table(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """Return table 8."""
    mixtures = [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
    return AblationTable(
        "Replacement of the masked tokens (table 8 of the paper).",
        [
            Variant(
                f"{mask}% [MASK], {keep}% same, {other}% random",
                fields={}
                if (mask, keep, other) == mixtures[0]
                else {
                    "data.mask_replace_prob": str(mask / 100),
                    "data.random_replace_prob": str(other / 100),
                },
            )
            for mask, keep, other in mixtures
        ],
        [
            Finding("random tokens only are the worst", 0, 5),
            Finding("[MASK] only harms features", 0, 1, ("ner-features",)),
        ],
    )


def sizes_table(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """Return table 6."""
    return AblationTable(
        "Sizes, in layers and units (table 6 of the paper).",
        [Variant(size, {"model": size}) for size in sizes],
        [
            Finding(f"{larger} is better than {smaller}", i + 1, i)
            for i, (smaller, larger) in enumerate(itertools.pairwise(sizes))
        ],
    )


def steps_table(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """Return figure 5 as a table."""
    return AblationTable(
        "Steps of pre-training (figure 5 of the paper).",
        [
            Variant(f"after {fraction:.0%} of the steps", step_fraction=fraction)
            for fraction in steps
        ],
        [
            Finding(f"{later:.0%} of the steps are better than {sooner:.0%}", i + 1, i)
            for i, (sooner, later) in enumerate(itertools.pairwise(steps))
        ],
    )


TABLES: Mapping[str, Callable[[Sequence[str], Sequence[float]], AblationTable]] = {
    "objectives": objectives_table,
    "masking": masking_table,
    "sizes": sizes_table,
    "steps": steps_table,
}


@dataclasses.dataclass(frozen=True)
class AblatedTask:
    """A fine-tuning task, one or several columns of a table.

    Attributes:
      config: configuration and options, without `init` and `data`.
      scores: scores that the table shows.
      fields: configuration fields; {depth} is 4, or the number of layers if that is smaller.
    """

    config: str
    scores: Sequence[str]
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)


TASKS: Mapping[str, AblatedTask] = {
    "mrpc": AblatedTask("glue:task=mrpc", ("accuracy", "f1")),
    "stsb": AblatedTask("glue:task=stsb", ("pearson", "spearman")),
    "qnli": AblatedTask("glue:task=qnli", ("accuracy",)),
    "squad": AblatedTask("squad:version=1", ("exact", "f1")),
    "ner": AblatedTask("token_classification:", ("f1",)),
    "ner-features": AblatedTask(
        "token_classification:features=concat_last_four",
        ("f1",),
        {"model.feature_layers": "-{depth}..-1"},
    ),
}
