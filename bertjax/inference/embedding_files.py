"""Files of embeddings or logits, written in parts so that an interrupted command resumes.

Parts lie in OUTPUT.partial, each complete or absent. Once all are there they are joined into the
file one by one, so that memory does not grow with it.
"""

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, TypeVar

import numpy as np
from etils import epath

from bertjax.tasks.embeddings.stored_embeddings import TEXT_DIGESTS, digest_texts
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write, atomic_write_bytes, atomic_write_text, is_remote

TEXTS_KEY = "texts"  # array of a part; see `texts_to_bytes`
_DIGEST_KEY, _NUM_TRUNCATED_KEY = "digest", "num_truncated"  # of a part, not of the file
PartReader = Callable[[], Iterator[dict[str, np.ndarray]]]
T = TypeVar("T")


class PartFiles:
    """Parts of a file of embeddings or logits.

    Args:
      output: the file.
      settings: everything but the input that determines its content.
      lock: lock of the directory of the parts.

    Raises:
      InputError: parts of other settings lie in the folder.
    """

    def __init__(self, output: epath.Path, settings: Mapping[str, Any], lock: WorkdirLock) -> None:
        self._output, self._folder, self._lock = output, lock.workdir, lock
        self._settings = json.dumps(settings, sort_keys=True, default=str)
        self._settings_file = self._folder / "settings.json"
        if self._settings_file.exists() and self._settings_file.read_text() != self._settings:
            raise InputError(
                f"{self._folder}: holds parts of other arguments or another model. Remove it, or "
                "name another file."
            )

    def has(self, number: int, digest: str) -> bool:
        """Return whether an intact part exists; see `find_num_truncated`."""
        return self.find_num_truncated(number, digest) is not None

    def find_num_truncated(self, number: int, digest: str) -> int | None:
        """Return the number of truncated inputs of a part; None if no intact part exists.

        Args:
          number: number of the part.
          digest: digest of its input.

        Raises:
          InputError: the part has another input.
        """
        if not self._path(number).exists():
            return None
        try:
            part = {name: array for name, array in self._read(number).items()}
            recorded, num_truncated = str(part[_DIGEST_KEY]), int(part[_NUM_TRUNCATED_KEY])
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile):
            return None
        if recorded != digest:
            raise InputError(
                f"{self._folder}: holds parts of another input. Remove it, or name another file."
            )
        return num_truncated

    def write(
        self, number: int, digest: str, part: Mapping[str, Any], num_truncated: int = 0
    ) -> None:
        """Write a part atomically; see `find_num_truncated`."""
        self._lock.confirm()
        if not self._settings_file.exists():
            atomic_write_text(self._settings_file, self._settings)
        content = io.BytesIO()
        notes = {_DIGEST_KEY: np.array(digest), _NUM_TRUNCATED_KEY: np.array(num_truncated)}
        np.savez(content, allow_pickle=False, **notes, **part)
        atomic_write_bytes(self._path(number), content.getvalue())

    def finish(self, count: int, write: Callable[[IO[bytes], PartReader], T]) -> T:
        """Join `count` parts into the file; return what `write`, a format's writer, returns."""

        def read() -> Iterator[dict[str, np.ndarray]]:
            for number in range(count):
                arrays = self._read(number)
                names = [n for n in arrays.files if n not in (_DIGEST_KEY, _NUM_TRUNCATED_KEY)]
                yield {name: arrays[name] for name in names}

        with atomic_write(self._output, self._folder) as draft:
            with _open_seekable(draft) as file:
                result = write(file, read)
            self._lock.confirm()
        return result

    def _read(self, number: int) -> Any:
        return np.load(io.BytesIO(self._path(number).read_bytes()))

    def _path(self, number: int) -> epath.Path:
        return self._folder / f"{number:08}.npz"


