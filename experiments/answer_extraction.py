"""Training a model that finds spans of a passage that are worth asking about, without a question.

    bertjax train --config answer_extraction:init=DIR,data=DIR --workdir runs/answers
    bertjax evaluate --checkpoint runs/answers --output runs/answers/scores
    bertjax predict --checkpoint runs/answers --input passages.jsonl --output answers.jsonl

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary
data     directory of train-v1.1.json and dev-v1.1.json, or else of train-v2.0.json and
         dev-v2.0.json; or tfds:NAME
train_file, eval_file  names of other files in it
scorer   joint: a span's score depends on its first and its last token together; independent: it is
         the sum of a start and an end logit
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

It is p(a|c) of Alberti et al. 2019, the first of the three models of synthetic question answering.
They train it on the answers of labeled questions. Expect an epoch to take less time than one of
squad: all questions of a passage share its windows.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "",
    data: str = "",
    train_file: str = "",
    eval_file: str = "",
    scorer: str = "joint",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    return finetuning_config(
        "answer_extraction",
        init,
        {"dir": data, "train_file": train_file, "eval_file": eval_file, "scorer": scorer},
        smoke,
        {"max_seq_length": 128, "data": {"doc_stride": 32}},
        max_seq_length=384,
        steps="2 epochs",
    )
