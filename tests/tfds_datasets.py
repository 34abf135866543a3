"""Small data sets as the catalogue of TensorFlow Datasets has large ones."""

import pathlib


def tiny_builder(directory: pathlib.Path) -> type:
    """A base class; subclasses have `features`, and `records`, for each split a list of them.

    They are registered by the names of their classes, and kept in `directory`.
    """
    import tensorflow_datasets as tfds

    class Tiny(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        VERSION = tfds.core.Version("1.0.0")
        features: dict
        records: dict

        def __init__(self, **options):  # type: ignore[no-untyped-def]
            super().__init__(**{**options, "data_dir": directory})

        def _info(self):  # type: ignore[no-untyped-def]
            features = tfds.features.FeaturesDict(self.features)
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):  # type: ignore[no-untyped-def]
            return {split: self._generate_examples(split) for split in self.records}

        def _generate_examples(self, split):  # type: ignore[no-untyped-def]
            yield from enumerate(self.records[split])

    return Tiny
