"""Commits on the Hub of the models that a run was initialized from and learns from.

A repository on the Hub may change at any time. All processes of a run read the commit that process
0 found, and a resumed run the recorded one.
"""

import functools
import re

from etils import epath

from data_pipelines.hub import find_commit, is_hub, pin_commit
from data_pipelines.schema import read_json_object

# In a workdir: the models that its run was initialized from, and learns from.
RECORD_FILES = {"init": "init.json", "distill.teacher": "teacher.json"}
_HASH_DIGITS = 40
_DIGITS_PER_NUMBER = 4  # numbers of 32 bits with a sign are broadcast


def pin_recorded_commits(workdir: epath.PathLike) -> None:
    """Read the models that the records of a workdir name at their recorded commits from now on.

    Raises:
      InputError: a record is damaged.
    """
    for name in RECORD_FILES.values():
        if (record := epath.Path(workdir) / name).exists():
            schema = {"hub?": str, "commit?": str}
            content = read_json_object(record, schema, "Use another --workdir.")
            if content.get("hub") and content.get("commit"):
                pin_commit(content["hub"], content["commit"])


def share_commits(*paths: epath.PathLike) -> None:
    """Read models on the Hub at the commits that process 0 has found, on every process from now on.

    Args:
      paths: models; those that are not on the Hub are ignored. All processes pass the same.

    Raises:
      InputError: a model cannot be downloaded.
    """
    import jax  # arguments are checked without it

    from bertjax.mesh import distributed

    if jax.process_count() == 1:
        return
    for path in dict.fromkeys(filter(is_hub, paths)):
        make, count = functools.partial(_to_numbers, path), _HASH_DIGITS // _DIGITS_PER_NUMBER
        numbers = distributed.broadcast_from_process_0(make, count)
        pin_commit(path, "".join(f"{number:0{_DIGITS_PER_NUMBER}x}" for number in numbers))


def _to_numbers(path: epath.PathLike) -> list[int]:
    digits = re.findall("." * _DIGITS_PER_NUMBER, find_commit(path))
    return [int(part, 16) for part in digits]
