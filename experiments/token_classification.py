"""Tags of words, such as named entities, fine-tuned on columns of words and tags.

    bertjax train --workdir runs/ner \
      --config token_classification:init=DIR,data=DIR,train_file=train.conll,eval_file=dev.conll
    bertjax evaluate --checkpoint runs/ner --output runs/ner/test \
      --config token_classification:data=DIR,eval_file=test.conll
    bertjax predict --checkpoint runs/ner --text 'Ada Lovelace wrote to Charles Babbage.'

init     a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
         begin with, its shape and its vocabulary; a cased one where names begin with capitals
data     the directory of the files: columns (.conll, .txt, .tsv) with the word first and its tag
         last, or JSON lines with "words" and "tags"; or tfds:NAME
train_file, eval_file  the files in it; without names, those that are called train and dev (or valid)
context  sentence, or document: what stands around it in its document is read with each sentence, as
         the paper did
features leaves the encoder as it is and trains a BiLSTM on its layers (section 5.3): embeddings,
         second_to_last, last, sum_last_four, concat_last_four or sum_all
smoke    shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

Rate, batch and epochs are of those that the paper chose from. CoNLL-2003 (14,041 sentences) takes
BERT-Base about two minutes on one TPU chip; the paper's test F1 is 92.4, with the document around.
"""

from typing import Any

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config

# Layers, and what is made of several.
FEATURE_LAYERS = {
    "embeddings": ("0", "concat"),
    "second_to_last": ("-2", "concat"),
    "last": ("-1", "concat"),
    "sum_last_four": ("-4..-1", "sum"),
    "concat_last_four": ("-4..-1", "concat"),
    "sum_all": ("1..-1", "sum"),
}


def get_config(
    init: str = "",
    data: str = "",
    train_file: str = "",
    eval_file: str = "",
    context: str = "sentence",
    features: str = "",
    smoke: bool = False,
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    fields: dict[str, Any] = {}
    if features:
        if features not in FEATURE_LAYERS:
            raise ValueError(
                f"features={features!r} is unknown: use one of {', '.join(FEATURE_LAYERS)}."
            )
        layers, mix = FEATURE_LAYERS[features]
        fields = {
            "steps": "10 epochs",
            "model": {"feature_layers": layers, "feature_mix": mix, "bilstm": 768},
            "optimizer": {"learning_rate": 1e-3},
        }
    data_fields = {
        "dir": data,
        "train_file": train_file,
        "eval_file": eval_file,
        "context": context,
    }
    return finetuning_config("token_classification", init, data_fields, smoke, **fields)
