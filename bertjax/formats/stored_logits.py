"""Logits of a teacher in a safetensors file, found by a digest of the model's input.

`digests` [N, 16] has the digest of each of N examples. For each head, `HEAD.counts` [N] has the
number of slots of an example: 1 if the head is pooled, its tokens, or its masked positions.
`HEAD.logits` has a row for each slot: the logits of all classes, or with top-k those of the K
largest, whose ids are in `HEAD.ids`, and one of all others together. The metadata name the teacher.
"""

import dataclasses
import functools
import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
from etils import epath

from bertjax.formats.example_digests import (
    DIGEST_BYTES,
    Arrays,
    BatchExamples,
    ExampleInputs,
    num_slots,
)
from bertjax.model.heads import HEADS
from data_pipelines.errors import InputError
from data_pipelines.finetuning.examples import Examples
from data_pipelines.parsing import parse_json
from data_pipelines.paths import check_file, is_remote
from data_pipelines.ranges import concatenate_ranges
from data_pipelines.schema import check_schema
from data_pipelines.vocabulary.tokenization import Tokenizer

_DTYPES: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "F32": np.dtype(np.float32),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER_BYTES = 1 << 24
_METADATA = "bertjax"
_SHOWN_TOKENS = 12  # of an example without logits
_HEADER_SCHEMA = {
    "__metadata__": {_METADATA: str},
    "digests": {"dtype": str, "shape": [int], "data_offsets": [int]},
}
_METADATA_SCHEMA = {
    "teacher": str,
    "teacher_digest": str,
    "labels": [str],
    "vocabulary": str,
    "heads": {str: {"num_classes": int, "top_k": int, "omitted_mass": float}},
    "content": str,
}
_FIX = "Write it again with `bertjax predict --save-logits`."


class StoredClasses(NamedTuple):
    """Classes of a head whose logits are stored.

    Attributes:
      num_classes: number of classes.
      top_k: number of the largest that are stored, with one of all others; 0 for all classes.
    """

    num_classes: int
    top_k: int

    @property
    def width(self) -> int:
        """Logits of a slot."""
        return self.top_k + 1 if self.top_k else self.num_classes


def teacher_key(head: str, kind: str) -> str:
    """Return the name of the batch array of a head's stored "logits", or "ids" of classes."""
    return f"teacher_{head}_{kind}"


class StoredLogits:
    """The logits in a file; its arrays are mapped, and read where a batch needs them.

    A file in a bucket is copied to a local temporary file first.

    Args:
      path: the file.

    Attributes:
      teacher: directory of the teacher.
      teacher_digest: digest of its parameters.
      labels: its label names; empty without a classifier.
      vocabulary: fingerprint of its tokenizer.
      heads: name -> classes of each head.
      digest: digest of the file, hexadecimal.

    Raises:
      InputError: there is no such file, or it is none of stored logits.
    """

    def __init__(self, path: epath.PathLike) -> None:
        self.path = check_file(path)
        try:
            with self.path.open("rb") as file:
                size = int.from_bytes(file.read(8), "little")
                if size > _MAX_HEADER_BYTES:
                    raise ValueError(f"a header of {size:,} bytes")
                content = file.read(size)
            header = parse_json(content.decode())
            check_schema(f"{path}: ", header, _HEADER_SCHEMA, _FIX)
            metadata = parse_json(header.pop("__metadata__")[_METADATA])
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: not a file of stored logits ({error}). {_FIX}") from None
        check_schema(f"{path}: ", metadata, _METADATA_SCHEMA, _FIX)
        self.teacher, self.teacher_digest = metadata["teacher"], metadata["teacher_digest"]
        self.labels, self.vocabulary = tuple(metadata["labels"]), metadata["vocabulary"]
        self.heads = {
            name: StoredClasses(head["num_classes"], head["top_k"])
            for name, head in metadata["heads"].items()
        }
        self.digest = hashlib.sha256(content).hexdigest()
        self._entries, self._offset = header, 8 + size

    @functools.cached_property
    def _arrays(self) -> Arrays:
        file: Any = self.path
        if is_remote(self.path):
            file = tempfile.TemporaryFile()  # noqa: SIM115 (mapped until the end)
            with self.path.open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 24)
            file.flush()
        arrays = {}
        try:
            for name, entry in self._entries.items():
                shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
                dtype = _DTYPES[entry["dtype"]]
                if end - begin != math.prod(shape) * dtype.itemsize or min(begin, *shape) < 0:
                    raise ValueError(f"array {name} has another size")
                arrays[name] = np.memmap(file, dtype, "r", self._offset + begin, shape)
            num_examples, num_bytes = arrays["digests"].shape
            for name, classes in self.heads.items():
                counts, shape = arrays[f"{name}.counts"], (len(arrays[f"{name}.logits"]),)
                expected = {f"{name}.logits": (*shape, classes.width)}
                if classes.top_k:
                    expected[f"{name}.ids"] = (*shape, classes.top_k)
                if counts.shape != (num_examples,) or int(counts.sum()) != shape[0]:
                    raise ValueError(f"array {name}.counts does not fit the logits")
                if any(arrays[key].shape != value for key, value in expected.items()):
                    raise ValueError(f"array {name}.logits has another shape")
            if num_bytes != DIGEST_BYTES:
                raise ValueError(f"digests of {num_bytes} bytes")
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{self.path}: damaged ({error}). {_FIX}") from None
        return arrays

    @functools.cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        """Digests in ascending order of their first half, uint64 [N, 2], and their rows."""
        halves = np.array(self._arrays["digests"]).view(np.uint64)
        order = np.argsort(halves[:, 0], kind="stable")
        return halves[order], order

    @functools.cached_property
    def _starts(self) -> Arrays:
        counts = {name: self._arrays[f"{name}.counts"].astype(np.int64) for name in self.heads}
        return {name: np.cumsum(values) - values for name, values in counts.items()}

    def find_rows(self, digests: np.ndarray) -> np.ndarray:
        """Return the row of each digest, int64 [n], -1 for none."""
        halves, order = self._index
        if not len(halves):
            return np.full(len(digests), -1)
        wanted = np.ascontiguousarray(digests).view(np.uint64)
        found = np.minimum(np.searchsorted(halves[:, 0], wanted[:, 0]), len(halves) - 1)
        return np.where((halves[found] == wanted).all(axis=1), order[found], -1)

    def check_examples(
        self, examples: Examples, tokenizer: Tokenizer, predicts_targets: bool
    ) -> None:
        """Check that examples have logits before a batch needs them.

        Args:
          examples: the examples.
          tokenizer: its tokens are shown in the message of an error.
          predicts_targets: as in `ExampleInputs.of_examples`.

        Raises:
          InputError: an example has none; the message names it.
        """
        inputs = ExampleInputs.of_examples(examples, predicts_targets)
        self._find_rows(inputs, tokenizer, "example {:,} of the training data")

    def add_to(self, batch: Arrays, tokenizer: Tokenizer) -> dict[str, np.ndarray]:
        """Return a batch with the logits of its examples; empty slots have zeros.

        Raises:
          InputError: an example has no logits; the message names it.
        """
        examples = BatchExamples(batch, self.heads)
        rows = self._find_rows(examples.inputs, tokenizer, "example {:,} of a batch")
        result = dict(batch)
        for name in self.heads:
            shape = len(batch["example_ids"]), num_slots(HEADS[name], batch)
            source = concatenate_ranges(self._starts[name][rows], examples.counts[name])
            for kind in ("logits", "ids"):
                stored = self._arrays.get(f"{name}.{kind}")
                if stored is None:
                    continue
                values = np.zeros((math.prod(shape), stored.shape[1]), stored.dtype)
                values[examples.slots[name]] = stored[source]
                result[teacher_key(name, kind)] = values.reshape(*shape, -1)
        return result

    def _find_rows(self, inputs: ExampleInputs, tokenizer: Tokenizer, name: str) -> np.ndarray:
        """Return the row of each example, int64 [N]; `name` is one in the message of an error."""
        rows = self.find_rows(inputs.digests)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            ids = inputs.input_ids(int(missing[0]))
            text = " ".join(tokenizer.tokens[token] for token in ids[:_SHOWN_TOKENS])
            dots = " ..." if len(ids) > _SHOWN_TOKENS else ""
            raise InputError(
                f"distill.logits={self.path}: has no logits of {name.format(missing[0] + 1)}, "
                f"{text + dots!r}, nor of {len(missing) - 1:,} others of {len(rows):,}. Write them "
                "for this configuration with `bertjax predict --save-logits`."
            )
        return rows


