PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
# Most tests wait for servers and leases, so more of them fit than there are cores.
WORKERS ?= 4
DEMO_ARGS ?=

RUN = $(VENV)/bin/python -m
READY = $(VENV)/.ready

export NO_MKDOCS_2_WARNING = 1

.PHONY: demo test test-kube check bench docs soak coverage

demo: $(READY)
	@$(RUN) grelmicro demo $(DEMO_ARGS)

test: $(READY)
	@$(RUN) pytest -n $(WORKERS) $(PYTEST_ARGS)

# The Kubernetes tests again, with a real API server: KUBECONFIG's, or what tests/support/kube/build.sh has built.
test-kube: $(READY)
	@GREL_TEST_KUBE=1 $(RUN) pytest -n $(WORKERS) tests/kube $(wildcard tests/backends/test_kubernetes*.py) $(PYTEST_ARGS)

soak: $(READY)
	@$(RUN) pytest -m soak --timeout=3600 $(PYTEST_ARGS)

coverage: $(READY)
	@$(RUN) coverage run -m pytest $(PYTEST_ARGS)
	@$(RUN) coverage report --skip-covered --show-missing

check: $(READY)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(RUN) pyright --pythonpath $(VENV)/bin/python
	$(RUN) mkdocs build --quiet --strict --site-dir $(VENV)/site

docs: $(READY)
	$(RUN) mkdocs build --strict

bench: $(READY)
	@$(RUN) benchmarks

# All that the targets above need, from the package index alone.
$(READY): pyproject.toml requirements-dev.txt
	@echo "preparing $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(RUN) pip install -qq --disable-pip-version-check \
		-r requirements-dev.txt -e .
	@touch $@
