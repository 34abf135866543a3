"""Fine-tuning on labeled texts: one label, several labels or a number each.

    bertjax train --workdir runs/intents \
      --config sequence_classification:init=DIR,data=DIR,text=text,label=category
    bertjax evaluate --checkpoint runs/intents --output runs/intents/scores \
      --config sequence_classification:data=DIR,text=text,label=category,eval_file=test.csv
    bertjax predict --checkpoint runs/intents --text 'Where is my card?' --return-all-scores

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary
data     directory of train.csv (.tsv, .jsonl, .parquet, compressed or not) and dev.csv or
         validation.csv; without one of these a tenth of the training texts becomes the eval set;
         or tfds:NAME/CONFIG
train_file, eval_file  names of other files in it
text     column of the text; title+body joins two columns
text_pair  column of a second text, if there is one
label    column of the label; columns of 0 and 1 as label=toxic+insult
problem_type  single_label_classification (default); multi_label_classification, with labels
         written a,b (or with | or ;), as a list, or with a column each; regression
truncation  part of a text over max_seq_length that is kept: head, tail, head_tail, or windows,
         which keep all of it
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

A thousand short texts take BERT-Base a few seconds an epoch on one TPU chip, and a few minutes on a
CPU. Ten texts of each class give a useful model, a hundred a good one.
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
    """Return the configuration for the options in the docstring of this file."""
    fields = {"dir": data, "train_file": train_file, "eval_file": eval_file}
    fields |= {"text": text, "text_pair": text_pair, "label": label}
    fields |= {"problem_type": problem_type, "truncation": truncation}
    return finetuning_config("sequence_classification", init, fields, smoke)
