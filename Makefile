# Two commands set up everything: `make demo` trains on the embedded data set, `make test` checks the code.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DEMO_RUN := runs/Synthetic/DeMo_SDTPS

# Chromium from Debian's packages, as root or with sudo; elsewhere the user has to install it.
define INSTALL_CHROMIUM
{ \
	command -v apt-get > /dev/null || { \
		echo "install Chromium and ChromeDriver with the package manager of this system"; exit 1; }; \
	as_root=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	echo "installing Chromium and ChromeDriver from Debian's packages"; \
	export DEBIAN_FRONTEND=noninteractive; \
	$$as_root apt-get update -qq && \
	$$as_root apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core > /dev/null; \
}
endef

.PHONY: demo test test-browser test-slow test-matrix bench soak clean help

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

demo: $(INSTALLED)  ## train and evaluate the small DeMo + SDTPS model on the embedded data set (CPU, minutes)
	$(BIN)/python train_net.py
	$(BIN)/python test_net.py --missing all --report $(DEMO_RUN)/report TEST.WEIGHT $(DEMO_RUN)/last.pth

test: $(INSTALLED)  ## ruff, mypy and pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

test-browser: $(INSTALLED)  ## open the report in headless Chromium and use it
	@command -v chromedriver > /dev/null || $(INSTALL_CHROMIUM)
	$(BIN)/pytest -m browser -n 0

test-slow: $(INSTALLED)  ## train twelve steps beside the recorded ones of DeMo, its baseline and SDTPS (minutes)
	$(BIN)/pytest -m slow --dist load

test-matrix: $(INSTALLED)  ## pytest with several versions of Python and the dependencies (hours; 5 GB at a time)
	$(BIN)/python tests/matrix.py

bench: $(INSTALLED)  ## measure against the plain way of the same work (minutes; make bench BENCH=--quick)
	$(BIN)/python -m benchmarks $(BENCH)

soak: $(INSTALLED)  ## kill training runs and reports twenty times, resume them, and compare the results (minutes; make soak SOAK="--kills 4")
	$(BIN)/pytest -m soak -n 0 -o log_cli=true -o log_cli_level=INFO -o faulthandler_timeout=3660 $(SOAK)

clean:  ## remove the environment, the drawn data set and all runs
	rm -rf .venv .matrix data/Synthetic* runs

$(INSTALLED): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "DeMo-SDTPS needs Python 3.10 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch and the other dependencies into .venv (a few minutes, about 5 GB)"
	$(BIN)/python -m pip install --quiet -e ".[dev]"
	touch $(INSTALLED)
