# Everything a fresh clone needs: python3, pip and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format clean bench bench-peers

demo: .venv/ready  ## compare six methods on digits: a table and a report
	$(BIN)/undrift run examples/digits.toml

test: .venv/ready  ## all tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/ready  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv runs

bench: .venv/ready  ## Undrift against a plain PyTorch loop and the limits of the machine
	$(BIN)/python -m benchmarks.bench

bench-peers: .venv/ready  ## the same beside other systems, each installed under .bench/
	$(BIN)/python -m benchmarks.peers
