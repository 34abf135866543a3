"""Where the data of a fine-tuning task lie, and the tokenizer that reads them."""

from collections.abc import Callable, Sequence

from etils import epath

from bertjax.config.config import Config
from bertjax.formats.loading import find_labels, find_tokenizer
from bertjax.tasks.task import check_vocabulary
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.finetuning.table import SUFFIXES
from data_pipelines.paths import is_remote
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

# The fields of `data` that are read here.
COMMON_DATA_FIELDS = {
    "dir": field("", 'directory of the files, or tfds:NAME/CONFIG; "" where each has its path'),
    "train_file": field("", 'file in `data.dir`, or split; "" for the one that is called so'),
    "eval_file": field("", "likewise, to evaluate on; with a * in it, several files"),
    "vocab": field("", 'a vocabulary; "" for that of `init`'),
}

TFDS_SPLITS = {"train": "train", "eval": "validation"}
# What tables are called without their suffix.
_STEMS = {"train": ("train",), "eval": ("dev", "val", "valid", "validation")}


def load_task_tokenizer(config: Config) -> Tokenizer:
    """The tokenizer that `data.vocab` names, or that of the model which the run begins with.

    Raises:
      InputError: there is none, or it has more pieces than the model vectors.
    """
    if config.data["vocab"]:
        tokenizer = load_tokenizer(config.data["vocab"])
    elif config.init:
        tokenizer = find_tokenizer(config.init)
    else:
        raise InputError(
            "there is no vocabulary: name a model with init=DIR, or data.vocab=FILE to begin with "
            "random parameters."
        )
    check_vocabulary(config.data["vocab"] or config.init, tokenizer, config.model.vocab_size)
    return tokenizer


def find_files(config: Config, split: str, default_name: str) -> list[tuple[str, epath.Path]]:
    """Name and path of each file of a split, "train" or "eval"; several are for evaluation alone.

    Args:
      usual: what the file is called where the configuration does not say.

    Raises:
      InputError: no directory is named, or a pattern is that of no file.
    """
    data = config.data
    if not data["dir"] and not data[f"{split}_file"]:
        raise InputError("data.dir is empty: name the directory that holds the task's files.")
    name = data[f"{split}_file"] or default_name
    # A remote path is absolute, which joining does not know.
    path = epath.Path(name) if is_remote(name) else epath.Path(data["dir"]) / name
    if "*" not in path.name:
        if not path.exists():
            raise InputError(
                f"there is no file {path}: data={data['dir']} is to be the directory that holds "
                f"it, or name another file with --config.data.{split}_file=FILE."
            )
        return [(split, path)]
    paths = sorted(path.parent.glob(path.name))
    if split == "train" or not paths:
        raise InputError(f"data.{split}_file={path} names {len(paths)} files: name one.")
    return [(path.stem, path) for path in paths]


def find_tables(
    config: Config, split: str, suffixes: Sequence[str] = SUFFIXES
) -> list[tuple[str, epath.Path]]:
    """Name and path of each table of a split: those that are named, or the one that is called so.

    Args:
      suffixes: by one of which a table is known.

    Raises:
      InputError: as `find_files`, there are several to choose from, or none to train on.
    """
    data = config.data
    if data[f"{split}_file"]:
        return find_files(config, split, "")
    if split == "eval" and data["train_file"] and not data["dir"]:
        return []
    if not data["dir"]:
        raise InputError("data.dir is empty: name the directory that holds the task's files.")
    directory = epath.Path(data["dir"])
    if not directory.is_dir():
        raise InputError(f"data.dir={directory} is no directory: name the one with the files.")
    found = _matching_tables(directory, split, suffixes)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"{directory} has {names}: choose one with data.{split}_file=FILE.")
    if split == "train" and not found:
        raise InputError(
            f"{directory} has no train{', '.join(suffixes)}: name a file with data.train_file=FILE."
        )
    return [(split, path) for path in found]


def has_training_table(config: Config, suffixes: Sequence[str] = SUFFIXES) -> bool:
    """Whether there is something to train on, and not to evaluate on alone."""
    data = config.data
    if data["train_file"] or data["dir"].startswith(TFDS):
        return True
    directory = epath.Path(data["dir"])
    return (
        bool(data["dir"])
        and directory.is_dir()
        and bool(_matching_tables(directory, "train", suffixes))
    )


def resolve_labels(
    config: Config, has_training_data: bool, train_labels: Callable[[], Sequence[str]]
) -> tuple[str, ...]:
    """Return the labels of the training data, in the order of the model named by `init` if it can.

    Args:
      config: configuration of the run.
      has_training_data: False takes the labels of the model, if it has any.
      train_labels: reads the labels of the training data.
    """
    known = find_labels(config.init) if config.init else ()
    if known and not has_training_data:
        return known
    labels = tuple(train_labels())
    return known if set(known) == set(labels) else labels


def _matching_tables(
    directory: epath.Path, split: str, suffixes: Sequence[str]
) -> list[epath.Path]:
    return [
        path
        for path in sorted(directory.iterdir())
        if path.name.partition(".")[0] in _STEMS[split] and {*_suffixes(path)} & {*suffixes}
    ]


def _suffixes(path: epath.Path) -> list[str]:
    return [f".{part}" for part in path.name.split(".")[1:]]
