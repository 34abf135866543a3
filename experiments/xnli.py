"""Fine-tuning on XNLI (Conneau et al. 2018): entailment in fifteen languages.

    bertjax train --workdir runs/xnli \
      --config xnli:mode=zero_shot,init=DIR,data=DIR
    bertjax evaluate --checkpoint runs/xnli --output runs/xnli/scores \
      --config xnli:mode=zero_shot,data=DIR,test
    bertjax report runs/xnli/scores

mode      zero_shot: trained in English, evaluated in every language; translate_train: trained on
          MultiNLI machine-translated into one language, evaluated in it; translate_test: trained in
          English, evaluated on test sets machine-translated into English
language  translate_train: the language; other modes: languages of test, joined by +, or all of
          ar bg de el en es fr hi ru sw th tr ur vi zh
init      checkpoint or workdir of bertjax, or model directory of Hugging Face or TF1; provides the
          encoder, its architecture and its vocabulary
data      directory with the unpacked archives XNLI-1.0 and XNLI-MT-1.0 and GLUE's MNLI; or, for
          evaluation only, tfds:xnli
train_file  training file in it (MNLI/train.tsv, or that of the translation)
test      evaluate on test. Train without it: a run selects (best_metric, the best of a sweep) on
          dev, in English only, or in its language for translate_train
smoke     shrink the run to a minute on a CPU; without init give --config.data.vocab=FILE

Each language has 2,490 examples in dev and 5,010 in test, so the mean over languages is the mean
over examples. A damaged line is an error; --config.data.max_bad_fraction=0.001 skips and counts up
to that fraction. XNLI-MT-1.0/xnli/xnli.test.en.tsv names the translated language in its column
`language`; if there is a file for each language, use --config.data.eval_file='xnli.test.*.tsv'
--config.data.eval_set_column=.

Test accuracies of multilingual BERT-Base as published by its authors, in percent:

                            en    zh    es    de    ar    ur
  translate_train, cased    81.9  76.6  77.8  75.9  70.7  61.6
  translate_train, uncased  81.4  74.2  77.3  75.2  70.5  61.7
  translate_test, uncased   81.4  70.1  74.9  74.4  70.4  62.1
  zero_shot, uncased        81.4  63.8  74.3  70.5  62.1  58.3

A much lower score (36 in Chinese, where chance is 33) usually means the wrong casing: the log
reports what the vocabulary loses of each language. Two epochs are 24,500 steps, less than an hour
on one TPU chip; the test sets have 75,150 examples and take some minutes.
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
    """Return the configuration for the options in the docstring of this file."""
    if mode not in MODES:
        raise ValueError(f"mode={mode!r}: unknown. Use one of {', '.join(MODES)}.")
    translates = mode == "translate_train"
    if translates and (not language or "+" in language):
        raise ValueError(f"mode={mode}: trains in one language. Give language=zh, for example.")
    if language and not (translates or test):
        raise ValueError(f"language={language!r}: dev is evaluated in English. Add test.")
    if data.startswith("tfds:"):
        if mode == "translate_test":
            raise ValueError(f"data={data!r}: has no translations. Name the unpacked archives.")
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
