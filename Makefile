# Each target does all of its own set-up. Nothing is needed but Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup test test-all lint format pong bench docs site clean

help:
	@echo "make setup     a virtual environment in $(VENV) with everything, development tools included"
	@echo "make test      lint, types and tests (what CI runs)"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      lint and types alone"
	@echo "make format    let ruff format the code"
	@echo "make pong      learn to play Pong, and record a game"
	@echo "make bench     the benchmarks: the engine against Ray, CartPole against other libraries"
	@echo "make docs      write docs/configuration.md anew"
	@echo "make site      build the documents as a searchable site in site/, with the API reference; broken links fail"
	@echo "make clean     remove the virtual environment and all caches"

setup: $(READY)

# The lock first: it decides all versions. The package itself then adds none.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outplay needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make PYTHON=python3.11" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)

# Most tests wait for processes that they started. tests/conftest.py says which of them stay together.
PYTEST := $(BIN)/python -m pytest -n 4

test: lint
	$(PYTEST) -m "not slow"

test-all: lint
	$(PYTEST)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

pong: setup
	$(BIN)/outplay train pong

bench: setup
	$(BIN)/python benchmarks/engine.py
	$(BIN)/python benchmarks/cartpole.py

docs: setup
	$(BIN)/python docs/make_configuration.py

site: setup
	$(BIN)/python -m mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) site .pytest_cache .ruff_cache .mypy_cache .hypothesis