@contextlib.contextmanager
def _open_seekable(path: epath.Path) -> Iterator[IO[bytes]]:
    """Open a seekable file to write; a remote one is uploaded when it is closed."""
    if not is_remote(path):
        with path.open("wb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as local:
        yield local
        local.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(local, file)


def check_suffix(output: epath.Path) -> None:
    """Raise InputError if the suffix of a file names no format."""
    if output.suffix not in WRITERS:
        raise InputError(f"{output}: unknown suffix. Use one of {', '.join(WRITERS)}.")


def texts_to_bytes(texts: Sequence[str]) -> np.ndarray:
    """Return texts as a uint8 array; in a text array all would be as long as the longest."""
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def iter_rows(part: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part: `text` and `embedding`, or `text`, `tokens` and `embeddings`."""
    texts = json.loads(part[TEXTS_KEY].tobytes())
    if "counts" not in part:
        for text, embedding in zip(texts, part["embeddings"], strict=True):
            yield {"text": text, "embedding": embedding}
        return
    ends = np.cumsum(part["counts"])
    for text, first, end in zip(texts, ends - part["counts"], ends, strict=True):
        tokens = part["tokens"][first:end].tolist()
        yield {"text": text, "tokens": tokens, "embeddings": part["embeddings"][first:end]}


def _write_lines(file: IO[bytes], read: PartReader) -> None:
    for part in read():
        for row in iter_rows(part):
            text = json.dumps(row, ensure_ascii=False, default=_to_shortest_floats)
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def _to_shortest_floats(array: np.ndarray) -> Any:
    """Return nested lists of the shortest decimals that identify every float32."""
    if array.ndim > 1:
        return [_to_shortest_floats(row) for row in array]
    return [float(str(value)) for value in array]


def _write_arrays(file: IO[bytes], read: PartReader) -> None:
    """Write one array a name, joined over parts; texts have their digests in place of them."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, np.dtype] = {}
    for part in read():
        for name, array in _replace_texts(part).items():
            rows = shapes.get(name, (0,))[0] + len(array)
            shapes[name] = (rows, *array.shape[1:])
            dtypes[name] = np.promote_types(dtypes.get(name, array.dtype), array.dtype)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, shape in shapes.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # with a fixed time: equal arrays, equal bytes
            descr = np.lib.format.dtype_to_descr(dtypes[name])
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, header)
                for part in map(_replace_texts, read()):
                    member.write(np.ascontiguousarray(part[name].astype(dtypes[name])).data)


def _replace_texts(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays of a part without its texts; with their digests if each has one vector."""
    arrays = {name: array for name, array in part.items() if name != TEXTS_KEY}
    if "counts" not in part:
        arrays[TEXT_DIGESTS] = digest_texts(json.loads(part[TEXTS_KEY].tobytes()))
    return arrays


def _write_parquet(file: IO[bytes], read: PartReader) -> None:
    """Write a table; lone surrogates, which UTF-8 cannot hold, become backslash escapes."""
    import pyarrow
    from pyarrow import parquet

    text, vector = pyarrow.string(), pyarrow.list_(pyarrow.float32())
    types = {"text": text, "embedding": vector}
    types |= {"tokens": pyarrow.list_(text), "embeddings": pyarrow.list_(vector)}
    writer = None
    for part in read():
        rows = list(iter_rows(part))
        for row in rows:
            row["text"] = _escape_surrogates(row["text"])
            if "embeddings" in row:  # the layers of a token are one vector
                row["tokens"] = [_escape_surrogates(token) for token in row["tokens"]]
                row["embeddings"] = [layers.ravel() for layers in row["embeddings"]]
        schema = pyarrow.schema([(name, types[name]) for name in rows[0]])
        writer = writer or parquet.ParquetWriter(file, schema)
        writer.write_table(pyarrow.Table.from_pylist(rows, schema))
    if writer:
        writer.close()


def _escape_surrogates(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


WRITERS: Mapping[str, Callable[[IO[bytes], PartReader], None]] = {
    ".jsonl": _write_lines,
    ".npz": _write_arrays,
    ".parquet": _write_parquet,
}
