"""Fine-tuning on texts of one's own: a class, several labels or a number for each.

    bertjax train --workdir runs/intents \
      --config sequence_classification:init=DIR,data=DIR,text=text,label=category
    bertjax evaluate --checkpoint runs/intents --output runs/intents/scores \
      --config sequence_classification:data=DIR,text=text,label=category,dev=test.csv
    bertjax predict --checkpoint runs/intents --text 'Where is my card?' --return-all-scores

init     a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
         begin with, its shape and its vocabulary
data     the directory of train.csv (.tsv, .jsonl, .parquet, compressed or not) and, if there is
         one, dev.csv or validation.csv: else a tenth of the training texts is held out; or
         tfds:NAME/CONFIG
train, dev  files of other names in it
text     the column of the text; title+body joins two
pair     that of a second text, if there is one
label    that of what is to be said
target   class: one of several; labels: any number of several, written a,b or as a JSON list;
         number
truncation  what is kept of a text over max_seq_length: head, tail, head_tail, or all of it in windows
smoke    shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

A thousand short texts take BERT-Base some seconds an epoch on one TPU chip, and a few minutes on a
CPU. Ten texts of each class are enough to be useful, a hundred to be good.
"""

from ml_collections import ConfigDict


def get_config(
    init: str = "",
    data: str = "",
    train: str = "",
    dev: str = "",
    text: str = "text",
    text_pair: str = "",
    label: str = "label",
    problem_type: str = "class",
    truncation: str = "head",
    smoke: bool = False,
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    config = {
        "task": "sequence_classification",
        "seed": 0,
        "steps": "3 epochs",
        "batch_size": 32,
        "max_seq_length": 128,
        "log_every": 50,
        "checkpoint_every": "20%",
        "eval_every": "1 epochs",
        "init": init,
        "mesh": {"data": -1, "fsdp": 1, "tensor": 1},
        "model": {"dtype": "bfloat16"},
        "optimizer": {"learning_rate": 5e-5, "warmup": "10%"},
        "data": {
            "dir": data,
            "train": train,
            "dev": dev,
            "text": text,
            "text_pair": text_pair,
            "label": label,
            "problem_type": problem_type,
            "truncation": truncation,
        },
    }
    return ConfigDict(_shrink_for_smoke(config) if smoke else config)


def _shrink_for_smoke(config: dict) -> dict:
    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "dtype": "float32"}
    return config | {
        "steps": 20,
        "batch_size": 8,
        "log_every": 5,
        "checkpoint_every": 10,
        "eval_every": 20,
        "model": {"dtype": "float32"} if config["init"] else tiny,
    }
