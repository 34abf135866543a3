"""Fine-tuning on SQuAD 1.1 and 2.0, and data in their layout.

    bertjax train --workdir runs/squad \
      --config squad:version=1,init=DIR,data=DIR
    bertjax evaluate --checkpoint runs/squad --output scores \
      --config squad:version=1,data=DIR

version  1: 32 windows a step, 3 epochs; 2: unanswerable questions, 48 windows a step, 2 epochs
         (Devlin et al. 2019, sections 4.2 and 4.3)
init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary
data     directory of train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json;
         --config.data.train_file=FILE and --config.data.eval_file=FILE name other files in it
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config

BATCHES = {1: {"batch_size": 32, "steps": "3 epochs"}, 2: {"batch_size": 48, "steps": "2 epochs"}}


def get_config(version: int = 1, init: str = "", data: str = "", smoke: bool = False) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    if version not in BATCHES:
        raise ValueError(f"version={version}: unknown. Use 1 or 2.")
    return finetuning_config(
        "question_answering",
        init,
        {"dir": data, "version": version},
        smoke,
        {"max_seq_length": 128, "data": {"doc_stride": 32, "max_query_length": 32}},
        max_seq_length=384,
        checkpoint_every="10%",
        eval_every="50%",
        **BATCHES[version],
    )
