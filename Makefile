# `make help` lists the targets. Everything runs in .venv, which `make setup` builds from pyproject.toml.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
PROFILE ?= demo
PAPER   ?= all
WORKERS ?= 2
ARGS    ?=

BIN   := .venv/bin
STAMP := .venv/.installed
export OMP_NUM_THREADS ?= 1

TABLE2_niculae2017 := niculae2017_table2
TABLE2_laha2018    := laha2018_table2
TABLE2_martins2020 := martins2020_table2
TABLE2_all         := $(TABLE2_niculae2017) $(TABLE2_laha2018) $(TABLE2_martins2020)
TABLE1_niculae2017 := niculae2017_table1
TABLE1_martins2020 := martins2020_table1
TABLE1_all         := $(TABLE1_niculae2017) $(TABLE1_martins2020)

.PHONY: help setup reproduce-table1 reproduce-table2 reproduce-table3 reproduce-figure5 vqa-figures demo report data properties-table bench test test-slow lint types lock clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(STAMP)  ## build .venv with everything (about 3 minutes the first time)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "python 3.10 or newer is needed (3.11 is tested): make setup PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || { echo "creating .venv with $(PYTHON)"; $(PYTHON) -m venv .venv; }
	@echo "installing the packages of pyproject.toml (torch is large; this takes a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[repro,dev]'
	@touch $@
	@echo "done: $$($(BIN)/python -c 'import torch; print("torch", torch.__version__)')"

reproduce-table2: setup  ## Table 2 of Niculae & Blondel 2017, Laha et al. 2018, Martins et al. 2020 (PAPER=niculae2017|laha2018|martins2020|all PROFILE=demo|cpu|paper)
	@test -n "$(TABLE2_$(PAPER))" || { echo "PAPER=$(PAPER) has no Table 2 here; use niculae2017, laha2018, martins2020 or all"; exit 2; }
	@$(BIN)/python scripts/reproduce.py $(TABLE2_$(PAPER)) profile=$(PROFILE) runtime.workers=$(WORKERS) $(ARGS)

reproduce-table1: setup  ## Table 1 of Niculae & Blondel 2017 (entailment) and Martins et al. 2020 (sentiment); PAPER, PROFILE
	@test -n "$(TABLE1_$(PAPER))" || { echo "PAPER=$(PAPER) has no Table 1 here; use niculae2017, martins2020 or all"; exit 2; }
	@$(BIN)/python scripts/reproduce.py $(TABLE1_$(PAPER)) profile=$(PROFILE) runtime.workers=$(WORKERS) $(ARGS)

reproduce-table3: setup  ## Table 3 of Laha et al. 2018: multilabel classification on real data
	@$(BIN)/python scripts/reproduce.py laha2018_table3 profile=$(PROFILE) runtime.workers=$(WORKERS) $(ARGS)

reproduce-figure5: setup  ## Figures 4 and 5 of Laha et al. 2018 and their JSD curves: generated documents
	@$(BIN)/python scripts/reproduce.py laha2018_figure5 profile=$(PROFILE) runtime.workers=$(WORKERS) $(ARGS)
	@$(BIN)/python scripts/multilabel_figures.py laha2018_figure5 profile=$(PROFILE) $(ARGS)

demo: setup  ## one column, three mappings, at most 3 minutes
	@$(BIN)/python scripts/reproduce.py demo profile=demo runtime.workers=$(WORKERS) $(ARGS)

data: setup  ## list the data sets; `make data ARGS='fetch libreoffice_help'` fetches one
	@$(BIN)/python scripts/data.py $(or $(ARGS),list)

vqa-figures: setup  ## Martins et al. 2020, Figure 3: attention over images, discrete beside continuous; PROFILE
	@$(BIN)/python scripts/vqa_figures.py profile=$(PROFILE) $(ARGS)

properties-table: setup  ## Laha et al. 2018, Table 1: each property of each mapping, checked numerically
	@$(BIN)/python scripts/properties_table.py $(ARGS)

bench: setup  ## time the kernels against torch.softmax and installed peers; writes docs/benchmarks.md
	@$(BIN)/python scripts/bench.py $(ARGS)

test: setup  ## all tests but the slow ones
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(ARGS)

test-slow: setup  ## the slow tests
	@$(BIN)/python -m pytest -q -m slow $(ARGS)

lint: setup  ## ruff: lint and format check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup  ## mypy on the library
	@$(BIN)/mypy

lock: setup  ## write requirements.lock: the exact set, with hashes
	@$(BIN)/python scripts/lock.py

clean:  ## remove the environment and caches; finished cells (outputs/) and downloads (data/cache) stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
