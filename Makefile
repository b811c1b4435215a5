# A few verbs, each the same here and in CI. `make demo` and `make test` work from a clean clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -q
# Some tests use real processes, sockets, browsers and clocks: tests that fail are run once more, and both reports are printed.
twice = $(1) || { echo "Once more, what failed:"; $(1) --last-failed --last-failed-no-failures=none; }

.PHONY: demo test check soak bench reliability docs release-check clean

demo: $(VENV)/ready  ## compare FedAvg, FedAvg + FFC, SphereFed and one-shot FFC on digits; ends in a table and a page
	$(BIN)/spherefed compare digits --with ffc,spherefed,one-shot --seeds 5

test: $(VENV)/ready-dev  ## lint, types, tests; then real deployments on loopback, and the page in Chromium if it is installed
	$(BIN)/pip check
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/mypy
	$(call twice,$(PYTEST) -n 2)
	$(call twice,$(PYTEST) -n 2 --dist loadfile -m 'slow and not soak')
	$(call twice,$(PYTEST) -m deployment)
	-test -d tests/browser/node_modules || { command -v chromium npm && npm install --silent --prefix tests/browser; }
	$(call twice,$(PYTEST) -rs -m browser tests/report)

check: test

soak: $(VENV)/ready-dev  ## the long tests
	$(PYTEST) -n 2 -m soak

bench: $(VENV)/ready  ## ratios to a bare PyTorch loop and to other libraries, FFC, growth; writes docs/performance.md
	$(BIN)/python benchmarks/environments.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/report.py

reliability: $(VENV)/ready-dev  ## kills, malformed input, hostile clients and servers, random faults; writes docs/reliability.md
	$(BIN)/python benchmarks/reliability.py --write
	$(BIN)/python benchmarks/hostile_clients.py --write
	$(BIN)/python benchmarks/hostile_server.py --write
	$(BIN)/python benchmarks/outside.py --write
	$(BIN)/python benchmarks/chaos.py --minutes 15 --write

docs: $(VENV)/ready-dev  ## build the documentation into site/ and print its first page
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "open $(CURDIR)/site/index.html"

release-check: $(VENV)/ready-dev  ## wheel and sdist, checked and installed in fresh environments
	$(BIN)/python tools/release_check.py

clean:
	rm -rf $(VENV) .bench build dist site

# torch first and by its exact version: see constraints.txt.
$(VENV)/ready: pyproject.toml constraints.txt
	@echo "Installing torch and the other packages into $(VENV): a few minutes without output, the first time."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e .
	touch $@
	@echo "Installed. To use the command spherefed in this terminal: . $(BIN)/activate"

$(VENV)/ready-dev: $(VENV)/ready
	@echo "Installing the packages of the tests and all extras into $(VENV): a few minutes without output, the first time."
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,docs,flower,mlflow,pretrained,ray,tensorboard]'
	touch $@
