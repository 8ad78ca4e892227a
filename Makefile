# Every target sets up .venv by itself. A Python of 3.11 or newer is all that a machine needs.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
TRITON := .venv-triton
TRITON_PYTHON ?= $(shell for p in python3.12 python3.11 python3.10; do command -v $$p && break; done)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
ARGS ?=

.PHONY: demo demo-trace test engines-triton check format bench soak build clean

demo: $(VENV)/.run  ## forecasts, pre-warms, routes and reports on real processes: make demo ARGS="--seed 2"
	@$(BIN)/tidegate demo $(ARGS)

demo-trace: $(VENV)/.run  ## ten minutes of a recorded trace: make demo-trace TRACES=DIR
	@test -n "$(TRACES)" || { echo "name the folder of traces: make demo-trace TRACES=DIR" >&2; exit 2; }
	@$(BIN)/tidegate demo --trace $(TRACES)/requests/azure2023_conv.parquet --seconds 600 $(ARGS)

test: $(VENV)/.dev  ## all tests, three files at a time: most of the time they wait for processes
	$(BIN)/python -m pytest -n 3 --dist loadfile $(ARGS)

engines-triton: $(VENV)/.dev $(TRITON)/.installed  ## the tests against a real Triton, which `make test` skips where it is not installed
	$(BIN)/python -m pytest tests/engines/test_triton.py $(ARGS)

check: $(VENV)/.dev  ## style, types, import rules, tidiness
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## figures for docs/benchmarks.md
	$(BIN)/python -m loadtests.bench.hotpath $(ARGS)

soak: $(VENV)/.dev  ## 20,000 requests under faults, everything checked: make soak ARGS="--seed 2"
	$(BIN)/python -m loadtests.soak --requests 20000 $(ARGS)

build: $(VENV)/.dev
	$(BIN)/python -m build --wheel --outdir dist

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "tidegate needs Python 3.11 or newer; none found (name one with PYTHON=...)" >&2; exit 2; }
	@echo "making a virtual environment in $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the demo needs (about a minute)"
	@test -f $(VENV)/.dev || $(PIP) install -c constraints.txt -e '.[controller,report]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing what the tests need (about two minutes)"
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.run

$(TRITON)/.installed: tests/engines/triton-constraints.txt
	@echo "installing Triton for tests in $(TRITON) (370 MB)"
	@test -n "$(TRITON_PYTHON)" || { echo "Triton needs Python 3.10 to 3.12; none found (name one with TRITON_PYTHON=...)" >&2; exit 2; }
	@$(TRITON_PYTHON) -m venv $(TRITON)
	@$(TRITON)/bin/python -m pip --disable-pip-version-check -q install -c $< nvidia-pytriton
	@touch $@

clean:
	rm -rf $(VENV) $(TRITON) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
