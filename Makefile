# Everything a fresh clone needs: python3, pip and make.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# one test after another to whoever is free, in the order of tests/conftest.py; a group stays together
PYTEST := -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: demo test test-fast test-torch check format clean bench bench-peers

demo: .venv/installed  ## compare six methods on digits: a table and a report
	$(BIN)/undrift run examples/digits.toml

test: .venv/ready  ## all tests
	$(BIN)/python $(PYTEST)

test-fast: .venv/ready  ## all but those that take more than a few seconds
	$(BIN)/python $(PYTEST) -m "not slow"

# the oldest and the newest torch that pyproject.toml allows; each is a download of gigabytes
TORCH ?= 2.12.0 2.15.0
test-torch:  ## the tests of engines and compiler with other versions of torch, each in an environment under .torch/
	set -e; for version in $(TORCH); do \
	  bin=.torch/$$version/bin; \
	  test -e $$bin/python || $(PYTHON) -m venv .torch/$$version; \
	  grep -v "^torch==" constraints.txt > .torch/$$version/constraints.txt; \
	  $$bin/pip install --quiet --disable-pip-version-check -c .torch/$$version/constraints.txt \
	    torch==$$version pytest pytest-xdist hypothesis -e ".[sweep]"; \
	  $$bin/python $(PYTEST) tests/compiler tests/simulation/engines tests/simulation/batched_runs tests/algorithms; \
	done

check: .venv/ready  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/python  # what users install
	$(PIP) -c constraints.txt -e .
	touch $@

.venv/ready: .venv/installed  # and what tests need
	$(PIP) -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .torch runs

bench: .venv/ready  ## Undrift against a plain PyTorch loop and the limits of the machine
	$(BIN)/python -m benchmarks.bench

bench-peers: .venv/ready  ## the same beside other systems, each installed under .bench/
	$(BIN)/python -m benchmarks.peers
