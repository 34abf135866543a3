"""Settings of a run that change its model's answers: `bertjax_inference` in config.json.

{"task": "question_answering", "max_seq_length": 512, "data": {"version": 2, "doc_stride": 200},
"calibration": {"null_score_diff_threshold": -1.27}, "decoding": {}, "extraction": {}}
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from etils import epath

from data_pipelines.errors import InputError
from data_pipelines.log import warn_once
from data_pipelines.schema import check_schema

KEY = "bertjax_inference"
FIX = f"Correct it, or delete {KEY}."
_VALUES = {str: (bool, int, float, str)}
_SECTIONS = {"data": _VALUES, "calibration": {str: float}, "decoding": _VALUES}
_SECTIONS |= {"extraction": _VALUES}
_SCHEMA = {
    "task": str,
    "max_seq_length?": int,
    **{f"{name}?": _SECTIONS[name] for name in _SECTIONS},
}
_MAX_NAME_LENGTH = 100  # of a field, for messages


class InferenceSettings(NamedTuple):
    """Settings of a run.

    Attributes:
      task: task of the run, as its configuration names it.
      fields: dotted field of the configuration -> its value, and "calibration.NAME" -> the value
        that an evaluation chose.
      location: file that has them, for messages.
    """

    task: str
    fields: Mapping[str, Any]
    location: str = ""

    def to_object(self) -> dict[str, Any]:
        """Return the object of config.json."""
        content: dict[str, Any] = {"task": self.task}
        for name, value in self.fields.items():
            section, dot, field = name.rpartition(".")
            (content.setdefault(section, {}) if dot else content)[field] = value
        return content


def parse_settings(config_dict: Mapping[str, Any], file: epath.Path) -> InferenceSettings | None:
    """Return the settings in a parsed config.json; None without any, or if transformers saved it.

    Fields may be unknown: the task checks them.

    Args:
      config_dict: content of the file.
      file: the file, for messages.

    Raises:
      InputError: the object has another schema, or a name that is none of a field.
    """
    content = config_dict.get(KEY)
    if content is None:
        return None
    if "transformers_version" in config_dict:
        message = (
            f"{file}: transformers has saved this file, maybe after more training: {KEY} is not "
            "read. Remove transformers_version to read it."
        )
        warn_once((str(file), KEY), message)
        return None
    if isinstance(content, dict):
        for section in (content, *(content[name] for name in _SECTIONS if name in content)):
            for name in section if isinstance(section, dict) else ():
                if not name.isidentifier() or len(name) > _MAX_NAME_LENGTH:
                    raise InputError(f"{file}: {KEY}: {name[:40]!r} is no name of a field. {FIX}")
    check_schema(f"{file}: ", config_dict, {KEY: _SCHEMA}, FIX)
    fields = {name: content[name] for name in content.keys() - {"task", *_SECTIONS}}
    for section in _SECTIONS:
        fields |= {f"{section}.{name}": x for name, x in (content.get(section) or {}).items()}
    return InferenceSettings(content["task"], fields, f"{file}: {KEY}")
