"""Configuration files: options, their types, built-in files and errors."""

import json
import re

import pytest
from config_loading import FIELDS, PRETRAIN, load, write

from bertjax.config.config_file import builtin_configs, run_config_file
from bertjax.config.loading import load_config, parse_config
from bertjax.tasks import registry
from data_pipelines.errors import InputError


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("modle=base", r"modle=base: is not an option of .*pretraining\.py\. Did you mean model"),
        ("smok", "Did you mean smoke"),
        ("model=huge", "model='huge': unknown"),
        ("model=6-100", "model='6-100': unknown"),
        ("phase=4", "phase=4: unknown"),
        ("phase=one", "phase=one: the value has the wrong type. Use int"),
        ("smoke=perhaps", "smoke=perhaps: the value has the wrong type. Use true or false"),
        ("recipe=cake", "recipe='cake': unknown"),
        ("recipe=modern,phase=2", "recipe=modern: has no phase=2"),
        ("data", "data: has no value. Write data=VALUE"),
        ("phase", "phase: has no value"),
        ("model=base,model=tiny", "model=tiny: model is set twice"),
    ],
)
def test_run_config_file_rejects_invalid_options(arg: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(arg)


KINDS = 'whole=1, part=0.5, name="none", flag=False'


@pytest.mark.parametrize(
    ("options", "values"),
    [
        ("", {}),
        (":", {}),
        (":flag", {"flag": True}),
        (":flag=true", {"flag": True}),
        (":flag=False", {"flag": False}),
        (":whole=-3,part=2", {"whole": -3, "part": 2.0}),
        (":part=1e-3,", {"part": 1e-3}),
        (":name=7", {"name": "7"}),
        (":name=", {"name": ""}),
        (":name=a=b,flag", {"name": "a=b", "flag": True}),
        (":name=gs://bucket/a:b", {"name": "gs://bucket/a:b"}),
    ],
)
def test_run_config_file_converts_options_to_the_types_of_defaults(
    options: str, values: dict, tmp_path
) -> None:
    path = write(tmp_path, KINDS, '{"data": {"options": repr([whole, part, name, flag])}}')
    config = load_config(f"{path}{options}", {}, {"pretraining": {"dir": "", "options": ""}})
    expected = {"whole": 1, "part": 0.5, "name": "none", "flag": False} | values
    assert config.data["options"] == repr(list(expected.values()))


@pytest.mark.parametrize("signature", ["arg", 'arg=""', 'arg: str = ""', "model", "*a", "**o"])
@pytest.mark.parametrize("options", ["", ":smoke"])
def test_run_config_file_rejects_parameters_without_typed_defaults(
    signature: str, options: str, tmp_path
) -> None:
    path = write(tmp_path, signature)
    fix = 'Give each option one, as in get_config(model="base", phase=1, smoke'
    with pytest.raises(InputError, match=re.escape(fix)):
        load_config(f"{path}{options}", {}, FIELDS)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x = 1\n", "", "has no get_config. Add"),
        ("def get_config(:\n", "", r"configuration\.py:1: is not Python \("),
        ("def get_config():\n    raise ValueError('no, thanks')\n", "", "^no, thanks$"),
        ("def get_config():\n    return {}\n", ":smoke", "smoke: is not an option .* Remove it"),
    ],
)
def test_run_config_file_rejects_files_without_get_config(
    text: str, options: str, message: str, tmp_path
) -> None:
    (tmp_path / "configuration.py").write_text(text)
    with pytest.raises(InputError, match=message):
        load_config(f"{tmp_path}/configuration.py{options}", {}, FIELDS)


def test_run_config_file_keeps_the_traceback_of_other_errors(tmp_path) -> None:
    with pytest.raises(ZeroDivisionError):
        load_config(str(write(tmp_path, "", "1 / 0")), {}, FIELDS)


