# `make help` lists the targets. Everything runs in .venv, which `make setup` builds from requirements.lock.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON  ?= $(shell command -v python3.11 || command -v python3)
PROFILE ?= demo
PAPER   ?= all
WORKERS ?= 2
LAUNCHER ?= local
ARGS    ?=
export OMP_NUM_THREADS ?= 1

BIN   := .venv/bin
STAMP := .venv/.installed
PAGES := $(sort $(basename $(notdir $(wildcard configs/experiment/*.yaml))))
# The experiments called <paper>_<what>; PAPER=all: of every paper.
TABLES := $(sort $(basename $(notdir $(wildcard configs/experiment/*[0-9][0-9][0-9][0-9]_*.yaml))))
TARGETS := $(addprefix reproduce-,$(filter-out figure5,$(sort $(foreach page,$(TABLES),$(lastword $(subst _, ,$(page)))))))
pages  = $(filter $(if $(filter all,$(PAPER)),%,$(PAPER))_$(1),$(PAGES))
run    = $(BIN)/python scripts/reproduce.py $(1) profile=$(PROFILE) runtime.workers=$(WORKERS) launcher=$(LAUNCHER) $(ARGS)
RUN    = $(BIN)/python scripts

##                the tables: PROFILE=demo|cpu|paper PAPER=niculae2017|laha2018|martins2020|peters2018|malaviya2018|all LAUNCHER=local|slurm_gpu|... ARGS='seeds=1,2 ...'
reproduce-table1: ## sentiment (Martins et al. 2020), entailment (Niculae & Blondel 2017)
reproduce-table2: ## translation, summarization (Niculae & Blondel 2017, Laha et al. 2018), questions about images (Martins et al. 2020)
reproduce-table3: ## multilabel classification of real data (Laha et al. 2018)
reproduce-nmt:    ## translation outside the papers' tables (Niculae & Blondel 2017, section 4.2; Martins et al. 2020, Figure 2)
reproduce-snli:   ## entailment with structured alignments (Peters et al. 2018)
reproduce-deen:   ## translation with fertilities (Malaviya et al. 2018)
$(TARGETS): reproduce-%: setup
	@test -n "$(call pages,$*)" || { echo "PAPER=$(PAPER) has no $* here; there are: $(filter %_$*,$(PAGES))"; exit 2; }
	@$(call run,$(call pages,$*))
plan: setup ## what every page of the papers would take under PROFILE and PAPER: cells, done, hours (paper: FLOPs, disk, memory); reads no data
	@$(call run,$(filter $(if $(filter all,$(PAPER)),%,$(PAPER)_%),$(TABLES))) --plan
reproduce-figure5: setup ## Figures 4 and 5 of Laha et al. 2018 and their JSD curves: generated documents
	@$(call run,laha2018_figure5)
	@$(RUN)/figures.py laha2018_figure4 profile=$(PROFILE) $(ARGS)
figure-%: setup ## a figure of a paper from finished cells, as make figure-niculae2017_figure1 PROFILE=cpu; then the table's report shows it
	@$(RUN)/figures.py $* profile=$(PROFILE) $(ARGS)
figures: setup ## the figures that can be drawn from finished cells
	@$(RUN)/figures.py --help
properties-table: setup ## Table 1 of Laha et al. 2018: each property of each mapping, checked numerically
	@$(RUN)/properties_table.py $(ARGS)
paper-figures: setup ## the papers' figures that need no data, as SVG and CSV, into docs/results/figures
	@$(RUN)/paper_figures.py $(ARGS)
summary: setup ## the reproducibility summary of EXPERIMENT=niculae2017_table1 (scope, reproduced, easy, hard, deviations, cost)
	@test -n "$(EXPERIMENT)" || { echo "set EXPERIMENT=NAME; there are: $(PAGES)"; exit 2; }
	@$(RUN)/summary.py $(EXPERIMENT) profile=$(PROFILE) $(ARGS)
verify: setup ## hold the numbers of README and docs/results against their cells' records; ARGS=--rerun trains a twentieth of the demo anew
	@$(RUN)/verify.py $(ARGS)
demo: setup ## one column, three mappings: the quickest look
	@$(call run,demo)

##                data, library
data: setup ## list the data sets; make data-imdb fetches one, ARGS='verify imdb' holds it against what is known
	@$(RUN)/data.py $(or $(ARGS),list)
data-%: setup
	@$(RUN)/data.py fetch $* $(ARGS)
bench: setup ## time the kernels against torch.softmax and installed peers; writes docs/benchmarks.md
	@$(RUN)/bench.py $(ARGS)
bench-attention: setup ## time sa.sparse_attention against torch's attention, and decoding; writes its section of docs/benchmarks.md
	@$(RUN)/bench_attention.py $(ARGS)
bench-lm: setup ## train a causal language model over 4,096 bytes by softmax, sparsemax and entmax 1.5; writes docs/results/language_model.md
	@$(RUN)/language_model.py $(ARGS)
bench-training: setup ## time training and beam search of every mapping against softmax and plain loops; writes docs/benchmarks.md
	@$(RUN)/bench_training.py $(ARGS)
gpu-wheels: setup ## collect into WHEELS (default wheels) what a machine with torch and no network needs for gpu-proof
	@$(RUN)/gpu_proof.py collect --wheels $(or $(WHEELS),wheels) $(ARGS)
gpu-proof: ## PART=kernels|training|table on a machine with a GPU; WHEELS=folder PYTHON=python3 where there is no .venv (docs/gpu.md)
	@$(if $(WHEELS),$(PYTHON),$(BIN)/python) scripts/gpu_proof.py $(or $(PART),kernels) $(if $(WHEELS),--wheels $(WHEELS)) $(ARGS)
wheel: setup ## a wheel into dist/ that carries the CPU kernels compiled, for x86-64 Linux: pip install without a compiler
	@$(RUN)/wheel.py $(ARGS)
pages: setup ## write the mappings' pages and type stubs from the registry
	@$(RUN)/pages.py
tour: setup ## run docs/library.md and write what it prints, its notebook and its pictures
	@$(RUN)/tour.py

##                tests
test: setup ## all tests but the slow ones
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile $(ARGS)
test-slow: setup ## the slow tests
	@$(BIN)/python -m pytest -q -m slow $(ARGS)
test-slurm: setup ## a sweep under every fault on a Slurm of one node, which it installs when it may
	@$(BIN)/python -m pytest -q -m slurm tests/slurm $(ARGS)
crash-test: setup ## kill, flip bits, turn back clocks, then compare with an undisturbed run; ARGS='--minutes 5' or --many
	@$(RUN)/crash_test.py $(ARGS)
mutants: setup ## change N lines (200) one at a time, drawn by SEED (1): do the tests that import the file notice?
	@$(RUN)/mutants.py --n $(or $(N),200) --seed $(or $(SEED),1) --workers $(WORKERS) $(ARGS)
golden: setup ## record the golden cells again, after a recipe was raised
	@GOLDEN=record $(BIN)/python -m pytest -q tests/test_golden.py $(ARGS)
lint: setup ## ruff: lint and format check
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
types: setup ## mypy on the library
	@$(BIN)/mypy

##                the environment
setup: $(STAMP) ## build .venv: the locked packages, or LOCKED=0 to resolve anew (about 3 minutes)
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) scripts/setup.py
lock: setup ## write requirements.lock: the exact set, with hashes
	@$(RUN)/lock.py
clean: ## remove the environment and caches; finished cells (outputs/) and downloads (data/cache) stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
help: ## list the targets
	@sed -nE 's/^##  +(.*)/\n\1/p; s/^([a-z0-9%-]+):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: help setup $(TARGETS) plan reproduce-figure5 figures properties-table paper-figures summary verify demo \
	data wheel bench bench-attention bench-lm bench-training gpu-wheels gpu-proof pages tour test test-slow test-slurm crash-test mutants golden lint types lock clean
