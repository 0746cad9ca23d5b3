# make report   set up what this host needs, measure, and say where the page is
#               MODEL=Qwen/Qwen3-0.6B: that model alone, by the hub's name or a folder with its config.json;
#               BATCH=, SEQ_LEN= and LORA= (a rank) in the place of what suits the device
# make quick    a first answer in half a minute; make report goes on from there
# make figures  every figure of the report as SVG, PNG and PDF, in results/print
# make test     set up what the tests need and run them; make test-all: the campaigns as well
# make test-campaigns, make test-fast, make lint, make docs, make bench, make clean-env

# The first that will do of python3.13, python3.12, python3.11, python3.14 and python3.
PYTHON ?= $(shell sh envs/which_python.sh)
VENV ?= .venv
BIN := $(VENV)/bin
# cpu, cuda or apple: which pins; found by looking, overridden by `make ENV=cpu report`. Not by the
# environment, where clusters' Environment Modules set an ENV that is a shell's.
ENV := $(shell sh envs/which.sh)
PINS := $(wildcard envs/*.txt) pyproject.toml
# how many tests at once, of which many wait; 0 is one process without workers
WORKERS ?= 4
PYTEST = PATH="$$(cd $(BIN) && pwd):$$PATH" python -m pytest \
    --numprocesses $(WORKERS) --no-loadscope-reorder
OFFLOAD_OPS = PATH="$$(cd $(BIN) && pwd):$$PATH" PYTHONPATH=workflow \
    python -m siliconprof.hosts.offload_ops
# more for snakemake: make report ARGS="--configfile config/paper.yaml --replace-workflow-config"
ARGS ?=
MODEL ?=
OF_MODEL = $(if $(MODEL),--config 'model=$(subst ','\'',$(MODEL))' $(if $(BATCH),batch=$(BATCH)) \
    $(if $(SEQ_LEN),seq_len=$(SEQ_LEN)) $(if $(LORA),lora=$(LORA)))

# A user whom the system does not know, as a container's: libraries ask for name and home.
ifeq ($(shell whoami 2>/dev/null),)
export USER := $(or $(USER),uid-$(shell id -u))
ifneq ($(shell test -w "$$HOME" && echo 1),1)
export HOME := $(CURDIR)/.cache/home
endif
endif

# It takes the docstrings that some libraries read.
unexport PYTHONOPTIMIZE

.PHONY: report quick figures env dev-env offload-ops test test-all test-campaigns test-fast lint format docs bench clean-env
.DEFAULT_GOAL := report

report quick figures: env
	@# PYTHONSAFEPATH: a `profile.py` that lies here is not the library's.
	PATH="$$(cd $(BIN) && pwd):$$PATH" PYTHONSAFEPATH=1 \
	    python -m snakemake --cores 1 $@ $(OF_MODEL) $(ARGS)

env: $(VENV)/.installed-$(ENV)
dev-env: $(VENV)/.installed-dev

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "make: no Python 3.11 to 3.14 with venv found;" \
	    "install one or say make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) envs/install.py --check
	@# Without ensurepip it fails and leaves a Python without pip, which the next make would take.
	$(PYTHON) -m venv $(VENV) || { rm -f $@; exit 2; }

$(VENV)/.installed-$(ENV): $(BIN)/python $(PINS)
	@# Every build of MLX brings mlx/lib/libmlx.so, which pip takes for its own while that is listed.
	$(if $(filter-out $@ %-dev,$(wildcard $(VENV)/.installed-*)), \
	    $(BIN)/python -m pip uninstall -qq --yes mlx-cpu mlx-cuda-13)
	@rm -f $(VENV)/.installed-*
	$(BIN)/python envs/install.py -r envs/$(ENV).txt
	$(BIN)/python envs/install.py --no-deps --no-build-isolation --editable .
	$(BIN)/python envs/first_imports.py
	$(if $(filter cuda,$(ENV)),$(OFFLOAD_OPS) || true)
	@$(BIN)/python -m siliconprof.hosts.mlx_blas >/dev/null || true
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-$(ENV) envs/dev.txt
	$(BIN)/python envs/install.py -r envs/dev.txt
	@touch $@

# Last, in one process, those that look at times.
test: dev-env
	$(PYTEST) -m "not alone and not campaign"
	$(PYTEST) --numprocesses 0 -m "alone and not campaign"

test-all: test test-campaigns

test-campaigns: dev-env
	$(PYTEST) -m "campaign and not alone"
	$(PYTEST) --numprocesses 0 -m "campaign and alone"

# in another order each time
test-fast: dev-env
	$(PYTEST) -m "not slow and not alone and not campaign" --random-order-bucket=module

lint: dev-env
	$(PYTEST) tests/test_lint.py

format: dev-env
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	PATH="$$(cd $(BIN) && pwd):$$PATH" python -m snakefmt Snakefile workflow

docs: dev-env
	PYTHONPATH=workflow $(BIN)/python docs/generate.py

bench: dev-env
	PATH="$$(cd $(BIN) && pwd):$$PATH" python benchmarks/pipeline.py

# DeepSpeed's compiled Adam for scenario offload, built with ENV=cuda at once; without it, as where
# there is no compiler, torch's own AdamW updates on the host and the cells are flagged
offload-ops: env
	$(OFFLOAD_OPS)

clean-env:
	rm -rf $(VENV)
