"""Commands of `bertjax` that an ablation consists of."""

import shlex
import subprocess
import sys
from collections.abc import Mapping


def bertjax(verb: str, *arguments: str) -> None:
    """Runs a verb to its end; ends with its status if it fails."""
    print(f"$ bertjax {shlex.join([verb, *arguments])}", flush=True)
    status = subprocess.run([sys.executable, "-m", "bertjax", verb, *arguments]).returncode
    if status:
        sys.exit(status)


def overrides(fields: Mapping[str, str]) -> list[str]:
    """The flags that set fields of a configuration."""
    return [f"--config.{name}={value}" for name, value in fields.items()]
