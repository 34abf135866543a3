"""The report of a directory: a run, a sweep, an evaluation or a corpus."""

import json
import os

from etils import epath

from bertjax.config.loading import parse_config
from bertjax.reports.corpus import render_corpus
from bertjax.reports.run import read_run, render_run
from bertjax.reports.sweep import render_sweep
from bertjax.sweeps.sweep import RESULT_FILE
from bertjax.tasks import registry
from bertjax.tasks.task import EVALUATION_FILE
from bertjax.workdir.workdir import PARALLEL_RUNS_DIR
from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write


def write_report(directory: epath.PathLike) -> epath.Path:
    """Write report.html into a directory and return its path.

    Args:
      directory: a workdir, or the output of an evaluation, a sweep or a corpus preparation.

    Raises:
      InputError: the directory is none of these, or a run or sweep without results yet.
    """
    directory = epath.Path(directory)
    name = os.path.basename(os.path.abspath(directory))
    if (directory / EVALUATION_FILE).exists():
        text = _render_evaluation(name, directory)
    elif (directory / RESULT_FILE).exists():
        text = render_sweep(name, json.loads((directory / RESULT_FILE).read_text()))
    elif (directory / MANIFEST).exists():
        text = render_corpus(directory, name)
    elif (directory / PARALLEL_RUNS_DIR).exists():
        raise InputError(f"{directory}: the sweep is not finished. Run the same command again.")
    else:
        text = render_run(name, *read_run(directory))
    path = directory / "report.html"
    with atomic_write(path) as draft:
        draft.write_bytes(text.encode(errors="xmlcharrefreplace"))  # half of a surrogate pair
    return path


def _render_evaluation(name: str, directory: epath.Path) -> str:
    path = directory / EVALUATION_FILE
    try:
        config = parse_config(json.loads(path.read_text())["config"], registry.data_fields())
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(
            f"{path}: not the record of an evaluation ({error!r}). Run bertjax evaluate again."
        ) from error
    return registry.find_task(config.task).report(name, config, directory)
