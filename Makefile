# Everything a fresh clone needs: python3, pip and make.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# one test after another to whoever is free, in the order of tests/conftest.py; a group stays together
PYTEST := -m pytest -n 2 --dist loadgroup --no-loadscope-reorder

.PHONY: demo test test-fast test-package licences test-torch soak audit check format clean bench bench-peers docs

demo: .venv/installed  ## compare six methods on digits: a table and a report
	$(BIN)/undrift run examples/digits.toml

test: .venv/ready  ## all tests
	$(BIN)/python $(PYTEST)

test-fast: .venv/ready  ## all but those that take more than a few seconds
	$(BIN)/python $(PYTEST) -m "not slow"

# the sdist's tests with the installed wheel: nothing of the repository's sources is there
PACKAGE := build/package
test-package: .venv/ready  ## build wheel and sdist into dist/, and test them in an environment of their own
	rm -rf dist $(PACKAGE)
	$(BIN)/python -m hatchling build -d dist
	$(PYTHON) -m venv $(PACKAGE)/venv
	$(PACKAGE)/venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt "$$(ls dist/*.whl)[dev]"
	tar -xf dist/*.tar.gz -C $(PACKAGE) --strip-components 1
	rm -r $(PACKAGE)/undrift
	cd $(PACKAGE) && venv/bin/python $(PYTEST) -m "not slow" tests

licences: .venv/ready  ## what the dependencies say of their licences, into docs/licences.md
	$(BIN)/python docs/_licences.py

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

soak: .venv/ready  ## the long form of all attacks of tests/faults; docs/reliability.md is written from its figures
	nice -n 19 $(BIN)/python -m tests.faults.soak

audit:  ## known vulnerabilities of the pinned dependencies; a failure too if the registry does not tell
	test -e .audit/bin/pip-audit || ($(PYTHON) -m venv .audit && .audit/bin/pip install --quiet pip-audit)
	.audit/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt

check: .venv/ready  ## lint, format, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

docs: .venv/docs  ## the site, into build/docs; no network, and no warnings
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html -d build/doctrees docs build/docs
	@echo "build/docs/index.html"

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

.venv/docs: .venv/installed  # and what the site needs
	$(PIP) -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf .venv .torch .audit runs

bench: .venv/ready  ## Undrift against a plain PyTorch loop and the limits of the machine
	$(BIN)/python -m benchmarks.bench

bench-peers: .venv/ready  ## the same beside other systems, each installed under .bench/
	$(BIN)/python -m benchmarks.peers