@dataclasses.dataclass(frozen=True)
class LogitsWriter:
    """Writer of a file from parts, each with the file's arrays of some of the examples.

    Attributes:
      teacher: directory of the teacher.
      teacher_digest: digest of its parameters.
      labels: its label names.
      vocabulary: fingerprint of its tokenizer.
      heads: name -> classes of each head.
    """

    teacher: str
    teacher_digest: str
    labels: tuple[str, ...]
    vocabulary: str
    heads: Mapping[str, StoredClasses]

    def write(self, file: IO[bytes], read: Callable[[], Iterator[Arrays]]) -> dict[str, float]:
        """Write the file; return the mean probability of the classes left out, by head.

        Args:
          file: the file.
          read: returns the parts; it is called once for the header and once for each array.
        """
        shapes: dict[str, list[int]] = {}
        dtypes: dict[str, np.dtype] = {}
        masses, content = dict.fromkeys(self.heads, 0.0), hashlib.sha256()
        for part in read():
            for name, array in part.items():
                content.update(np.ascontiguousarray(array).data)
                dtypes[name] = array.dtype
                shapes.setdefault(name, [0, *array.shape[1:]])[0] += len(array)
            for name, classes in self.heads.items():
                if classes.top_k:
                    logits = part[f"{name}.logits"].astype(np.float64)
                    logits = np.exp(logits - logits.max(axis=1, keepdims=True))
                    masses[name] += float((logits[:, -1] / logits.sum(axis=1)).sum())
        masses = {
            name: total / max(shapes[f"{name}.logits"][0], 1) for name, total in masses.items()
        }
        header = self._header(shapes, dtypes, masses, content.hexdigest())
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the arrays are aligned
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            for part in read():
                file.write(np.ascontiguousarray(part[name]).data)
        return {name: masses[name] for name, classes in self.heads.items() if classes.top_k}

    def _header(
        self,
        shapes: Mapping[str, list[int]],
        dtypes: Mapping[str, np.dtype],
        masses: Mapping[str, float],
        content: str,
    ) -> dict[str, Any]:
        fields = dataclasses.asdict(self) | {"content": content}
        fields["heads"] = {
            name: classes._asdict() | {"omitted_mass": masses[name]}
            for name, classes in self.heads.items()
        }
        header: dict[str, Any] = {"__metadata__": {_METADATA: json.dumps(fields)}}
        end = 0
        for name, shape in shapes.items():
            begin, end = end, end + math.prod(shape) * dtypes[name].itemsize
            entry = {"dtype": _NAMES[dtypes[name]], "shape": shape, "data_offsets": [begin, end]}
            header[name] = entry
        return header
