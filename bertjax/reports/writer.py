"""The report of a directory: a run, a sweep, an evaluation or a corpus."""

import os

from etils import epath

from bertjax.config.loading import parse_config
from bertjax.reports.corpus import render_corpus
from bertjax.reports.run import read_run, render_run
from bertjax.reports.sweep import read_sweep, render_sweep
from bertjax.sweeps.sweep import RESULT_FILE
from bertjax.tasks import registry
from bertjax.tasks.task import EVALUATION_FILE
from bertjax.workdir.workdir import PARALLEL_RUNS_DIR
from data_pipelines.corpus.shards import MANIFEST
from data_pipelines.errors import InputError
from data_pipelines.paths import atomic_write_bytes
from data_pipelines.schema import read_json_object


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
        text = render_sweep(name, read_sweep(directory / RESULT_FILE))
    elif (directory / MANIFEST).exists():
        text = render_corpus(directory, name)
    elif (directory / PARALLEL_RUNS_DIR).exists():
        raise InputError(f"{directory}: the sweep is not finished. Run the same command again.")
    else:
        text = render_run(name, *read_run(directory))
    path = directory / "report.html"
    atomic_write_bytes(path, text.encode(errors="xmlcharrefreplace"))  # half of a surrogate pair
    return path


def _render_evaluation(name: str, directory: epath.Path) -> str:
    path = directory / EVALUATION_FILE
    record = read_json_object(path, {"config": {str: object}}, "Run bertjax evaluate again.")
    config = parse_config(record["config"], registry.data_fields())
    return registry.find_task(config.task).report(name, config, directory)
