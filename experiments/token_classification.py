"""Fine-tuning on labeled words, such as named entities or parts of speech.

    bertjax train --workdir runs/ner \
      --config token_classification:init=DIR,data=DIR,train_file=train.conll,eval_file=dev.conll
    bertjax evaluate --checkpoint runs/ner --output runs/ner/test \
      --config token_classification:data=DIR,eval_file=test.conll
    bertjax predict --checkpoint runs/ner --text 'Ada Lovelace wrote to Charles Babbage.'

init     checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
         encoder, its architecture and its vocabulary; use a cased one if names are capitalized
data     directory of the files: CoNLL columns, CoNLL-U, CSV with a word in each row, JSON with
         "words" and "tags" or with spans of a text; or tfds:NAME (docs/data-formats.md)
train_file, eval_file  names of the files in it (train, and dev or valid)
word_column, tag_column  names or numbers of the columns, if others than the logged ones
context  sentence, or document: each sentence is read with its document around it, as in the paper
features  freeze the encoder and train a BiLSTM on its layers (section 5.3): embeddings,
         second_to_last, last, sum_last_four, concat_last_four or sum_all
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

Learning rate, batch size and epochs are among those of the paper. CoNLL-2003 (14,041 sentences)
takes BERT-Base about two minutes on one TPU chip. The paper's test F1 is 92.4, with document
context.
"""

from typing import Any

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config

# Layers of the encoder, and how several are combined.
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
    word_column: str = "",
    tag_column: str = "",
    context: str = "sentence",
    features: str = "",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    fields: dict[str, Any] = {}
    if features:
        if features not in FEATURE_LAYERS:
            known = ", ".join(FEATURE_LAYERS)
            raise ValueError(f"features={features!r}: unknown. Use one of {known}.")
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
        "word_column": word_column,
        "tag_column": tag_column,
    }
    return finetuning_config("token_classification", init, data_fields, smoke, **fields)
