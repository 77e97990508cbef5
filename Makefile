# Bare `make` explains every target. `make demo` and `make test` do all their own set-up.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Whole files go to one of three processes, those that mostly wait (systemd, browsers, plants) first.
BOTH_CORES := --numprocesses 3 --dist loadfile --no-loadscope-reorder
ROOMS := controllers adapters runtime training

.DEFAULT_GOAL := help
.PHONY: help demo test check types format bench train slow mutate clean

help: ## Explain every target
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "steadyhand needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

# What the edge needs: no torch, no compiler.
$(VENV)/.edge: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[cpu,opcua,demo]'
	@touch $@

# What training, tests and checks need on top.
$(VENV)/.dev: $(VENV)/.edge
	$(PIP) --editable '.[cpu,opcua,demo,train,dev]'
	@touch $@

# Debian and npm packages of the system tests; what cannot be installed skips the tests that need it,
# and is tried again the next time.
$(VENV)/.system: tests/system/install.sh $(wildcard tests/system/packages.txt tests/system/package-lock.json) | $(BIN)/python
	@if tests/system/install.sh; then touch $@; else echo "system tests: some are skipped; tried again by the next make test"; fi

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[cpu,opcua,demo,train,dev,bench]'
	@touch $@

demo: $(VENV)/.edge ## Watch a learned controller run a plant over encrypted OPC UA (90 s)
	$(BIN)/steadyhand demo thermal_storage $(ARGS)

test: $(VENV)/.dev $(VENV)/.system check ## Everything that must hold: checks, unit, property, fault and loop tests
	$(BIN)/python -m pytest -m "not slow" $(BOTH_CORES) $(ARGS)

check: $(VENV)/.dev types ## Lint, format, types, import order
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(VENV)/.dev ## mypy --strict over all rooms
	@mkdir -p .types/steadyhand && for room in $(ROOMS); do ln -sfn ../../$$room .types/steadyhand/$$room; done
	$(BIN)/mypy $(foreach room,$(ROOMS),-p steadyhand.$(room))

format: $(VENV)/.dev ## Format and fix what can be fixed
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## Our figures beside named rivals, in the same run, as ratios
	$(BIN)/steadyhand bench $(ARGS)

train: $(VENV)/.dev ## Make the shipped thermal-storage bundle again from seed 0, into out/thermal_storage (10 min)
	$(BIN)/steadyhand train thermal_storage --seed 0 --folder out/thermal_storage $(ARGS)

slow: $(VENV)/.dev ## Long campaigns: kills, hostile policies, full studies
	$(BIN)/python -m pytest -m slow --timeout 7200 $(ARGS)

mutate: $(VENV)/.dev ## Mutation testing of the safety filter
	$(BIN)/python tests/mutation/run.py $(ARGS)

clean: ## Remove what was built (keeps .venv)
	rm -rf build dist .types .mypy_cache .ruff_cache .pytest_cache .hypothesis out mutants
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
