"""The Dockerfile for serving: its packages, its probe and its command."""

import json
import pathlib
import re
import shlex
import tomllib

from bertjax.cli.main import _parser

ROOT = pathlib.Path(__file__).parent.parent
LINES = (ROOT / "experiments/launch/serving.Dockerfile").read_text().splitlines()


def values(instruction: str) -> list[str]:
    return [line.partition(" ")[2] for line in LINES if line.startswith(f"{instruction} ")]


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=; ]", requirement)[0].lower().replace("_", "-")


def test_image_has_the_pinned_packages_of_serving_and_no_tensorflow() -> None:
    install, install_bertjax, _ = values("RUN")
    words = shlex.split(install)
    assert words[:5] == ["pip", "install", "--no-cache-dir", "-c", "constraints.txt"]
    assert install_bertjax == "pip install --no-cache-dir --no-deps ."
    packages = {name_of(word) for word in words[5:] if word != "$JAX"} | {"jax"}
    pinned = {name_of(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert packages <= pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    required = {name_of(line) for line in project["dependencies"]}
    serve = {name_of(line) for line in project["optional-dependencies"]["serve"]}
    assert serve <= packages <= required | serve
    assert not any("tensorflow" in package for package in packages)


def test_image_needs_what_troubleshooting_lists() -> None:
    """It reads no Parquet."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    (listed,) = re.findall(r"^pip install (flax .*)$", page, re.MULTILINE)
    assert {*listed.split()} - {*values("RUN")[0].split()} == {"pyarrow"}


def test_image_serves_on_the_port_that_it_probes() -> None:
    (entry,) = map(json.loads, values("ENTRYPOINT"))
    (port,) = values("EXPOSE")
    args = _parser().parse_args([*entry[1:], "--checkpoint", "runs/moods"])
    assert entry[0] == "bertjax" and args.host == "0.0.0.0" and str(args.port) == port
    (probe,) = (json.loads(line[line.index("[") :]) for line in values("HEALTHCHECK"))
    assert f"http://127.0.0.1:{port}/ready" in probe[-1]
    compile(probe[-1], "probe", "exec")


def test_image_names_no_server_and_no_root() -> None:
    assert values("FROM") == ["python:3.12-slim"] and values("USER") == ["10001"]
    urls = re.findall(r"\w+://([^/:']+)", "\n".join(LINES))
    assert {*urls} <= {"127.0.0.1"}
