"""Records of an output in shards: its settings, finished shards and manifest.

Until the output is complete, `OUTPUT/_work` has for each process what it was started for and, at
its end, its shards, and a record of each finished shard. The manifest, written last, replaces them.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from etils import epath

from bertjax.mesh.cluster import ProcessShare
from bertjax.workdir.draft import held_draft
from bertjax.workdir.lock import VISIBILITY_TIMEOUT_SECONDS, WorkdirLock
from data_pipelines.errors import InputError
from data_pipelines.parallel import thread_map
from data_pipelines.paths import atomic_write_text, remove_empty
from data_pipelines.schema import read_json_object

# Readers of directories, such as those of Parquet and Hadoop, leave out names that begin so.
MANIFEST_FILE, WORK_DIR = "_manifest.json", "_work"
FIX = "Name another --output, or remove this one."
_RECORD_PREFIXES = ("started-", "shard-", "finished-")
_THREADS = 32  # requests to a bucket at a time
_MAX_VALUE_CHARS = 60  # of a setting in an error
_RECORD = {
    "name": str,
    "input": str,
    "rows": int,
    "bytes": int,
    "input_digest": str,
    "digest": str,
    "num_truncated": int,
    "num_invalid": int,
    "first_error": str,
}
_SETTINGS_SCHEMA = {"settings": {str: object}}
_MANIFEST_SCHEMA = {**_SETTINGS_SCHEMA, "input_digest": str, "shards": [_RECORD]}


class InputProblems(NamedTuple):
    """Inputs that a report names.

    Attributes:
      num_truncated: number of truncated inputs.
      num_invalid: number of invalid inputs.
      first_error: error of the first of these, "" without any.
    """

    num_truncated: int = 0
    num_invalid: int = 0
    first_error: str = ""


class ShardRecord(NamedTuple):
    """Record of a finished shard, in the manifest.

    Attributes:
      name: name of its file.
      input: name of the file of its items.
      rows: number of items.
      bytes: size of its file.
      input_digest: SHA-256 digest of the items, and of whether they are the last of their file.
      digest: SHA-256 digest of its file.
      num_truncated: number of truncated items.
      num_invalid: number of invalid items.
      first_error: error of the first of these, "" without any.
    """

    name: str
    input: str
    rows: int
    bytes: int
    input_digest: str
    digest: str
    num_truncated: int = 0
    num_invalid: int = 0
    first_error: str = ""


class OutputRecords:
    """Records of an output that several processes write.

    Args:
      output: directory of the output.
      settings: everything but the content of the input that determines the shards, as JSON values.
      share: share of this process.

    Attributes:
      work: directory of records and drafts.
      is_complete: whether the output had a manifest when it was opened.

    Raises:
      InputError: the directory has other files, or shards of other settings.
    """

    def __init__(
        self, output: epath.Path, settings: Mapping[str, Any], share: ProcessShare
    ) -> None:
        self._output, self._share = output, share
        self.work, self._manifest = output / WORK_DIR, output / MANIFEST_FILE
        self._settings = json.loads(json.dumps(settings, default=str))
        self._complete: dict[str, ShardRecord] = {}  # by name, of a complete output
        self.is_complete = self._manifest.exists()
        if self.is_complete:
            content = read_json_object(self._manifest, _MANIFEST_SCHEMA, FIX)
            self._check_settings(content["settings"])
            records = [ShardRecord(**record) for record in content["shards"]]
            self._complete = {record.name: record for record in records}
        else:
            self._start()

    def find(self, name: str) -> ShardRecord | None:
        """Return the record of a shard; None if it is not finished, or is not of this output."""
        if self.is_complete:
            return self._complete.get(name)
        file = self._record_file(name)
        return ShardRecord(**read_json_object(file, _RECORD, FIX)) if file.exists() else None

    def add(self, record: ShardRecord) -> None:
        """Record a finished shard."""
        atomic_write_text(self._record_file(record.name), json.dumps(record._asdict()))

    def finish(self, records: Sequence[ShardRecord]) -> bool:
        """Record the end of this process; return whether all processes have finished.

        The last one writes the manifest.

        Args:
          records: records of this process's shards.
        """
        if self.is_complete:
            if self.work.exists():  # a process was killed before it had deleted this, or repairs
                with contextlib.suppress(InputError), WorkdirLock(self.work, "--output"):
                    self._remove_records()
                remove_empty([self.work])
            return True
        content = {"shards": [record._asdict() for record in records]}
        atomic_write_text(self._process_file("finished"), json.dumps(content))
        files = [self._process_file("finished", i) for i in range(self._share.num_processes)]
        names = {path.name for path in self.work.iterdir()} if self.work.exists() else set()
        if self._manifest.exists():
            return True
        if not {file.name for file in files} <= names:
            return False
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context(held_draft(self.work, "--output"))
            except InputError:  # another process has finished at the same time
                if not self._wait_for_manifest():
                    raise
                return True
            if not self._manifest.exists():
                lock.confirm()
                self._write_manifest(files)
            lock.confirm()
            self._remove_records()
        return True

    def _start(self) -> None:
        """Record the start of this process in a new directory, or one of the same settings."""
        if not self._check_processes() and self._output.exists():
            names = sorted({path.name for path in self._output.iterdir()} - {WORK_DIR})
            if names:
                raise InputError(
                    f"--output={self._output}: has {names[0]} and no {MANIFEST_FILE}. Name a new "
                    "directory, or empty it."
                )
        self.work.mkdir(parents=True, exist_ok=True)
        # Of an earlier attempt; the output must not be completed while this process may write.
        self._process_file("finished").unlink(missing_ok=True)
        content = json.dumps({"settings": self._settings})
        atomic_write_text(self._process_file("started"), content)
        self._check_processes()  # of two that start at once, one sees the other

    def _check_processes(self) -> bool:
        """Check the settings of processes that have started; return whether there are any."""
        files = sorted(self.work.glob("started-*.json")) if self.work.exists() else []
        for file in files:
            self._check_settings(read_json_object(file, _SETTINGS_SCHEMA, FIX)["settings"])
        return bool(files)

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        for name in {**settings, **self._settings}:
            before, now = settings.get(name), self._settings.get(name)
            if before != now:
                raise InputError(
                    f"--output={self._output}: holds shards of {name}={_show(before)}, not "
                    f"{_show(now)}. {FIX}"
                )

    def _write_manifest(self, files: Sequence[epath.Path]) -> None:
        contents = [read_json_object(file, {"shards": [_RECORD]}, FIX) for file in files]
        shards = [shard for content in contents for shard in content["shards"]]
        shards.sort(key=lambda shard: shard["name"])
        recorded = {path.name.removesuffix(".json") for path in self.work.glob("shard-*.json")}
        if others := sorted(recorded - {shard["name"] for shard in shards}):
            raise InputError(f"{self._output / others[0]}: is not of this input. {FIX}")
        digest = hashlib.sha256("".join(shard["input_digest"] for shard in shards).encode())
        content = {"settings": self._settings, "input_digest": digest.hexdigest(), "shards": shards}
        atomic_write_text(self._manifest, json.dumps(content, indent=1))

    def _wait_for_manifest(self) -> bool:
        end = time.monotonic() + VISIBILITY_TIMEOUT_SECONDS
        while not self._manifest.exists():
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _remove_records(self) -> None:
        paths = [*self.work.iterdir()] if self.work.exists() else []
        records = [path for path in paths if _is_record(path.name)]
        for _ in thread_map(lambda path: path.unlink(missing_ok=True), records, _THREADS):
            pass

    def _record_file(self, name: str) -> epath.Path:
        return self.work / f"{name}.json"

    def _process_file(self, state: str, process_id: int | None = None) -> epath.Path:
        index = self._share.process_id if process_id is None else process_id
        return self.work / f"{state}-{index:05}-of-{self._share.num_processes:05}.json"


def _is_record(name: str) -> bool:
    return name.startswith(_RECORD_PREFIXES) and name.endswith(".json")


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[:_MAX_VALUE_CHARS]}..."
