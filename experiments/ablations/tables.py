"""What the paper's ablations compare (Devlin et al. 2019, section 5, A.3 and C.2), and on what."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of a table.

    Attributes:
      name: as the table has it.
      options: of `experiments/pretraining.py` that are its own.
      fields: of the configuration of pre-training, likewise.
      finetuning: fields of the configuration of every fine-tuning; {width} is the encoder's.
      share: of the steps of pre-training, after which the model is taken.
    """

    name: str
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    finetuning: Mapping[str, str] = dataclasses.field(default_factory=dict)
    share: float = 1.0

    @property
    def pretraining(self) -> str:
        """The name of its pre-training, which variants of other tables may have too.

        It stands among options, and so has no comma.
        """
        own = {**self.options, **{name.split(".")[-1]: v for name, v in self.fields.items()}}
        return "+".join(f"{name}={value}" for name, value in sorted(own.items())) or "plain"

    def without_shared_options(self, options: Mapping[str, str]) -> "Variant":
        """The same without what all runs have, so that a size of the table may be the plain run."""
        own = {name: v for name, v in self.options.items() if options.get(name) != v}
        return dataclasses.replace(self, options=own)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the paper found between two rows.

    Attributes:
      said: in words.
      better, worse: indices of rows.
      tasks: in whose scores it showed; none for all.
      less: whether less is better.
    """

    said: str
    better: int
    worse: int
    tasks: Sequence[str] = ()
    less: bool = False


@dataclasses.dataclass(frozen=True)
class AblationTable:
    """What is compared.

    Attributes:
      caption: where the paper has it.
    """

    caption: str
    variants: Sequence[Variant]
    findings: Sequence[Finding]


def objectives(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """AblationTable 5."""
    one_way = {"objective": "clm"}
    return AblationTable(
        "Objectives of pre-training (table 5 of the paper).",
        [
            Variant("masked pieces and next sentences"),
            Variant("no next sentences", {"objective": "mlm"}),
            Variant("left to right, no next sentences", one_way),
            Variant("the same, with a BiLSTM", one_way, finetuning={"model.bilstm": "{width}"}),
        ],
        [
            Finding("next sentences help", 0, 1, ("qnli", "squad")),
            Finding("both directions help", 1, 2),
            Finding("a BiLSTM on one direction helps where spans are asked for", 3, 2, ("squad",)),
            Finding("a BiLSTM on one direction harms sentence pairs", 2, 3, ("mrpc", "qnli")),
        ],
    )


def masking(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """AblationTable 8."""
    mixtures = [(80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)]
    names = ("mask", "keep", "random")
    return AblationTable(
        "What becomes of the pieces to be predicted (table 8 of the paper).",
        [
            Variant(
                f"{mask}% [MASK], {keep}% same, {other}% random",
                fields={}
                if (mask, keep, other) == mixtures[0]
                else {
                    f"data.{name}_share": str(share / 100)
                    for name, share in zip(names, (mask, keep, other), strict=True)
                },
            )
            for mask, keep, other in mixtures
        ],
        [
            Finding("random pieces alone are the worst", 0, 5),
            Finding("[MASK] alone harms features", 0, 1, ("ner-features",)),
        ],
    )


def sizes(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """AblationTable 6."""
    return AblationTable(
        "Sizes, in layers and units (table 6 of the paper).",
        [Variant(size, {"model": size}) for size in sizes],
        [
            Finding(f"{larger} is better than {smaller}", i + 1, i)
            for i, (smaller, larger) in enumerate(itertools.pairwise(sizes))
        ],
    )


def steps(sizes: Sequence[str], steps: Sequence[float]) -> AblationTable:
    """Figure 5."""
    return AblationTable(
        "Steps of pre-training (figure 5 of the paper).",
        [Variant(f"after {share:.0%} of the steps", share=share) for share in steps],
        [
            Finding(f"{later:.0%} of the steps are better than {sooner:.0%}", i + 1, i)
            for i, (sooner, later) in enumerate(itertools.pairwise(steps))
        ],
    )


TABLES: Mapping[str, Callable[[Sequence[str], Sequence[float]], AblationTable]] = {
    "objectives": objectives,
    "masking": masking,
    "sizes": sizes,
    "steps": steps,
}


@dataclasses.dataclass(frozen=True)
class FinetuningTask:
    """A column, or several.

    Attributes:
      config: file and options, but for `init` and `data`.
      scores: those that the table shows.
      fields: of its configuration; {depth} is 4, or all layers of an encoder that has fewer.
    """

    config: str
    scores: Sequence[str]
    fields: Mapping[str, str] = dataclasses.field(default_factory=dict)


TASKS: Mapping[str, FinetuningTask] = {
    "mrpc": FinetuningTask("glue:task=mrpc", ("accuracy", "f1")),
    "stsb": FinetuningTask("glue:task=stsb", ("pearson", "spearman")),
    "qnli": FinetuningTask("glue:task=qnli", ("accuracy",)),
    "squad": FinetuningTask("squad:version=1", ("exact", "f1")),
    "ner": FinetuningTask("token_classification:", ("f1",)),
    "ner-features": FinetuningTask(
        "token_classification:features=concat_last_four",
        ("f1",),
        {"model.feature_layers": "-{depth}..-1"},
    ),
}
