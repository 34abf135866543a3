"""Small JSON files that others may have written: bounded reads, and one check of their types.

A schema is
- a type or a tuple of types; `int` excludes booleans and more than 64 bits, `float` includes
  integers and excludes numbers that are not finite, None stands for null;
- `[schema]`, a list of such elements;
- `{"name": schema, "other?": schema}`, an object with these keys and any others; a key that ends
  in "?" may be missing or null;
- `{str: schema}`, an object of any keys with such values;
- `object`, any value.
"""

import math
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from data_pipelines.errors import InputError
from data_pipelines.parsing import parse_json
from data_pipelines.paths import is_remote

if TYPE_CHECKING:
    from etils import epath

MAX_FILE_BYTES = 1 << 28  # of a file that is read whole; the largest published tokenizer has 2^25
_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
}
_NAMES |= {list: "a list", dict: "an object", None: "null"}


def read_json_object(path: "epath.Path", schema: Any, fix: str) -> dict[str, Any]:
    """Return the object in a JSON file whose content follows a schema.

    Args:
      path: the file.
      schema: schema of an object.
      fix: end of an error's message.

    Raises:
      InputError: the file is missing, no regular file, too large, not JSON or of other types.
    """
    content: dict[str, Any] = read_json_value(path, schema, fix)
    return content


def read_json_value(path: "epath.Path", schema: Any, fix: str) -> Any:
    """Return the value in a JSON file; arguments and errors as `read_json_object`."""
    content = read_bytes(path, fix)
    try:
        value = parse_json(content.decode())
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8. {fix}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}). {fix}") from None
    check_schema(f"{path}: ", value, schema, fix)
    return value


def read_bytes(path: "epath.Path", fix: str) -> bytes:
    """Return the content of a file that is read whole.

    Raises:
      InputError: the file is missing, a device, a pipe or a directory, or too large.
    """
    check_regular(path, fix)
    try:
        with path.open("rb") as file:
            content: bytes = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}). {fix}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {MAX_FILE_BYTES >> 20} MiB. {fix}")
    return content


def check_regular(path: "epath.Path", fix: str) -> None:
    """Raise InputError if a path is not that of a regular file; a device or pipe may never end."""
    if is_remote(path):
        if not path.exists():
            raise InputError(f"{path}: does not exist. {fix}")
        return
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{path}: cannot be read ({reason}). {fix}") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: not a regular file. {fix}")


def check_schema(location: str, value: Any, schema: Any, fix: str) -> None:
    """Check a value of a file.

    Args:
      location: start of an error's message.
      value: the value.
      schema: see the module.
      fix: end of an error's message.

    Raises:
      InputError: the value has another type.
    """
    for name, problem in _problems(value, schema, ""):
        text = f"{name}{problem}" if name else f"not {problem.rpartition(': not ')[2]}"
        raise InputError(f"{location}{text}. {fix}")


def _problems(value: Any, schema: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and problem of each value of another type than its schema's."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            yield name, _wrong_type(value, dict)
        elif str in schema:
            if schema[str] in (int, str) and all(type(v) is schema[str] for v in value.values()):
                value = {}  # of a vocabulary, fast
            for key, item in value.items():
                yield from _problems(item, schema[str], f"{name}.{key}" if name else key)
        else:
            for key, inner in schema.items():
                field, optional = key.removesuffix("?"), key.endswith("?")
                full = f"{name}.{field}" if name else field
                if value.get(field) is not None:
                    yield from _problems(value[field], inner, full)
                elif not optional:
                    yield full, ": missing"
    elif isinstance(schema, list):
        if not isinstance(value, list):
            yield name, _wrong_type(value, list)
        else:
            for i, item in enumerate(value):
                yield from _problems(item, schema[0], f"{name}[{i}]")
    else:
        kinds = schema if isinstance(schema, tuple) else (schema,)
        if not any(_has_type(value, kind) for kind in kinds):
            yield name, _wrong_type(value, *kinds)


def _has_type(value: Any, kind: Any) -> bool:
    if isinstance(kind, dict | list):
        return next(_problems(value, kind, ""), None) is None
    if kind is object or (kind is None and value is None):
        return True
    if kind is None:
        return False
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int) and kind in (int, float):
        return abs(value) < 1 << 63
    if isinstance(value, float) and kind is float:
        return math.isfinite(value)
    return isinstance(value, kind)


def _wrong_type(value: Any, *kinds: Any) -> str:
    names = [_NAMES[type(k) if isinstance(k, dict | list) else k] for k in kinds]
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return f"={shown}: not {' or '.join(names)}"
