# Needs Python 3.11, 3.12 or 3.13 and make. Installs with uv, which it installs where it is missing.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= python3.11 python3.12 python3.13 python3

# The tests start many processes, which import faster from bytecode.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.run ## Builds the snapshot of the shipped images and trains a model from it
	@$(PY) examples/demo.py

PYTEST = $(PY) -m pytest --numprocesses 2 --dist worksteal

.PHONY: test
test: $(VENV)/.dev ## Runs the tests that are quick and need only Python
	$(PYTEST) -m "not slow and not engine and not peers"

.PHONY: test-slow
test-slow: $(VENV)/.dev ## Runs the slow tests, and one build on each engine and store
	@$(PY) tests/integration/engines/installed.py smoke
	$(PYTEST) -m "smoke or (slow and not engine and not peers)" --durations=15

SUITES := tests

.PHONY: test-engines
test-engines: $(if $(filter tests,$(SUITES)),engines,$(VENV)/.dev) ## Runs all tests on engines, stores and other versions, or those in SUITES
	$(PYTEST) -m "engine and not smoke" --durations=15 $(SUITES)

.PHONY: test-pythons
test-pythons: ## Runs the quick tests on Python 3.12 and 3.13
	for version in 3.12 3.13; do \
		$(MAKE) VENV=.venv-$$version PYTHON=python$$version test || exit 1; done

.PHONY: test-all
test-all: test test-slow test-engines ## Runs all of these on one Python

PEERS := .venv-peers

.PHONY: peers
peers: $(VENV)/.dev ## Reads snapshots with PyTorch, Grain, TensorFlow Datasets …, in a separate environment (8 GB)
	$(PY) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --disable-pip-version-check --quiet \
		datasets google-crc32c grain mlcroissant numpy pillow tensorflow tensorflow-datasets torch \
		torchdata webdataset
	SNAPSHARD_PEERS=$(PEERS)/bin/python $(PYTEST) -m peers --durations=10

.PHONY: torture
torture: $(VENV)/.dev ## Kills builds at random moments, builds large inputs, compares random data with other readers
	$(PY) -m tests.integration.torture
	$(PY) -m tests.integration.torture_large
	SNAPSHARD_ORACLE_EXAMPLES=1000 $(PY) -m pytest -q \
		tests/transforms/sources/test_oracles.py tests/transforms/prepare/test_image_oracle.py \
		tests/integration/test_build_oracles.py

.PHONY: real-tables
real-tables: $(VENV)/.dev ## Reads the 989 CSV files of two packages, and compares each cell (28 MB)
	$(PY) -m tests.integration.real_tables out/real-tables --build 20

.PHONY: engines
engines: $(VENV)/.dev ## Installs the engines and stores that the tests use, as far as possible here
	@$(PY) tests/integration/engines/installed.py

FUZZ := 100000

.PHONY: fuzz
fuzz: $(VENV)/.dev ## Damages FUZZ files, different ones each time, and reports the results
	$(PY) tests/fuzz/fuzz.py --num $(FUZZ) --first $$(date +%s)

.PHONY: mutation
mutation: $(VENV)/.dev ## Breaks the code in 480 small ways, and counts those that the quick tests detect
	$(PY) -m tests.mutation.run --out out/mutation.json

.PHONY: golden
golden: $(VENV)/.dev ## Records the bytes of the golden snapshots again, after an intended change
	RECORD_GOLDEN=1 $(PY) -m pytest -q -m "" tests/golden

.PHONY: lint
lint: $(VENV)/.dev .mypy_path/snapshard ## Checks style, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy -p snapshard

.PHONY: format
format: $(VENV)/.dev ## Formats the code and applies ruff's fixes
	$(PY) -m ruff check --fix-only .
	$(PY) -m ruff format .

.PHONY: venv
venv: $(VENV)/.dev .mypy_path/snapshard ## Sets up .venv with snapshard and its development tools

.PHONY: clean
clean: ## Removes .venv, the caches and the demo's output
	rm -rf $(VENV) out build dist *.egg-info .mypy_path .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A stamp lies in the environment that it speaks of; it is stale when a dependency may have changed.
# uv installs in half a minute what takes pip four; pip does it where uv cannot.
define install
@uv=uv; uv --version >/dev/null 2>&1 || { uv=$(VENV)/bin/uv; [ -x $$uv ] || $(PY) -m pip install \
		--disable-pip-version-check --quiet --only-binary :all: uv || true; }; \
	$$uv pip install --quiet --python $(PY) --constraint constraints.txt --editable '$(1)' || \
	$(PY) -m pip install --disable-pip-version-check --quiet \
		--constraint constraints.txt --editable '$(1)'
@touch $@
endef

$(VENV)/.run: pyproject.toml constraints.txt | $(PY)
	$(call install,.)

$(VENV)/.dev: pyproject.toml constraints.txt | $(PY)
	$(call install,.[dev])
	@touch $(VENV)/.run

$(PY):
	@for python in $(PYTHON); do \
		"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
			2>/dev/null || continue; \
		echo "Setting up $(VENV) with $$("$$python" --version)"; \
		if uv --version >/dev/null 2>&1; \
			then uv venv --quiet --allow-existing --python "$$("$$python" -c 'import sys; print(sys.executable)')" $(VENV); \
			else "$$python" -m venv $(VENV); \
		fi; \
		exit $$?; \
	done; \
	echo "snapshard needs Python 3.11, 3.12 or 3.13; none of these is one: $(PYTHON)." \
		"Name it: make PYTHON=/path/to/python3.11" >&2; exit 1

# mypy checks the package by its name, which the checkout's folder need not bear.
.mypy_path/snapshard:
	@mkdir -p $(@D) && ln -sfn .. $@
