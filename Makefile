# Each target works on a fresh clone: it makes .venv and installs what it needs by itself.
PYTHON ?= python3
BIN := .venv/bin
TORCH := torch>=2.13,<2.14
# compat: a clone called qkv must not hide the package from scripts next to it
INSTALL := $(BIN)/python -m pip install --quiet --config-settings editable_mode=compat

.PHONY: help serve demo example-model browser test mutations lint format bench accept clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 16

# what the demo and the server need, and nothing for tests; builds the C++ kernels where there is a compiler; torch first and alone, so that no other package brings another one
.venv/.use: pyproject.toml setup.py $(wildcard qkv/engine/cpp/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "qkv needs Python 3.11 or newer; try: make PYTHON=python3.11 ..." >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(INSTALL) -e ".[serve]"
	@touch $@

# the rest, added to it: what tests, style checks and benchmarks need
.venv/.dev: .venv/.use
	$(INSTALL) -e ".[dev]"
	@touch $@

serve: .venv/.use  ## serve a web page with the translator that ships with qkv: translate and inspect
	$(BIN)/qkv serve

demo: .venv/.use  ## train a translator from raw text, score it and show translations
	$(BIN)/qkv demo

# the page is tested in a browser: it is installed if possible, otherwise those tests are skipped with a note
browser:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		{ timeout 300 apt-get install -y chromium || { timeout 60 apt-get update && timeout 300 apt-get install -y chromium; }; } \
		>/dev/null 2>&1; } || echo "no browser: the page will not be tested" >&2

test: .venv/.dev browser  ## run all tests, 2 files at a time
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 tests

mutations: .venv/.dev  ## break forty lines, one at a time, and check that the tests detect it
	$(BIN)/python benchmarks/mutations.py

lint: .venv/.dev  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.dev  ## measure speed, compared with other libraries
	$(BIN)/python benchmarks/run.py

accept: .venv/.dev  ## check parity with published weights (fetches them with pip)
	$(BIN)/python benchmarks/accept.py

example-model: .venv/.dev  ## train the model in qkv/pretrained/example again and replace it
	$(BIN)/python benchmarks/example_model.py

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info build qkv/engine/lib
	find qkv tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
