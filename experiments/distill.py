"""Distillation of a small encoder from a large one, on text without labels.

    bertjax train --workdir runs/student \
      --config distill:teacher=DIR,data=corpora/wiki,layers=6,hidden=384
    bertjax convert --to hf runs/student student-hf

teacher  checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1
data     directory of a corpus that `bertjax prepare --vocab TEACHER` wrote
layers, hidden  blocks and hidden size of the student, a multiple of 32 and, for relations, of 48
recipe   relations: queries, keys and values of the last block (MiniLMv2: Wang et al. 2021)
         logits: the predictions of masked tokens, at temperature 2, and their labels (as in
         DistilBERT: Sanh et al. 2019); the teacher has an MLM head
smoke    shrink the run to a minute on a CPU

The student is a plain BERT. It has the teacher's vocabulary and any shape. A task's teacher is a
field of every configuration: `--config sequence_classification:... --config.distill.teacher=DIR`;
see the documentation of distillation. MiniLMv2 of 6 layers x 384 took 400,000 steps of 256
sequences (84 on average over five tasks of GLUE); the default is a tenth of that.
"""

from typing import Any

from ml_collections import ConfigDict

RECIPES: dict[str, dict[str, Any]] = {
    "relations": {"labels_weight": 0.0, "logits_weight": 0.0, "relations_weight": 1.0,
                  "relation_heads": 48},
    "logits": {"temperature": 2.0, "labels_weight": 0.3, "logits_weight": 0.7},
}  # fmt: skip


def get_config(
    teacher: str = "",
    data: str = "",
    layers: int = 6,
    hidden: int = 384,
    recipe: str = "relations",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    if recipe not in RECIPES:
        raise ValueError(f"recipe={recipe}: unknown. Use {' or '.join(RECIPES)}.")
    if hidden % 32:
        raise ValueError(f"hidden={hidden}: not a multiple of 32. Use one, such as 384.")
    distill = {"teacher": teacher, **RECIPES[recipe]}
    config = {
        "task": "pretraining",
        "seed": 0,
        "steps": 40_000,
        "batch_size": 256,
        "max_seq_length": 128,
        "log_every": 100,
        "checkpoint_every": 2000,
        "eval_every": 2000,
        "model": {
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 32,
            "dtype": "bfloat16",
        },
        "optimizer": {"learning_rate": 6e-4, "warmup": "1%"},
        "distill": distill,
        "data": {"dir": data, "objective": "mlm"},
    }
    if smoke:
        model = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}
        config |= {"steps": 20, "batch_size": 8, "log_every": 5, "checkpoint_every": 10}
        config |= {"eval_every": 20, "model": model | {"dtype": "float32"}}
        distill["relation_heads"] = 0
    return ConfigDict(config)
