"""Fine-tuning on XNLI (Conneau et al. 2018): entailment of sentences in fifteen languages.

    bertjax train --workdir runs/xnli \
      --config xnli:mode=zero_shot,init=DIR,data=DIR
    bertjax evaluate --checkpoint runs/xnli --output runs/xnli/scores \
      --config xnli:mode=zero_shot,data=DIR,test
    bertjax report runs/xnli/scores

mode      zero_shot: trained in English, scored in every language; translate_train: trained on
          MultiNLI as a machine translated it into one language, scored in that; translate_test:
          trained in English, scored on the test sets as a machine translated them into English
language  of translate_train, the one; of the others those that are scored, joined by +, or all:
          ar bg de el en es fr hi ru sw th tr ur vi zh
init      a workdir or checkpoint of bertjax, or a directory of Hugging Face or TF1: the encoder to
          begin with, its shape and its vocabulary
data      the directory in which both archives were unpacked, XNLI-1.0 and XNLI-MT-1.0, with GLUE's
          MNLI beside them; or, to evaluate alone, tfds:xnli
train_file  another training file in it than MNLI/train.tsv, or than that of the translation
test      evaluates on test. A run is to be without it: it chooses (best_metric, the best of a sweep)
          by dev, English alone, but for translate_train that of its language
smoke     shrinks all of it to a minute on a CPU; without init, --config.data.vocab=FILE

Each language has 2,490 examples in dev and 5,010 in test, so that their mean is that over all. Bad
lines are refused by their numbers; --config.data.max_bad_fraction=0.001 leaves so many out and counts them.
XNLI-MT-1.0/xnli/xnli.test.en.tsv is taken to name in its column `language` the one that was
translated; of a file for each, --config.data.eval_file='xnli.test.*.tsv' --config.data.eval_set_column= names all.

The accuracies that BERT's authors give for multilingual BERT-Base on test, in percent:

                            en    zh    es    de    ar    ur
  translate_train, cased    81.9  76.6  77.8  75.9  70.7  61.6
  translate_train, uncased  81.4  74.2  77.3  75.2  70.5  61.7
  translate_test, uncased   81.4  70.1  74.9  74.4  70.4  62.1
  zero_shot, uncased        81.4  63.8  74.3  70.5  62.1  58.3

A score far below (36 in Chinese, where a third is chance) has most often the wrong casing: a line
of the log says what the vocabulary loses of each language. Two epochs are 24,500 steps, as those of
MNLI less than an hour on one TPU chip; the test sets are 75,150 examples, some minutes.
"""

from ml_collections import ConfigDict

from bertjax.config.presets import finetuning_config

MODES = ("zero_shot", "translate_train", "translate_test")
ENGLISH = "MNLI/train.tsv"
TRANSLATED = "XNLI-MT-1.0/multinli/multinli.train.{}.tsv"
DEV, TEST = "XNLI-1.0/xnli.dev.tsv", "XNLI-1.0/xnli.test.tsv"
TEST_IN_ENGLISH = "XNLI-MT-1.0/xnli/xnli.test.en.tsv"


def get_config(
    mode: str = "zero_shot",
    language: str = "",
    init: str = "",
    data: str = "",
    train_file: str = "",
    test: bool = False,
    smoke: bool = False,
) -> ConfigDict:
    """The configuration for the options in the file's docstring."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is unknown: choose one of {', '.join(MODES)}.")
    translates = mode == "translate_train"
    if translates and (not language or "+" in language):
        raise ValueError(f"mode={mode} trains in one language: say which with language=zh.")
    if data.startswith("tfds:"):
        dev, final = "validation", "test"
    else:
        dev, final = DEV, TEST_IN_ENGLISH if mode == "translate_test" else TEST
    return finetuning_config(
        "sequence_classification",
        init,
        {
            "dir": data,
            "glue": "mnli",
            "train_file": train_file or (TRANSLATED.format(language) if translates else ENGLISH),
            "eval_file": final if test else dev,
            "eval_set_column": "language",
            "eval_sets": language if test or translates else "en",
        },
        smoke,
        steps="2 epochs",
        checkpoint_every="10%",
        eval_every="25%",
    )
