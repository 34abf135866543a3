"""Fine-tuning on multiple choice: SWAG (Zellers et al. 2018) and data in its layout.

    bertjax train --workdir runs/swag --config multiple_choice:init=DIR,data=SWAG
    bertjax evaluate --checkpoint runs/swag --output runs/swag/scores \
      --config multiple_choice:data=SWAG

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary
data     directory of train.csv and val.csv with SWAG's columns (sent1, sent2, ending0, ...,
         label), or of JSON lines with "context", "choices" (a list) and "label"
train_file, eval_file  names of other files in it
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

Settings of the paper (section 4.4): 16 questions a step, learning rate 2e-5, 3 epochs. It reports
an accuracy of 81.6% (Base) and 86.6% (Large) on SWAG's dev set. A sequence of 512 tokens holds one
question with four choices of 128 tokens, or several shorter questions. A step has 16 questions
however they are packed.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "", data: str = "", train_file: str = "", eval_file: str = "", smoke: bool = False
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    return finetuning_config(
        "multiple_choice",
        init,
        {"dir": data, "train_file": train_file, "eval_file": eval_file},
        smoke,
        batch_size=16,
        max_seq_length=512,
        checkpoint_every="10%",
        optimizer={"learning_rate": 2e-5},
    )
