# What a user types: `make demo`, then `make test`. Everything else is for those who change the code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv venv-dev demo test lint format typecheck benchmark fuzz same experiments-quick clean

help:
	@echo "make demo               set up, then train a small model with a swarm of processes on this machine"
	@echo "make test               set up, then run the whole test suite"
	@echo "make lint               ruff: its rules, and the format of every file; make format mends both"
	@echo "make typecheck          mypy"
	@echo "make benchmark          tokens/s of a swarm beside one plain PyTorch process"
	@echo "make fuzz               random swarms under random faults, in virtual time; SEEDS=N of them, 200 if not given"
	@echo "make same BEFORE=C      whether the code decides as at commit C, names aside: fuzz seeds and experiments"
	@echo "make experiments-quick  every experiment in its reduced version"
	@echo "make clean              remove the virtual environment and everything built"

# The stamps make a new installation happen only when the requirements have changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "swarmflow needs Python 3.11 or newer; name one like this: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing swarmflow into $(VENV) (a few minutes the first time)"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools for tests into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

venv: $(VENV)/.installed

venv-dev: $(VENV)/.installed-dev

demo: venv
	@$(BIN)/swarmflow demo

# No test belongs to a group, so that each goes by itself to whichever of the two workers is free.
test: venv-dev
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

lint: venv-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: venv-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: venv-dev
	@$(BIN)/mypy

benchmark: venv
	@$(BIN)/python -m benchmarks.throughput

SEEDS ?= 200
fuzz: venv
	@$(BIN)/python -m tests.simulation.hunt $(SEEDS) $(if $(FIRST),--first $(FIRST)) $(if $(PARTITIONS),--partitions) \
		$(if $(ONLY),--only $(ONLY))

same: venv
	@$(BIN)/python -m tests.simulation.traces same $(BEFORE) $(if $(NAMES),--names $(NAMES))

experiments-quick: venv
	@$(BIN)/python -m experiments.common.quick

clean:
	rm -rf $(VENV) build dist swarmflow.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
