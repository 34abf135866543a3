"""Fine-tuning on texts of one's own: a class, several labels or a number for each.

    bertjax train --workdir runs/intents \
      --config sequence_classification:init=DIR,data=DIR,text=text,label=category
    bertjax evaluate --checkpoint runs/intents --output runs/intents/scores \
      --config sequence_classification:data=DIR,text=text,label=category,eval_file=test.csv
    bertjax predict --checkpoint runs/intents --text 'Where is my card?' --return-all-scores

init     a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
         begin with, its shape and its vocabulary
data     the directory of train.csv (.tsv, .jsonl, .parquet, compressed or not) and, if there is
         one, dev.csv or validation.csv: else a tenth of the training texts is held out; or
         tfds:NAME/CONFIG
train_file, eval_file  files of other names in it
text     the column of the text; title+body joins two
text_pair  that of a second text, if there is one
label    that of what is to be said
problem_type  single_label_classification (default); multi_label_classification, whose labels are
         written a,b or as a JSON list; regression
truncation  what is kept of a text over max_seq_length: head, tail, head_tail, or all of it in windows
smoke    shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

A thousand short texts take BERT-Base some seconds an epoch on one TPU chip, and a few minutes on a
CPU. Ten texts of each class are enough to be useful, a hundred to be good.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "",
    data: str = "",
    train_file: str = "",
    eval_file: str = "",
    text: str = "text",
    text_pair: str = "",
    label: str = "label",
    problem_type: str = "single_label_classification",
    truncation: str = "head",
    smoke: bool = False,
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    return finetuning_config(
        "sequence_classification",
        init,
        {
            "dir": data,
            "train_file": train_file,
            "eval_file": eval_file,
            "text": text,
            "text_pair": text_pair,
            "label": label,
            "problem_type": problem_type,
            "truncation": truncation,
        },
        smoke,
    )
