"""Files of vectors, written part by part so that work which was stopped goes on.

Parts lie beside the file, in OUTPUT.partial, each whole or not there. When all are there they
become the file, one after the other, so that memory does not grow with it.
"""

import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.paths import is_remote

EmbeddingPart = Mapping[str, Any]
TEXTS_KEY = "texts"  # of a part; see `texts_to_bytes`
_ZIP_TIMESTAMP = (
    1980,
    1,
    1,
    0,
    0,
    0,
)  # of what a zip file holds, which is to have the same bytes again


class PartFiles:
    """The parts of a file.

    Args:
      output: the file, whose suffix says what it is.
      recipe: whatever decides its content, but the input.

    Raises:
      InputError: its suffix is not known, it exists, or what lies beside it has another recipe.
    """

    def __init__(self, output: epath.Path, recipe: Mapping[str, Any]) -> None:
        self._output, self._folder = output, output.with_name(f"{output.name}.partial")
        if output.suffix not in WRITERS:
            raise InputError(f"{output} is to end in {', '.join(WRITERS)}: name such a file.")
        if output.exists():
            raise InputError(f"{output} exists: name another file, or remove it.")
        said = json.dumps(recipe, sort_keys=True, default=str)
        file = self._folder / "recipe.json"
        if file.exists() and file.read_text() != said:
            raise InputError(
                f"{self._folder} was begun with other arguments or another model: remove it, or "
                "name another file."
            )
        self._folder.mkdir(parents=True, exist_ok=True)
        file.write_text(said)

    def has(self, number: int, digest: str) -> bool:
        """Whether a part is there already, made of what has this digest.

        Raises:
          InputError: it was made of something else.
        """
        if not self._path(number).exists():
            return False
        before = str(self._read(number)["digest"])
        if before != digest:
            raise InputError(
                f"the input is not what {self._folder} was begun with: remove it, or name another "
                "file."
            )
        return True

    def write(self, number: int, digest: str, part: EmbeddingPart) -> None:
        """Writes a part: whole, or not at all."""
        draft, content = self._folder / "draft", io.BytesIO()
        np.savez(content, allow_pickle=False, digest=np.array(digest), **part)
        draft.write_bytes(content.getvalue())
        draft.replace(self._path(number))

    def finish(self, count: int) -> None:
        """Makes so many parts the file, and removes them."""

        def read() -> Iterator[dict[str, np.ndarray]]:
            for number in range(count):
                found = self._read(number)
                yield {name: found[name] for name in found.files if name != "digest"}

        draft = self._folder / self._output.name
        with _open_seekable(draft) as file:
            WRITERS[self._output.suffix](file, read)
        draft.replace(self._output)
        self._folder.rmtree()

    def _read(self, number: int) -> Any:
        return np.load(io.BytesIO(self._path(number).read_bytes()))

    def _path(self, number: int) -> epath.Path:
        return self._folder / f"{number:08}.npz"


@contextlib.contextmanager
def _open_seekable(path: epath.Path) -> Iterator[IO[bytes]]:
    """A file to write, in which one may go back; a remote one is written when that is closed."""
    if not is_remote(path):
        with path.open("wb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as local:
        yield local
        local.seek(0)
        with path.open("wb") as file:
            shutil.copyfileobj(local, file)


def texts_to_bytes(texts: Sequence[str]) -> np.ndarray:
    """uint8, what a part keeps of them: as an array of text all would be as long as the longest."""
    return np.frombuffer(json.dumps(texts).encode(), np.uint8)


def iter_rows(part: Mapping[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """The rows of a part: `text` and `vector`, or `text`, `names` and the `embeddings` of each."""
    texts = json.loads(part[TEXTS_KEY].tobytes())
    if "counts" not in part:
        for text, vector in zip(texts, part["embeddings"], strict=True):
            yield {"text": text, "vector": vector}
        return
    ends = np.cumsum(part["counts"])
    for text, first, end in zip(texts, ends - part["counts"], ends, strict=True):
        names = part["names"][first:end].tolist()
        yield {"text": text, "names": names, "embeddings": part["embeddings"][first:end]}


PartReader = Callable[[], Iterator[dict[str, np.ndarray]]]


def _write_lines(file: IO[bytes], read: PartReader) -> None:
    for part in read():
        for row in iter_rows(part):
            said = {
                name: _to_shortest_floats(value) if isinstance(value, np.ndarray) else value
                for name, value in row.items()
            }
            text = json.dumps(said, ensure_ascii=False)
            file.write(text.encode("utf-8", "backslashreplace") + b"\n")


def _to_shortest_floats(array: np.ndarray) -> Any:
    """Nested lists of the shortest numbers that tell every float32 from its neighbours."""
    if array.ndim > 1:
        return [_to_shortest_floats(each) for each in array]
    return [float(str(value)) for value in array]


def _write_arrays(file: IO[bytes], read: PartReader) -> None:
    """One array for each name, of all parts together, but of texts, which the input has."""
    shapes: dict[str, tuple[int, ...]] = {}
    dtypes: dict[str, np.dtype] = {}
    for part in read():
        for name, array in part.items():
            if name == TEXTS_KEY:
                continue
            rows = shapes.get(name, (0,))[0] + len(array)
            shapes[name] = (rows, *array.shape[1:])
            dtypes[name] = np.promote_types(dtypes.get(name, array.dtype), array.dtype)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, shape in shapes.items():
            entry = zipfile.ZipInfo(f"{name}.npy", _ZIP_TIMESTAMP)
            header = {
                "descr": np.lib.format.dtype_to_descr(dtypes[name]),
                "fortran_order": False,
                "shape": shape,
            }
            with archive.open(entry, "w", force_zip64=True) as member:
                np.lib.format.write_array_header_2_0(member, header)
                for part in read():
                    member.write(np.ascontiguousarray(part[name].astype(dtypes[name])).data)


def _write_parquet(file: IO[bytes], read: PartReader) -> None:
    import pyarrow
    from pyarrow import parquet

    writer = None
    for part in read():
        rows = list(iter_rows(part))
        columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
        if "embeddings" in columns:
            columns["embeddings"] = [
                own.reshape(len(own), -1).tolist() for own in columns["embeddings"]
            ]
            kinds = [pyarrow.string(), pyarrow.list_(pyarrow.string())]
            kinds.append(pyarrow.list_(pyarrow.list_(pyarrow.float32())))
        else:
            columns["vector"] = [own.tolist() for own in columns["vector"]]
            kinds = [pyarrow.string(), pyarrow.list_(pyarrow.float32())]
        schema = pyarrow.schema(list(zip(columns, kinds, strict=True)))
        table = pyarrow.table(columns, schema)
        writer = writer or parquet.ParquetWriter(file, schema)
        writer.write_table(table)
    if writer:
        writer.close()


WRITERS: Mapping[str, Callable[[IO[bytes], PartReader], None]] = {
    ".jsonl": _write_lines,
    ".npz": _write_arrays,
    ".parquet": _write_parquet,
}
