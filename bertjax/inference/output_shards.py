"""Outputs in shards: a directory that several processes write, each its share, without a network.

A shard has the results of consecutive inputs of one file. It depends on these and on the settings
alone, so any number of processes writes the same bytes.
"""

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from etils import epath

from bertjax.checkpointing.integrity import file_digest
from bertjax.errors import CommandError
from bertjax.inference.output_records import (
    FIX,
    MANIFEST_FILE,
    InputProblems,
    OutputRecords,
    ShardRecord,
)
from bertjax.mesh.cluster import ProcessShare
from bertjax.workdir.draft import held_draft
from bertjax.workdir.lock import WorkdirLock
from data_pipelines.errors import InputError

_log = logging.getLogger("bertjax")

# With fewer files than this times the processes, shares of whole files would differ too much.
_FILES_PER_PROCESS = 4

T = TypeVar("T")


class InputFile(NamedTuple, Generic[T]):
    """A file of inputs.

    Attributes:
      name: its name, without directories.
      read: returns its items.
    """

    name: str
    read: Callable[[], Iterable[T]]


class Shard(NamedTuple, Generic[T]):
    """Consecutive items of a file.

    Attributes:
      name: name of the shard's file.
      input: name of the file of the items.
      first: index of the first item in that file.
      items: the items.
      is_last: whether the file has no items after them.
    """

    name: str
    input: str
    first: int
    items: Sequence[T]
    is_last: bool


class Summary(NamedTuple):
    """Summary of a process's share.

    Attributes:
      rows: number of rows in its shards.
      shards: number of its shards.
      kept: number of its shards that were there and intact.
      is_complete: whether the shards of all processes are there.
      problems: truncated and invalid inputs of its shards, kept ones included.
    """

    rows: int
    shards: int
    kept: int
    is_complete: bool
    problems: InputProblems = InputProblems()

    def describe(self, what: str, share: ProcessShare) -> str:
        """Return what the process has written, as the end of a line of a log."""
        shards = f"{self.shards:,} shard{'s' * (self.shards != 1)}"
        kept = f", {self.kept:,} of them kept" if self.kept else ""
        end = "complete" if self.is_complete else "not complete before all processes have ended"
        process = f"process {share.process_id} of {share.num_processes}"
        return f"{self.rows:,} {what} in {shards} of {process}{kept}; {end}."


# Writes a shard's file, which is moved from the directory of the lock, and returns the problems of
# its items. The lock is to be confirmed before the move.
WriteShard = Callable[[Shard[T], epath.Path, WorkdirLock], InputProblems]


class ShardsWriter(Generic[T]):
    """Writer of one process's share of an output in shards.

    Args:
      output: directory of the output.
      suffix: suffix of the shards' files.
      settings: see `OutputRecords`.
      rows_per_shard: number of items of a shard.
      to_bytes: returns what identifies an item.
      share: share of this process.
    """

    def __init__(
        self,
        output: epath.Path,
        suffix: str,
        settings: Mapping[str, Any],
        rows_per_shard: int,
        to_bytes: Callable[[T], bytes],
        share: ProcessShare,
    ) -> None:
        self._output, self._suffix, self._share = output, suffix, share
        self._settings = {**settings, "format": suffix, "rows_per_shard": rows_per_shard}
        self._rows_per_shard, self._to_bytes = rows_per_shard, to_bytes

    def write(self, inputs: Sequence[InputFile[T]], write_shard: WriteShard[T]) -> Summary:
        """Write the shards of this process that are not there.

        With many files each process reads its own alone, else it reads all.

        Args:
          inputs: the files, the same in all processes.
          write_shard: writes the file of a shard.

        Raises:
          InputError: the directory has other files, or shards of another input or other settings;
            another process writes a shard; or an input is empty.
          CommandError: a damaged shard of a complete output has other bytes on this machine.
        """
        settings = {**self._settings, "inputs": [file.name for file in inputs]}
        records = OutputRecords(self._output, settings, self._share)
        finished, kept = [], 0
        for shard in self._shards(inputs):
            record = self._intact_record(shard, records)
            kept += record is not None
            finished.append(record or self._compute(shard, records, write_shard))
        problems = InputProblems(
            sum(record.num_truncated for record in finished),
            sum(record.num_invalid for record in finished),
            next((record.first_error for record in finished if record.num_invalid), ""),
        )
        rows = sum(record.rows for record in finished)
        return Summary(rows, len(finished), kept, records.finish(finished), problems)

    def _shards(self, inputs: Sequence[InputFile[T]]) -> Iterator[Shard[T]]:
        """Yield the shards of this process."""
        index, count = self._share.process_id, self._share.num_processes
        by_file = len(inputs) >= _FILES_PER_PROCESS * count
        for file_number, (name, read) in enumerate(inputs):
            if by_file and file_number % count != index:
                continue
            for number, (items, is_last) in enumerate(_chunks(read(), self._rows_per_shard)):
                if not items:
                    raise InputError(f"{name}: has no inputs. Leave the file out.")
                if by_file or (file_number + number) % count == index:
                    shard = f"shard-{file_number:05}-{number:05}{self._suffix}"
                    yield Shard(shard, name, number * self._rows_per_shard, items, is_last)

    def _intact_record(self, shard: Shard[T], records: OutputRecords) -> ShardRecord | None:
        """Return the record of a shard; None if it is not finished, or its file is damaged.

        Raises:
          InputError: the shard has another input.
        """
        path, record = self._output / shard.name, records.find(shard.name)
        if record is None and not records.is_complete:
            return None
        if record is None or record.input_digest != self._input_digest(shard):
            raise InputError(f"{path}: is not of this input. {FIX}")
        if not path.exists() or path.stat().length != record.bytes:
            problem = "is incomplete or missing"
        elif file_digest(path) != record.digest:
            problem = "is damaged"
        else:
            return record
        _log.warning("%s: %s. It is computed again.", path, problem)
        return None

    def _compute(
        self, shard: Shard[T], records: OutputRecords, write_shard: WriteShard[T]
    ) -> ShardRecord:
        """Write a shard; return its record."""
        path, folder = self._output / shard.name, records.work / f"{shard.name}.partial"
        with held_draft(folder, "--output") as lock:
            problems = write_shard(shard, path, lock)
            record = ShardRecord(
                *(shard.name, shard.input, len(shard.items), path.stat().length),
                *(self._input_digest(shard), file_digest(path)),
                **problems._asdict(),
            )
            recorded = records.find(shard.name) if records.is_complete else None
            lock.confirm()
            if recorded is None:
                records.add(record)
            elif record.digest != recorded.digest:
                raise CommandError(
                    f"{path}: was damaged, and computed again it has other bytes than "
                    f"{MANIFEST_FILE} says. Use a machine as before, or remove {self._output}."
                )
        _log.info("%s: %s rows.", path, f"{record.rows:,}")
        return record

    def _input_digest(self, shard: Shard[T]) -> str:
        digest = hashlib.sha256(b"last" if shard.is_last else b"")
        for item in shard.items:
            content = self._to_bytes(item)
            digest.update(b"%d:" % len(content) + content)
        return digest.hexdigest()


def _chunks(items: Iterable[T], size: int) -> Iterator[tuple[list[T], bool]]:
    """Yield lists of `size` items, and whether a list is the last; that may be shorter or empty."""
    iterator = iter(items)
    chunk = list(itertools.islice(iterator, size))
    while following := list(itertools.islice(iterator, size)):
        yield chunk, False
        chunk = following
    yield chunk, True
