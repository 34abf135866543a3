"""Workdirs: a run starts in none that holds something else, and deletes no files but its own."""

import pytest
from pretraining_runs import make_run_config

from bertjax.training.setup import make_trainer
from bertjax.workdir.lock import WorkdirLock
from bertjax.workdir.workdir import claim_workdir
from data_pipelines.errors import InputError


@pytest.mark.seconds
def test_run_does_not_replace_the_configuration_of_a_published_model(corpus, tmp_path) -> None:
    (tmp_path / "config.json").write_text(content := '{"hidden_size": 64}')
    trainer = make_trainer(make_run_config(corpus), tmp_path)
    with (
        WorkdirLock(trainer.workdir) as lock,
        pytest.raises(InputError, match=r"config.json: not that of a run, which would replace it"),
        claim_workdir(lock, trainer.config, trainer.task),
    ):
        raise AssertionError
    assert (tmp_path / "config.json").read_text() == content
    assert not (tmp_path / "run.json").exists()


@pytest.mark.seconds
def test_run_deletes_the_drafts_of_its_own_files_alone(corpus, tmp_path) -> None:
    own = ["config.json.partial", "run.json.0123abcd.partial"]
    others = ["predictions.jsonl.partial", "config.json.mine.partial"]
    for name in (*own, *others):
        (tmp_path / name).touch()
    (tmp_path / "hf.partial" / "model").mkdir(parents=True)
    trainer = make_trainer(make_run_config(corpus), tmp_path)
    with WorkdirLock(trainer.workdir) as lock, claim_workdir(lock, trainer.config, trainer.task):
        names = {path.name for path in tmp_path.iterdir()}
    assert {*others, "hf.partial", "run.json"} < names and not names & {*own}
