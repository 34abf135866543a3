"""Ablation tables of the paper (Devlin et al. 2019, section 5, A.3 and C.2) and their tasks."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
      name: name in the table.
      options: options of `experiments/pretraining.py` in which it differs.
      fields: pre-training configuration fields in which it differs.
      finetuning: fine-tuning configuration fields; {width} is the encoder's hidden size.
      step_fraction: fraction of the pre-training steps after which the model is evaluated.
      is_pair: whether it is a pair of encoders, each pre-trained in its direction.
      way: name of the way in which it is fine-tuned; "" if `finetuning` names it.
    """

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    finetuning: Mapping[str, str] = dataclasses.field(default_factory=dict)
    step_fraction: float = 1.0
    is_pair: bool = False
    way: str = ""

    @property
    def pretraining_name(self) -> str:
        """Name of the pre-training run, which variants of other tables may share.

        It becomes part of options, and so contains no comma.
        """
        settings = {**self.options, **{name.split(".")[-1]: v for name, v in self.fields.items()}}
        return "+".join(f"{name}={value}" for name, value in sorted(settings.items())) or "plain"

    def directions(self) -> tuple["Variant", "Variant"]:
        """Return the encoders of a pair, from left to right and from right to left."""
        left, right = (
            dataclasses.replace(self, options={**self.options, "objective": name}, is_pair=False)
            for name in ("clm", "clm_reverse")
        )
        return left, right

    def with_way(self, way: str, fields: Mapping[str, str]) -> "Variant":
        """Return the variant fine-tuned in a way."""
        return dataclasses.replace(self, name=f"{self.name}, {way}", way=way, finetuning=fields)

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


TABLES = ("masking", "objectives", "sizes", "steps")


def make_tables(sizes: Sequence[str], fractions: Sequence[float]) -> dict[str, AblationTable]:
    """Return tables 5, 6 and 8, and figure 5 as a table.

    Args:
      sizes: rows of the table of sizes.
      fractions: fractions of the pre-training steps, rows of the table of steps.
    """
    causal = {"objective": "clm"}
    mixtures = [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
    objectives = AblationTable(
        "Objectives of pre-training (table 5 of the paper).",
        [
            Variant("MLM and NSP"),
            Variant("no NSP", {"objective": "mlm"}),
            Variant("left to right, no NSP", causal),
            Variant("left to right, with a BiLSTM", causal, finetuning={"model.bilstm": "{width}"}),
        ],
        [
            Finding("NSP helps", 0, 1, ("qnli", "mnli", "squad")),
            Finding("both directions help", 1, 2),
            Finding("a BiLSTM on one direction helps question answering", 3, 2, ("squad",)),
            Finding(
                "a BiLSTM on one direction harms sentences", 2, 3, ("mnli", "qnli", "mrpc", "sst2")
            ),
        ],
    )
    masking = AblationTable(
        "Replacement of the masked tokens (table 8 of the paper).",
        [_masking_variant(*mixture) for mixture in mixtures],
        [
            Finding("random tokens only are the worst", 0, 5),
            Finding("[MASK] only harms features", 0, 1, ("ner-features",)),
        ],
    )
    larger_sizes = [
        Finding(f"{larger} is better than {smaller}", i + 1, i)
        for i, (smaller, larger) in enumerate(itertools.pairwise(sizes))
    ]
    more_steps = [
        Finding(f"{later:.0%} of the steps are better than {sooner:.0%}", i + 1, i)
        for i, (sooner, later) in enumerate(itertools.pairwise(fractions))
    ]
    return {
        "objectives": objectives,
        "masking": masking,
        "sizes": AblationTable(
            "Sizes, in layers and units (table 6 of the paper).",
            [Variant(size, {"model": size}) for size in sizes],
            larger_sizes,
        ),
        "steps": AblationTable(
            "Steps of pre-training (figure 5 of the paper).",
            [Variant(f"after {part:.0%} of the steps", step_fraction=part) for part in fractions],
            more_steps,
        ),
    }


def _masking_variant(mask: int, keep: int, other: int) -> Variant:
    """Return the variant that replaces masked tokens in these percentages."""
    fields = {
        "data.mask_replace_prob": str(mask / 100),
        "data.random_replace_prob": str(other / 100),
    }
    is_default = (mask, keep, other) == (80, 10, 10)
    name = f"{mask}% [MASK], {keep}% same, {other}% random"
    return Variant(name, fields={} if is_default else fields)


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
    "mnli": AblatedTask("glue:task=mnli", ("dev_matched/accuracy", "dev_mismatched/accuracy")),
    "sst2": AblatedTask("glue:task=sst2", ("accuracy",)),
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
