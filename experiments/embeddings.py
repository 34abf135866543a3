"""Training of embeddings of texts, for similarity and search.

    bertjax train --config embeddings:init=DIR,data=DIR --workdir runs/similar
    bertjax evaluate --checkpoint runs/similar --output runs/similar/scores \
      --config embeddings:data=DIR,eval_file=sts-test.csv
    bertjax embed --checkpoint runs/similar --input lines.txt --output embeddings.npz
    bertjax convert --to hf runs/similar similar-hf

init     checkpoint or workdir of bertjax, or model directory of Hugging Face, TF1 or
         sentence-transformers; provides the encoder, its architecture and its vocabulary
data     directory of train.jsonl (.csv, .tsv, .parquet, compressed or not) and dev.jsonl, with the
         columns of sentence-transformers' data sets, whose order counts: an anchor, its positive,
         negatives; two texts and a score; a text alone; or tfds:NAME/CONFIG
train_file, eval_file  names of other files in it; eval_file='*-dev.csv' evaluates several
texts    columns to train on, such as query+answer, if there are others; eval_texts those of eval
         files
loss     multiple_negatives_ranking, cosent or cosine_similarity, by default by the columns; or mse
         with --config.distill.teacher=DIR or --config.distill.embeddings=FILE.npz: texts alone, and
         their embeddings by a teacher
pooling  mean, cls or max over the vectors of a text's tokens; by default that of init, or mean
smoke    shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

Every positive and negative of a batch is a negative of the other anchors, so larger batches learn
more, and no batch has a text twice. A batch that does not fit in memory does with
--config.gradient_accumulation_steps=N, with the same loss: gradients are cached.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config


def get_config(
    init: str = "",
    data: str = "",
    train_file: str = "",
    eval_file: str = "",
    texts: str = "",
    eval_texts: str = "",
    loss: str = "",
    pooling: str = "",
    smoke: bool = False,
) -> ConfigDict:
    """Return the configuration for the options in the docstring of this file."""
    fields = {"dir": data, "train_file": train_file, "eval_file": eval_file, "texts": texts}
    fields |= {"eval_texts": eval_texts, "loss": loss, "pooling": pooling}
    return finetuning_config(
        "embeddings", init, fields, smoke, batch_size=128, steps="1 epochs", eval_every="10%"
    )