def test_load_config_rejects_a_missing_file(tmp_path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.py: no such file\. Name one"):
        load_config("nowhere.py:x", {}, FIELDS)
    with pytest.raises(InputError, match=r": a directory\. Name a file"):
        load_config(str(tmp_path), {}, FIELDS)


def test_run_config_file_finds_builtin_configurations_by_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pretraining").mkdir()
    (tmp_path / "squad.py").write_text("def get_config(): return {}")
    assert {"pretraining", "squad", "glue"} <= builtin_configs().keys()
    for name, file in builtin_configs().items():
        assert run_config_file(name) == run_config_file(str(file))
    assert run_config_file("pretraining:model=tiny,smoke") == run_config_file(
        f"{PRETRAIN}:model=tiny,smoke"
    )
    assert run_config_file("squad.py") == {}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("question_answering:smoke", "there is no such configuration. Did you mean squad?"),
        ("pretrainign:smoke", "--config=pretrainign: there is no such configuration. Did you mean "
         "pretraining?"),
        ("pretraining:smok", "smok: is not an option of pretraining. Did you mean smoke?"),
        ("experiments/squad.py:smoke", "experiments/squad.py: there is no such file. Name one "
         "that exists, or write squad for the built-in configuration"),
        ("text.txt", "text.txt: is no configuration"),
        ("text", "text: is no configuration"),
    ],
)  # fmt: skip
def test_run_config_file_rejects_an_unknown_name(
    spec: str, message: str, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("text", "text.txt"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=re.escape(message)):
        run_config_file(spec)


def test_json_and_yaml_have_the_fields_of_a_configuration(tmp_path) -> None:
    fields = load("smoke,data=corpus", optimizer__learning_rate="1e-4").to_dict()
    json_file, yaml_file = tmp_path / "config.json", tmp_path / "mine.yaml"
    json_file.write_text(json.dumps(fields))
    yaml_file.write_text(json.dumps(fields))  # JSON is YAML
    for file in (json_file, yaml_file):
        assert run_config_file(str(file)) == fields
        assert parse_config(run_config_file(str(file)), registry.data_fields()).to_dict() == fields
    yaml_file.write_text(
        "optimizer:\n  learning_rate: 1e-4\n  name: lamb\nsteps: 3 epochs\ninit:\n"
    )
    expected = {"optimizer": {"learning_rate": 1e-4, "name": "lamb"}, "steps": "3 epochs"}
    assert run_config_file(str(yaml_file)) == expected | {"init": None}


def test_yaml_has_the_numbers_of_version_1_2_and_keeps_the_texts_of_names(tmp_path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("task: pretraining\nsteps: 0100\nprofile: 10:15\ndata: {dir: 2026_11_27}")
    config = load_config(str(file), {"init": "1_000"}, registry.data_fields())
    assert (config.steps, config.profile, config.init) == (100, "10:15", "1_000")
    assert config.data["dir"] == "2026_11_27"
    file.write_text("data: {dir: 2026-11-27, seed: 1_000}")
    assert run_config_file(str(file)) == {"data": {"dir": "2026-11-27", "seed": 1000}}
    file.write_text("mesh: {1: 2}")
    with pytest.raises(InputError, match=r"mine.yaml: has no fields. Write fields and sections"):
        run_config_file(str(file))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b'{"steps": 1,}', r"a\.json:1: is not JSON \(.*\)\. Write fields and sections"),
        ("a.yaml", b"steps: [1", r"a\.yaml: is not YAML \("),
        ("a.yaml", b"data: {seed: 1}\nseed: 1\nseed: 2", r"a\.yaml:3: field seed is there twice"),
        ("a.json", b'{"data": {"dir": "a", "dir": "b"}}', r"a\.json: field dir is there twice"),
        ("a.yaml", b"? [a, b]\n: 1\n? [a, c]\n: 2", r"a\.yaml: is not YAML"),
        ("a.yaml", b"!!python/object/apply:os.getcwd []", r"a\.yaml: is not YAML \(could not det"),
        ("a.yml", b"- steps", r"a\.yml: has no fields"),
        ("a.json", b"\xff", r"a\.json: is not UTF-8"),
        ("a.toml", b"steps = 1", r"a\.toml: is no configuration\. Name a file that ends in \.py"),
    ],
)
def test_files_of_fields_are_checked(tmp_path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        run_config_file(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_files_of_fields_have_no_options(tmp_path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(InputError, match=r"a\.json:smoke: only Python files have options"):
        run_config_file(f"{tmp_path / 'a.json'}:smoke")
