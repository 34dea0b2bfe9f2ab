# What a user types: `make demo`, then `make test`. Everything else is for those who change the code.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The tests start hundreds of processes. Without the bytecode that is kept on disk, each compiles for about a second.
unexport PYTHONDONTWRITEBYTECODE
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help venv venv-dev venv-docs demo test test-portable test-extended test-exhaustive lint format typecheck generate docs benchmark image-check fuzz same \
	experiments experiments-quick screenshots clean

help:
	@echo "make demo               set up, then train a small model with a swarm of processes on this machine"
	@echo "make test               set up, then run the test suite"
	@echo "make test-extended      those that take long: they drive a browser or Prometheus, attack a swarm, or compare every family"
	@echo "make test-exhaustive    those that take a minute each, or try further modes and seeds of what the others test"
	@echo "make test-portable      those that start no swarm, which is what runs on macOS"
	@echo "make lint               ruff (rules and format; make format mends both), and the workflow of CI"
	@echo "make typecheck          mypy"
	@echo "make generate           rules, dashboards and tables of the docs, from the code"
	@echo "make docs               the guides and the API reference as a site in site/; a broken link is an error"
	@echo "make benchmark          tokens/s of a swarm beside one plain PyTorch process"
	@echo "make image-check        the steps of the CPU image, carried out without docker, and a swarm from it"
	@echo "make fuzz               random swarms under random faults, in virtual time; SEEDS=N of them, 200 if not given"
	@echo "make same BEFORE=C      whether the code decides as at commit C, names aside: fuzz seeds and experiments"
	@echo "make experiments        every experiment, and whether each takes ten minutes of a core at most; ONLY=\"A B\" for some"
	@echo "make experiments-quick  every experiment in its reduced version"
	@echo "make screenshots        the pictures of the page in docs/images, with Debian's chromium and chromium-driver"
	@echo "make clean              remove the virtual environment and everything built"

# An earlier version had the distribution name `swarmflow`: it goes first, or its commands would stand beside the new ones.
# The stamps make a new installation happen only when the requirements have changed.
$(VENV)/.installed: pyproject.toml constraints.txt swarmflow/compute/rounding.c swarmflow/compute/adamw.c swarmflow/compute/moments.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "swarmflow needs Python 3.11 or newer; name one like this: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "installing swarmflow-train into $(VENV) (a few minutes the first time)"
	@rm -rf swarmflow.egg-info; $(BIN)/python -m pip uninstall --quiet --quiet --yes swarmflow
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing the tools for tests into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo "installing the tools for documentation into $(VENV)"
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@

venv: $(VENV)/.installed

venv-dev: $(VENV)/.installed-dev

venv-docs: $(VENV)/.installed-docs

demo: venv
	@$(BIN)/swarmflow demo

# Three workers keep two cores busy: a test of a swarm waits half of its time. A fourth takes 11 s of both to import what
# it tests. Each begins with a part of the tests, so that a module's fixtures are mostly set up once, and takes over tests
# of others when it has none left.
test: venv-dev
	@$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "not extended and not exhaustive"

test-portable: venv-dev
	@$(BIN)/python -m pytest --numprocesses 4 --dist worksteal -m "not swarm and not extended and not exhaustive"

test-extended: venv-dev
	@$(BIN)/python -m pytest --numprocesses 4 --dist worksteal -m "extended and not exhaustive"

test-exhaustive: venv-dev
	@$(BIN)/python -m pytest --numprocesses 3 -m exhaustive

lint: venv-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pre-commit validate-config .pre-commit-config.yaml
	@$(BIN)/zizmor --quiet --offline --strict-collection .github

format: venv-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: venv-dev
	@$(BIN)/mypy

generate: venv-dev
	@$(BIN)/python -m swarmflow.monitoring.generate
	@$(BIN)/python -m tests.architecture.packages
	@$(BIN)/python -m tests.architecture.states
	@$(BIN)/python -m tests.packaging.cli_page
	@$(BIN)/python -m tests.compute.families

# The variable silences a notice of Material for MkDocs. Not --quiet: it would hide the warnings from --strict.
docs: SHELL := bash
docs: .SHELLFLAGS := -o pipefail -c
docs: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict 2>&1 | sed '/^INFO/d'
	@echo "site/index.html"

image-check: venv
	@$(BIN)/python -m tests.packaging.image

benchmark: venv
	@$(BIN)/python -m benchmarks.throughput

SEEDS ?= 200
fuzz: venv
	@$(BIN)/python -m tests.simulation.hunt $(SEEDS) $(if $(FIRST),--first $(FIRST)) $(if $(PARTITIONS),--partitions) \
		$(if $(ONLY),--only $(ONLY))

same: venv
	@$(BIN)/python -m tests.simulation.traces same $(BEFORE) $(if $(NAMES),--names $(NAMES))

screenshots: venv-dev
	@$(BIN)/python -m tests.page.screenshots

experiments: venv
	@$(BIN)/python -m experiments.common.every $(ONLY)

experiments-quick: venv
	@$(BIN)/python -m experiments.common.quick

clean:
	rm -rf $(VENV) build dist site swarmflow_train.egg-info swarmflow.egg-info swarmflow/compute/*.so .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
