"""Fine-tuning on a task of GLUE (Wang et al. 2018; Devlin et al. 2019, section 4.1).

    bertjax train --workdir runs/mrpc \
      --config glue:task=mrpc,init=DIR,data=GLUE
    bertjax evaluate --checkpoint runs/mrpc --output runs/mrpc/scores \
      --config glue:task=mrpc,data=GLUE
    bertjax submit --checkpoint runs/* --data GLUE --majority-class wnli --output submission.zip

task     cola, sst2, mrpc, stsb, qqp, mnli (which answers AX too), qnli, rte or wnli
init     a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
         begin with, its shape and its vocabulary
data     the directory of GLUE's folders, or that of the task, with train.tsv and dev.tsv as they
         are published; or tfds:glue/NAME
smoke    shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

The paper tries 2 to 4 epochs, 16 or 32 examples a step, and the rates 5e-5, 4e-5, 3e-5 and
2e-5, as `bertjax sweep` does. With BERT-Base dev comes to CoLA 56 (Matthews), SST-2 92,
MRPC 89 (F1), STS-B 88 (Pearson), QQP 87 (F1), MNLI 84, QNLI 91, RTE 66. MRPC takes half a minute on
one TPU chip; MNLI, with 393,000 examples, less than an hour.
"""

from ml_collections import ConfigDict


def get_config(
    task: str = "mrpc", init: str = "", data: str = "", smoke: bool = False
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
        "optimizer": {"learning_rate": 3e-5, "warmup": "10%"},
        "data": {"dir": data, "glue": task},
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
