# Each target builds what it needs: a virtual environment in .venv from the locked versions.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
STAMP := .venv/.installed
TSC := .venv/node/node_modules/.bin/tsc
DEV_STAMP := .venv/.installed-dev
COMPILED := .venv/.compiled

SECONDS ?= 60
SEED ?= 1

.PHONY: demo install test fuzz check check-page format gpu lock clean

demo: $(COMPILED)  ## Train a small model of English, measure it, sample from it.
	$(BIN)/clearformer train

install: $(DEV_STAMP)  ## All that the other targets need; each of them does it by itself, too.

test: $(DEV_STAMP)  ## All tests, two at a time.
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal -q

fuzz: $(DEV_STAMP)  ## Spoil settings, files and command lines for a while: SECONDS=600 SEED=7, or one CASE='...'.
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(SEED) $(if $(CASE),--case "$$CASE")

check: $(DEV_STAMP)  ## Style, types, and who may import whom.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python -m pytest -q --noconftest tests/contract/test_import_directions.py
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory check-page; \
	else echo "npm is not here: the types of the page's JavaScript are not checked"; fi

check-page: $(TSC)  ## The types of the page's JavaScript, as its comments say them.
	$(TSC) -p tools/tsconfig.json

format: $(DEV_STAMP)  ## Rewrite the code in the project's style.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# On a machine with an NVIDIA GPU, by the Python there that has torch for it; builds nothing and fetches nothing.
# What is done is kept in GPU_JSON and not done again. NANOGPT=FOLDER measures beside a checkout of it.
GPU_JSON ?= benchmarks/results/gpu.json
gpu:  ## Test and measure on a GPU, in stages.
	PYTHONPATH=src $(PYTHON) benchmarks/gpu.py --json $(GPU_JSON) $(if $(NANOGPT),--nanogpt $(NANOGPT))
	$(PYTHON) benchmarks/gpu.py --table $(GPU_JSON)

lock: $(DEV_STAMP)  ## Write the versions that are installed now, and their hashes, into the lock files.
	$(PIP) 'uv>=0.5'
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/lock.py

clean:  ## Remove everything that these targets made.
	rm -rf .venv .pytest_cache .ruff_cache

$(STAMP): requirements.lock requirements-torch.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(PIP) --require-hashes -r requirements.lock
	$(PIP) -r requirements-torch.lock
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

$(TSC): | $(STAMP)
	npm install --silent --no-audit --no-fund --prefix .venv/node typescript@5.9.3

# The lock file names every package, so there is nothing to resolve; that it does is checked when all are installed.
$(DEV_STAMP): $(STAMP) requirements-dev.lock
	$(PIP) --no-deps --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip check --disable-pip-version-check
	touch $@

# For a Python that is told to keep no bytecode. The tests compile what they import, less than half of it.
# pip would compile on one core. A file of a package that is for a later Python does not compile, and is not needed.
$(COMPILED): $(STAMP)
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null || true
	touch $@
