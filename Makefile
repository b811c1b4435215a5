# A few verbs, each the same here and in CI. `make demo` and `make test` work from a clean clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check soak bench clean

demo: $(VENV)/ready  ## compare FedAvg, FedAvg + FFC and SphereFed on digits; ends in a table and a page
	$(BIN)/spherefed compare digits --seeds 5

test: $(VENV)/ready-dev  ## lint, types, tests; then real deployments and clusters on loopback
	$(BIN)/pip check
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -m deployment

check: test

soak: $(VENV)/ready-dev  ## the long tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -q -n 2 -m soak

bench: $(VENV)/ready  ## ratios to a bare PyTorch loop and to other libraries, FFC, growth; writes docs/performance.md
	$(BIN)/python benchmarks/environments.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/report.py

clean:
	rm -rf $(VENV) .bench build dist

# torch first and by its exact version: see constraints.txt.
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@

$(VENV)/ready-dev: $(VENV)/ready
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,flower,ray]'
	touch $@
