"""Files, tokenizer and labels of the data of fine-tuning tasks."""

from collections.abc import Callable, Mapping, Sequence

from etils import epath

from bertjax.config.config import Config
from bertjax.formats.loading import find_bert_config, find_labels, find_tokenizer
from bertjax.tasks.task import check_vocabulary
from data_pipelines.errors import InputError
from data_pipelines.fields import field
from data_pipelines.finetuning.table import SUFFIXES
from data_pipelines.paths import is_remote
from data_pipelines.text.tfds import TFDS
from data_pipelines.vocabulary.tokenization import Tokenizer, load_tokenizer

# Fields of `data` that fine-tuning tasks share.
COMMON_DATA_FIELDS = {
    "dir": field("", 'directory of the files, or tfds:NAME/CONFIG; "" if each file has a path'),
    "train_file": field("", 'training file in `data.dir`, or split; "" finds it by name'),
    "eval_file": field(
        "", 'eval file or split; a pattern with * names several; "" finds it by name'
    ),
    "vocab": field("", 'vocabulary file; "" takes that of `init`'),
}

# Field of tasks whose objective has `LOSS_INPUTS`.
LABEL_SMOOTHING = field(
    0.0, "share of each label that the training loss divides among all classes, in [0, 1)"
)

TFDS_SPLITS = {"train": "train", "eval": "validation"}
# Names of tables without suffix.
_STEMS = {"train": ("train",), "eval": ("dev", "val", "valid", "validation")}


def load_task_tokenizer(config: Config) -> Tokenizer:
    """Return the tokenizer of `data.vocab`, or that of the model named by `init`.

    Raises:
      InputError: there is none, or it has more tokens than the model embeddings.
    """
    if config.data["vocab"]:
        tokenizer = load_tokenizer(config.data["vocab"])
    elif config.init:
        tokenizer = find_tokenizer(config.init)
    else:
        raise InputError(
            "data.vocab='', init='': no vocabulary. Name a model with init=DIR, or data.vocab=FILE "
            "to initialize at random."
        )
    check_vocabulary(config.data["vocab"] or config.init, tokenizer, config.model.vocab_size)
    return tokenizer


def require_directory(config: Config) -> epath.Path:
    """Return `data.dir`; raise InputError if it is empty."""
    if not config.data["dir"]:
        raise InputError(
            "data.dir='': no directory. Name the directory that holds the task's files."
        )
    return epath.Path(config.data["dir"])


def find_files(config: Config, split: str, default_name: str) -> list[tuple[str, epath.Path]]:
    """Return name and path of each file of a split; only an eval split may have several.

    Args:
      config: configuration of the run.
      split: "train" or "eval".
      default_name: name of the file if the configuration has none.

    Raises:
      InputError: no directory is named, or no file matches.
    """
    name = config.data[f"{split}_file"]
    directory = epath.Path(config.data["dir"]) if name else require_directory(config)
    # Joining does not recognize a remote path as absolute.
    path = epath.Path(name) if is_remote(name) else directory / (name or default_name)
    if "*" not in path.name:
        if not path.exists():
            raise InputError(
                f"{path}: no such file. Set data.dir to its directory, or name another file with "
                f"--config.data.{split}_file=FILE."
            )
        return [(split, path)]
    paths = sorted(path.parent.glob(path.name))
    if split == "train" or not paths:
        raise InputError(f"data.{split}_file={path}: {len(paths)} files match. Name one.")
    stems = {path.stem for path in paths}
    return [(path.stem if len(stems) == len(paths) else path.name, path) for path in paths]


def find_tables(
    config: Config, split: str, suffixes: Sequence[str] = SUFFIXES
) -> list[tuple[str, epath.Path]]:
    """Return name and path of each table of a split, named by the configuration or found by name.

    Args:
      config: configuration of the run.
      split: "train" or "eval".
      suffixes: suffixes of tables.

    Raises:
      InputError: see `find_files`; or several tables match, or none to train on.
    """
    data = config.data
    if data[f"{split}_file"]:
        return find_files(config, split, "")
    if split == "eval" and data["train_file"] and not data["dir"]:
        return []
    directory = require_directory(config)
    if not directory.is_dir():
        raise InputError(f"data.dir={directory}: no directory. Name the one with the files.")
    paths = _matching_tables(directory, split, suffixes)
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InputError(f"{directory} has {names}. Choose one with data.{split}_file=FILE.")
    if split == "train" and not paths:
        raise InputError(
            f"{directory} has no train{', '.join(suffixes)}. Name a file with data.train_file=FILE."
        )
    return [(split, path) for path in paths]


def has_training_table(config: Config, suffixes: Sequence[str] = SUFFIXES) -> bool:
    """Return whether there are training data, and not an eval split alone."""
    data = config.data
    if data["train_file"] or data["dir"].startswith(TFDS):
        return True
    return bool(data["dir"] and _matching_tables(epath.Path(data["dir"]), "train", suffixes))


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


def resolve_label_sets(
    config: Config,
    has_training_data: bool,
    train_labels: Callable[[], Mapping[str, Sequence[str]]],
) -> Mapping[str, Sequence[str]]:
    """Return head -> labels, as `resolve_labels` does for one label set.

    Args:
      config: configuration of the run.
      has_training_data: False takes the labels of the model, if it has any.
      train_labels: reads the label set of each head from the training data.

    """
    init, known = config.init, dict[str, tuple[str, ...]]()
    if init:
        known = find_bert_config(init).split_labels(find_labels(init))
    if known and not has_training_data:
        return known
    return {
        head: known[head] if head in known and {*known[head]} == {*labels} else labels
        for head, labels in train_labels().items()
    }


def _matching_tables(
    directory: epath.Path, split: str, suffixes: Sequence[str]
) -> list[epath.Path]:
    paths = []
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        stem, *parts = path.name.split(".")
        if stem in _STEMS[split] and any(f".{part}" in suffixes for part in parts):
            paths.append(path)
    return paths
