# Two commands set up everything: `make demo` trains on the embedded data set, `make test` checks the code.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test soak clean help

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

demo: $(INSTALLED)  ## train and evaluate the small DeMo + SDTPS model on the embedded data set (CPU, minutes)
	$(BIN)/python train_net.py

test: $(INSTALLED)  ## ruff, mypy and pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

soak: $(INSTALLED)  ## kill a training run ten times, resume it, and compare its weights (minutes)
	$(BIN)/python -m tools.soak

clean:  ## remove the environment, the drawn data set and all runs
	rm -rf .venv data/Synthetic runs

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "DeMo-SDTPS needs Python 3.10 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch and the other dependencies into .venv (a few minutes, about 5 GB)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(INSTALLED)
