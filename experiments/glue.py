"""Fine-tuning on a GLUE task (Wang et al. 2018; Devlin et al. 2019, section 4.1).

    bertjax train --workdir runs/mrpc \
      --config glue:task=mrpc,init=DIR,data=GLUE
    bertjax evaluate --checkpoint runs/mrpc --output runs/mrpc/scores \
      --config glue:task=mrpc,data=GLUE
    bertjax submit --checkpoint runs/* --data GLUE --majority-class wnli --output submission.zip

task     cola, sst2, mrpc, stsb, qqp, mnli (also predicts AX), qnli, rte or wnli
init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary
data     directory of GLUE's folders, or that of the task, with train.tsv and dev.tsv as published;
         or tfds:glue/NAME
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

The paper tries 2 to 4 epochs, batch sizes 16 and 32, and learning rates 5e-5, 4e-5, 3e-5 and 2e-5,
as `bertjax sweep` does. BERT-Base reaches on dev: CoLA 56 (Matthews), SST-2 92, MRPC 89 (F1), STS-B
88 (Pearson), QQP 87 (F1), MNLI 84, QNLI 91, RTE 66. MRPC takes half a minute on one TPU chip; MNLI,
with 393,000 examples, less than an hour.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    task: str = "mrpc", init: str = "", data: str = "", smoke: bool = False
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    fields = {"dir": data, "glue": task}
    optimizer = {"learning_rate": 3e-5}
    return finetuning_config("sequence_classification", init, fields, smoke, optimizer=optimizer)
