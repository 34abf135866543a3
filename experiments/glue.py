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

from bertjax.config.presets import finetuning_config


def get_config(
    task: str = "mrpc", init: str = "", data: str = "", smoke: bool = False
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    return finetuning_config(
        "sequence_classification",
        init,
        {"dir": data, "glue": task},
        smoke,
        optimizer={"learning_rate": 3e-5},
    )
