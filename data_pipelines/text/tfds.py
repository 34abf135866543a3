"""Records and class names of TensorFlow Datasets builders."""

from collections.abc import Iterator
from typing import Any

from data_pipelines.errors import InputError
from data_pipelines.libraries import check_installed

TFDS = "tfds:"  # prefix of sources


def check_tfds_installed(source: str) -> None:
    """Raise InputError if the libraries that read `source`, `tfds:NAME/CONFIG`, are missing."""
    libraries = ("tensorflow", "tensorflow_datasets")
    check_installed(source, *libraries, install="tensorflow-cpu tensorflow-datasets")


def read_tfds_records(source: str, split: str) -> Iterator[dict[str, Any]]:
    """Download a TensorFlow Datasets builder and yield the records of a split in a fixed order.

    Args:
      source: `tfds:NAME/CONFIG`.
      split: name of the split, or a slice such as `train[:1%]`.

    Raises:
      InputError: the builder or the split does not exist, or a library is not installed.
    """
    check_tfds_installed(source)
    import tensorflow_datasets as tfds  # takes seconds to import

    name = source.removeprefix(TFDS)
    try:
        builder = tfds.builder(name)
    except ValueError:
        raise InputError(
            f"{source}: unknown to TensorFlow Datasets. Write tfds:NAME/CONFIG as in its catalog."
        ) from None
    builder.download_and_prepare()
    if split.partition("[")[0] not in builder.info.splits:
        splits = ", ".join(builder.info.splits) or "none"
        raise InputError(f"{source}: no split {split}, only {splits}. Choose another one.")
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    try:
        records = builder.as_dataset(split=split, shuffle_files=False, read_config=in_order)
    except ValueError as error:
        raise InputError(f"{source}: no slice {split} ({error}). Fix it.") from None
    yield from tfds.as_numpy(records)


def read_tfds_class_names(source: str) -> dict[str, list[str]]:
    """Return the class names of each feature that has classes; {} for an unknown builder."""
    import tensorflow_datasets as tfds

    try:
        features = tfds.builder(source.removeprefix(TFDS)).info.features
    except ValueError:
        return {}
    names = {}
    for name, feature in (features or {}).items():
        element = getattr(feature, "feature", feature)  # the feature inside a sequence
        if isinstance(element, tfds.features.ClassLabel) and element.names:
            names[name] = element.names
    return names
