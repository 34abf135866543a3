"""Fine-tuning on multiple choice: SWAG (Zellers et al. 2018), and what has its layout.

    bertjax train --workdir runs/swag --config multiple_choice:init=DIR,data=SWAG
    bertjax evaluate --checkpoint runs/swag --output runs/swag/scores \
      --config multiple_choice:data=SWAG

init     a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
         begin with, its shape and its vocabulary
data     the directory of train.csv and val.csv with SWAG's columns (sent1, sent2, ending0, ...,
         label), or of JSON lines with "context", "choices" (a list) and "label"
train_file, eval_file  files of other names in it
smoke    shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

The paper's settings (section 4.4): 16 questions a step, 2e-5, 3 epochs; with them BERT-Base chooses
81.6% of SWAG's dev rightly and BERT-Large 86.6%. A row has room for four answers of 128 pieces, and
takes as many questions as fit.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "", data: str = "", train_file: str = "", eval_file: str = "", smoke: bool = False
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
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
