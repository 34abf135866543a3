"""Loading of configurations, and configuration files for tests."""

import pathlib

from bertjax.config.config import Config
from bertjax.config.loading import load_config, parse_config
from bertjax.tasks import registry

PRETRAIN = pathlib.Path(__file__).parent.parent / "experiments" / "pretraining.py"
FIELDS = {"pretraining": {"dir": "", "workers": None, "mlm_probability": 0.15, "masking": "token"}}


def load(arg: str = "", **overrides: object) -> Config:
    """Load the configuration of pre-training with options and overrides (`a__b` for `a.b`)."""
    fields = {name.replace("__", "."): str(value) for name, value in overrides.items()}
    return load_config(f"{PRETRAIN}:{arg}", fields, registry.data_fields())


def parse(**raw: object) -> Config:
    return parse_config(raw, FIELDS)


def write(path: pathlib.Path, signature: str, returned: str = "{}") -> pathlib.Path:
    """Write a configuration file into a directory and return its path."""
    file = path / "configuration.py"
    file.write_text(f"def get_config({signature}):\n    return {returned}\n")
    return file
