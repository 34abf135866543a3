# Every target installs what it needs in .venv.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= test
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(EXTRAS)
# Idle workers take over half of another's tests.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

.PHONY: demo test test-slow test-all check lint format docs clean

demo: $(INSTALLED)
	$(BIN)/python -m experiments.demo

test: $(INSTALLED)
	$(PYTEST) -m "not slow and not minutes"

test-slow: $(INSTALLED)
	$(PYTEST) -m "slow and not minutes"

test-all: $(INSTALLED)
	$(PYTEST) --hypothesis-profile random

check: $(INSTALLED)
	$(PYTEST) -m "not seconds and not slow and not minutes"

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) runs build *.egg-info

$(VENV)/.installed-%: pyproject.toml setup.py setup.cfg constraints.txt
	$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 11) <= v < (3, 14) else f"bertjax needs Python 3.11 to 3.13, this is {v.major}.{v.minor}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@
