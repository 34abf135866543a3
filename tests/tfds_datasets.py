"""Small builders of TensorFlow Datasets."""

import pathlib
from collections.abc import Mapping
from typing import Any

import pytest

_registered: set[str] = set()  # names of classes


def register_builder(
    directory: pathlib.Path,
    class_name: str,
    features: Mapping[str, Any],
    records: Mapping[str, list[dict]],
) -> None:
    """Register a builder, `TinyText` as tfds:tiny_text; a registered one stays.

    A worker that takes tests over from others may set up a fixture of a module twice.

    Args:
      directory: where the data set is stored.
      class_name: name of the class, in camel case.
      features: the features.
      records: the records of each split.
    """
    tfds = pytest.importorskip("tensorflow_datasets")
    if class_name in _registered:
        return
    _registered.add(class_name)

    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")

        def __init__(self, **options):  # type: ignore[no-untyped-def]
            super().__init__(**{**options, "data_dir": directory})

        def _info(self):  # type: ignore[no-untyped-def]
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(dict(features))
            )

        def _split_generators(self, _):  # type: ignore[no-untyped-def]
            return {split: self._generate_examples(split) for split in records}

        def _generate_examples(self, split):  # type: ignore[no-untyped-def]
            yield from enumerate(records[split])

    type(class_name, (Tiny,), {})
