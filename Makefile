# `make help` lists the targets. Everything runs in .venv, which `make setup` builds from the locks.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON  ?= $(firstword $(foreach v,3.11 3.12 3.13 3.14 3,$(shell command -v python$v)))
PROFILE ?= demo
PAPER   ?= all
WORKERS ?= 2
LAUNCHER ?= local
ARGS    ?=
export OMP_NUM_THREADS ?= 1
export TORCH FAIRSEQ_WHEEL

BIN   := .venv/bin
SETUP  = test -n "$(PYTHON)" || { echo "no python3 here; on Debian and Ubuntu: apt-get install python3 python3-venv"; exit 1; }; $(PYTHON) -I scripts/setup.py
PAGES := $(sort $(basename $(notdir $(wildcard configs/experiment/*.yaml))))
# Tests that depend on the processor, and the settings that make a processor with AVX-512 compute like one without.
CPU_TESTS := tests/test_golden.py tests/tasks/vqa/test_mcan.py tests/tasks/seq2seq/test_lstm.py tests/tasks/classification/test_esim.py \
	tests/tasks/fairseq_plugin/test_step.py $(addprefix tests/sparse_attention/,kernels/test_native.py kernels/test_fused_attention.py attention/test_key_cache.py)
AVX2 := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 SPARSE_ATTENTION_NATIVE_ISA=avx2
# The experiments named <paper>_<table>; PAPER=all selects every paper.
TABLES := $(sort $(basename $(notdir $(wildcard configs/experiment/*[0-9][0-9][0-9][0-9]_*.yaml))))
TARGETS := $(addprefix reproduce-,$(filter-out figure5,$(sort $(foreach page,$(TABLES),$(lastword $(subst _, ,$(page)))))))
# Not all experiments have the profile gpu.
HAVING = $(if $(filter gpu,$(PROFILE)),$(sort $(basename $(notdir $(shell grep -l "^  gpu:" configs/experiment/*.yaml)))),$(PAGES))
pages  = $(filter $(if $(filter all,$(PAPER)),%,$(PAPER))_$(1),$(HAVING))
run    = $(BIN)/python scripts/reproduce.py $(1) profile=$(PROFILE) runtime.workers=$(WORKERS) launcher=$(LAUNCHER) $(ARGS)
RUN    = $(BIN)/python scripts
GPU    = $(if $(WHEELS),$(PYTHON) -m benchmarks.wheels run $(WHEELS),$(BIN)/python) -m pytest -m gpu
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

##                the tables: PROFILE=demo|cpu|gpu|paper PAPER=niculae2017|laha2018|martins2020|peters2018|malaviya2018|all LAUNCHER=local|slurm_gpu|... ARGS='seeds=1,2 ...'
reproduce-table1: ## sentiment (Martins et al. 2020), entailment (Niculae & Blondel 2017)
reproduce-table2: ## translation, summarization (Niculae & Blondel 2017, Laha et al. 2018), visual question answering (Martins et al. 2020)
reproduce-table3: ## multilabel classification on real data (Laha et al. 2018)
reproduce-nmt:    ## translation outside the papers' tables (Niculae & Blondel 2017, section 4.2; Martins et al. 2020, Figure 2)
reproduce-snli:   ## entailment with structured alignments (Peters et al. 2018)
reproduce-deen:   ## translation with fertilities (Malaviya et al. 2018)
$(TARGETS): reproduce-%: setup
	@test -n "$(call pages,$*)" || { echo "PAPER=$(PAPER) PROFILE=$(PROFILE) has no $*; tables: $(filter %_$*,$(PAGES)); profiles: demo cpu gpu paper"; exit 2; }
	@$(call run,$(call pages,$*))
plan: setup ## cells, finished cells and hours of every experiment under PROFILE and PAPER; reads no data
	@$(call run,$(filter $(if $(filter all,$(PAPER)),%,$(PAPER)_%),$(filter $(TABLES),$(HAVING)))) --plan
reproduce-figure5: setup ## Figures 4 and 5 of Laha et al. 2018 and their JSD curves: generated documents
	@$(call run,laha2018_figure5)
	@$(RUN)/figures.py laha2018_figure4 profile=$(PROFILE) $(ARGS)
figure-%: setup ## draw a figure of a paper from finished cells (figure-niculae2017_figure1 PROFILE=cpu) and show it in the report
	@$(RUN)/figures.py $* profile=$(PROFILE) $(ARGS)
figures: setup ## list the figures that can be drawn from finished cells
	@$(RUN)/figures.py --help
properties-table: setup ## Table 1 of Laha et al. 2018: each property of each mapping, checked numerically
	@$(RUN)/figures.py properties
paper-figures: setup ## draw the papers' figures that need no data into docs/results/figures (SVG, CSV)
	@$(RUN)/figures.py $(or $(ARGS),functions)
results: setup ## write the tables and pages of docs/results again from their records; rejects records that contradict their examples
	@$(RUN)/results.py $(ARGS)
demo: setup ## the quickest look, in three minutes: three translation models, what their attention does, a picture, a report
	@$(call run,demo)

##                data, library
data: setup ## list the data sets; make data-imdb fetches one, ARGS='verify imdb' checks one
	@$(RUN)/data.py $(or $(ARGS),list)
data-%: setup
	@$(RUN)/data.py fetch $* $(ARGS)
claims: setup ## test the papers' claims on the records of docs/results (docs/claims.md)
	@$(RUN)/results.py --claims $(ARGS)
bench: developer ## time the kernels against torch.softmax and entmax; writes docs/reference/benchmarks.md; ARGS=--check compares with benchmarks/gate.json
	@$(RUN)/bench.py mappings $(ARGS)
bench-attention: developer ## time sa.sparse_attention against torch's attention, and decoding; writes its section of docs/reference/benchmarks.md
	@$(RUN)/bench.py attention $(ARGS)
bench-lm: developer ## train a causal language model over 4,096 bytes with softmax, sparsemax and entmax 1.5; writes docs/results/language_model.md
	@$(RUN)/bench.py language_model $(ARGS)
bench-length: developer ## train small decoders on 4 to 16 symbols and test them on up to 128; writes docs/results/length.md
	@$(RUN)/bench.py length $(ARGS)
bench-training: developer ## time training and beam search of every mapping against softmax; writes its section of docs/reference/benchmarks.md
	@$(RUN)/bench.py training $(ARGS)
bench-host: developer ## time what a GPU call costs the host, without a GPU (docs/reference/gpu.md); ARGS='--against FOLDER' compares with another checkout
	@$(BIN)/python benchmarks/host.py $(ARGS)
gpu-wheels: developer ## collect in WHEELS (default wheels) the packages that test-gpu needs on a machine with torch and without a network
	@$(BIN)/python -m benchmarks.wheels collect $(or $(WHEELS),wheels) $(ARGS)
docs: developer ## build the documentation site into build/site and test it; a dead link or anchor, or a formula that cannot be drawn, fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@SITE=build/site $(BIN)/python -m pytest -q -m "slow or not slow" tests/test_site.py
	@echo "the site: build/site/index.html"
pages: developer ## write the gallery of mappings, the type stubs and the list in the docstring of the package from the code
	@$(BIN)/python -m tasks.commands.mapping_pages

##                tests
test: developer ## the tests except the slow ones, each file in one worker, the longest files first
	@$(PYTEST) $(ARGS)
test-all: developer ## every test that needs no GPU: the slow ones too, those of other processors, Slurm
	@$(PYTEST) -m 'not slurm and not gpu' $(ARGS)
	@$(MAKE) --no-print-directory test-cpus test-slurm
test-cpus: developer ## tests that depend on the processor, as without AVX-512 and with ATen's plain loops
	@$(AVX2) $(PYTEST) $(CPU_TESTS) $(ARGS)
	@ATEN_CPU_CAPABILITY=default $(PYTEST) $(CPU_TESTS) $(ARGS)
test-gpu: ## run the kernels, attention and training on this machine's GPU, then print times; without .venv: WHEELS=folder PYTHON=python3 (docs/reference/gpu.md)
	@$(GPU) -q -n 8 --maxschedchunk 1 -k "not times" tests/gpu $(ARGS)
	@$(if $(ARGS),,$(GPU) -rA -k times tests/gpu)
test-slurm: developer ## test a sweep with every kind of fault on a one-node Slurm, installed if possible
	@$(BIN)/python -m pytest -q -m slurm tests/slurm $(ARGS)
test-fresh: ## install and run on fresh Debian 12, 13 and testing, and on machines with faults (needs root and debootstrap); SUITES="trixie faults" FULL=1
	@bash tests/fresh.sh $(SUITES)
release: developer ## build the wheels and the sdist in dist/, check them, try the wheel on fresh Debian roots, and print what to upload
	@$(BIN)/python tests/release.py $(ARGS)
crash-test: developer ## kill processes, flip bits and change clocks, then compare with an undisturbed run; ARGS='--minutes 5'
	@$(BIN)/python tests/repro/storm.py $(ARGS)
mutants: developer ## change N random lines (200; SEED=1), one at a time: do the nearest tests fail?
	@$(BIN)/python tests/mutants.py --n $(or $(N),200) --seed $(or $(SEED),1) --workers $(WORKERS) $(ARGS)
golden: developer ## record the golden cells again, after raising a recipe
	@GOLDEN=record $(BIN)/python -m pytest -q tests/test_golden.py $(ARGS)
lint: developer ## ruff: lint and format check; who imports whom; limits of lines
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python tests/sizes.py
types: developer ## mypy on the library
	@$(BIN)/mypy

##                the environment
setup: ## build or repair .venv with what running needs (3 minutes, 6.6 GB); TORCH=cpu: torch without CUDA
	@$(SETUP)
developer: ## the same, with what tests, lint, types and docs need besides; these targets run it by themselves
	@$(SETUP) dev
lock: developer ## write the locks: every package with version and hashes, for every platform; ARGS=--upgrade
	@$(RUN)/setup.py lock $(ARGS)
clean: ## remove the environment and caches; keep finished cells (outputs/) and downloads (data/cache)
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
.DEFAULT:
	@near=$$($(PYTHON) -Ic 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' \
		$@ $(sort $(shell sed -nE 's/^([a-z][a-z0-9-]*):.*/\1/p' $(MAKEFILE_LIST)) $(TARGETS)) 2>/dev/null); \
	echo "make $@: no such target$${near:+ (did you mean $$near?)}; tables and figures of the papers: $(TARGETS) reproduce-figure5, and those of make figures; make help lists the rest"; exit 2
help: ## list the targets
	@sed -nE 's/^##  +(.*)/\n\1/p; s/^([a-z0-9%-]+):[^#]*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 22

.PHONY: help setup developer docs $(TARGETS) plan reproduce-figure5 figures properties-table paper-figures results demo \
	data bench bench-attention bench-lm bench-length bench-training gpu-wheels pages test test-all test-cpus test-gpu test-slurm test-fresh release crash-test mutants golden lint types lock clean
