# Two commands matter: `make run` shows the project at work, `make test` checks all of it.
# Both set up what they need from a fresh clone; stamps keep anything from being done twice.

PYTHON ?= python3.11
VENV := .venv
VENV_TF215 := .venv-tf215
BIN := $(VENV)/bin
BIN_TF215 := $(VENV_TF215)/bin

# Set SLOW=1 to test the models at full size as well.
SELECT := $(if $(SLOW),,-m "not slow")
PYTEST := python -m pytest $(SELECT)

NATIVE := $(shell find native -name '*.cc' -o -name '*.h' | grep -v /editable/)
NATIVE_BUILD := CMakeLists.txt pyproject.toml $(wildcard native/*.py) $(NATIVE)

# The tests run in parts, each a process of its own (devices that one registers with a framework are not there for the
# others), JOBS at a time. A part is a folder or file of tests/, prefixed by the environment it runs in.
JOBS ?= $(shell nproc)
LONG := tests/parsers/ tests/training/ tests/models/ tests/torch/ tests/tensorflow/ tests/test_repository.py
SHORT := $(filter-out tests/tensorflow_v1/ $(LONG),$(sort $(dir $(wildcard tests/*/test_*.py))) $(wildcard tests/test_*.py))
PARTS := $(addprefix check-main/,$(SHORT) doctests) \
  $(addprefix check-tf215/,doctests tests/models/tf215 tests/tensorflow_v1) \
  $(addprefix check-main/,$(LONG)) check-tf215/tests/tensorflow

pip = $(1)/python -m pip --quiet --quiet --disable-pip-version-check
requires = $(1)/python -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))'

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PYTHONUNBUFFERED := 1

.DELETE_ON_ERROR:
.PHONY: run test build build-tf215 lint check bench sanitize conformance clean help

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.project ## Compile a ResNet50, check it against TensorFlow, print a table of times and ratios
	@$(BIN)/python examples/resnet50.py

test: lint check ## Lint, then every test, example, benchmark and doctest at a small size

build: $(VENV)/.project ## Create the environment and build the native runtime

build-tf215: $(VENV_TF215)/.project ## Create the second environment, with TensorFlow 2.15

check: $(VENV)/.project $(VENV_TF215)/.project
	@$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs=$(JOBS) $(PARTS)

check-main/doctests:
	$(BIN)/$(PYTEST) --doctest-modules --ignore src/npu_bridge src benchmarks

check-tf215/doctests:
	$(BIN_TF215)/$(PYTEST) --doctest-modules src/npu_bridge/contrib_training.py

check-main/%:
	$(BIN)/$(PYTEST) $*

check-tf215/%:
	$(BIN_TF215)/$(PYTEST) $*

lint: $(VENV)/.project ## Check style and types (ruff, mypy, clang-format)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

bench: $(VENV)/.project ## Every benchmark at full size (about an hour on 2 cores)
	$(BIN)/python benchmarks/inference.py
	$(BIN)/python benchmarks/compile_time.py
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/shared_cores.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/accuracy.py
	$(BIN)/python benchmarks/tensorflow_inference.py
	$(BIN_TF215)/python benchmarks/tensorflow_inference.py
	$(BIN_TF215)/python benchmarks/tensorflow_v1.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/pytorch.py
	$(BIN)/python benchmarks/pytorch_eager.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/post_ops.py

sanitize: $(VENV)/.project ## Run the runtime's tests under address, undefined-behaviour and thread sanitizers
	$(BIN)/python -m tests.sanitize address,undefined
	$(BIN)/python -m tests.sanitize thread

# One test in SAMPLE of every file, MINUTES at most a suite and device; SAMPLE=1 MINUTES=0 runs everything (many hours).
# PYTORCH_SOURCE and TRANSFORMERS_SOURCE name checkouts with the tests that packages do not bring along.
SAMPLE ?= 20
MINUTES ?= 20
conformance: $(VENV)/.conformance ## The frameworks' own tests on the CPU and on the NPU, a sample of each (docs/conformance.md)
	$(BIN)/python -m ge.conformance suites onnx keras torch transformers --sample $(SAMPLE) --minutes $(MINUTES)

clean: ## Remove build products and caches, keep the environments
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/npu_runtime/*.so $(VENV)/.project

# Environments. PyTorch goes first and alone, so that pip takes the CPU build where it finds one.

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.frameworks: | $(BIN)/python
	@echo "Installing PyTorch and TensorFlow into $(VENV)"
	$(call pip,$(BIN)) install torch==2.13.0
	$(call pip,$(BIN)) install 'tensorflow-cpu==2.21.*'
	@touch $@

$(VENV)/.project: $(VENV)/.frameworks $(NATIVE_BUILD)
	@echo "Building the project into $(VENV)"
	@$(call requires,$(BIN)) > $(VENV)/.requires
	$(call pip,$(BIN)) install cmake ninja -r $(VENV)/.requires
	$(call pip,$(BIN)) install --no-build-isolation --editable '.[dev,bench]'
	@touch $@

# What Keras's tests import beside TensorFlow.
$(VENV)/.conformance: $(VENV)/.project
	$(call pip,$(BIN)) install jax grain pandas
	@touch $@

$(BIN_TF215)/python:
	$(PYTHON) -m venv $(VENV_TF215)

# TensorFlow 2.15 asks for ml_dtypes 0.3 but runs with 0.5, which onnx_ir needs; pip must not resolve those two together.
# onnx 1.19 is the newest that reads with the protobuf 4 of TensorFlow 2.15.
$(VENV_TF215)/.frameworks: | $(BIN_TF215)/python
	@echo "Installing TensorFlow 2.15 into $(VENV_TF215)"
	$(call pip,$(BIN_TF215)) install tensorflow-cpu==2.15.1 pytest hypothesis scikit-build-core nanobind \
	  llvmlite typer rich sympy tf-slim packaging
	$(call pip,$(BIN_TF215)) install --no-deps 'ml_dtypes==0.5.*' 'onnx==1.19.*' 'onnx_ir==1.1.*'
	@touch $@

# Both environments share one Python version and so one native library; the second does not build it again.
$(VENV_TF215)/.project: $(VENV_TF215)/.frameworks $(VENV)/.project pyproject.toml
	$(call pip,$(BIN_TF215)) install --no-deps --no-build-isolation --config-settings=wheel.cmake=false --editable .
	@touch $@
