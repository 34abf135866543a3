"""Fine-tuning on pairs of a source and a target text, such as questions for passages, or summaries.

    bertjax train --config generation:init=DIR,data=DIR --workdir runs/questions
    bertjax evaluate --checkpoint runs/questions --output runs/questions/test \
      --config generation:data=DIR,eval_file=test.jsonl
    bertjax predict --checkpoint runs/questions --text 'Paris is the capital of France.'
    bertjax train --config generation:init=DIR,data=DIR,decoder=cross_attention --workdir runs/two

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, the masked LM head, the architecture and the vocabulary
data     directory of train.jsonl and dev.jsonl, or of CSV, TSV or Parquet, with the columns source
         and target (docs/data-formats.md); or tfds:NAME
train_file, eval_file  names of other files in it
source, target  names of other columns
decoder  prefix or masked_prefix: the encoder itself, or cross_attention: a second stack of blocks
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

prefix is UniLM's decoder (Dong et al. 2019): the encoder's own attention, with a mask in which a
target token sees the source and the target so far. Lengths, batch size and learning rate are those
of its fine-tuning code s2s-ft for questions: 464 tokens of source, 48 of target, 64 pairs, 7e-5.
masked_prefix has the same mask and predicts target tokens at [MASK], as s2s-ft does.
cross_attention is BERT2BERT (Rothe et al. 2020): a decoder initialized from the parameters of the
same BERT and random cross-attention to the source.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "",
    data: str = "",
    train_file: str = "",
    eval_file: str = "",
    source: str = "source",
    target: str = "target",
    decoder: str = "prefix",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    model = {"decoder": decoder, "direction": "bidirectional"}
    return finetuning_config(
        "generation",
        init,
        {
            "dir": data,
            "train_file": train_file,
            "eval_file": eval_file,
            "source": source,
            "target": target,
            "label_smoothing": 0.1,
        },
        smoke,
        smoke_overrides={"max_seq_length": 128, "model": model},
        batch_size=64,
        max_seq_length=512,
        model=model,
        optimizer={"learning_rate": 7e-5},
    )
