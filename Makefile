# Everything a developer does, by name. `make` alone prints the list.
# Needs Python 3.11+ and make; the environment in .venv is made on first use and again when a lock changes.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
SEED ?= 1
STEPS ?= 10000
# Most tests wait for other processes much of the time, so more run at once than there are processors.
WORKERS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
export PYTHON
# Hundreds of processes import the same code: each would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test check check-typescript check-container audit sbom release fmt generate docs bench simulate chaos lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.run ## start the server (ARGS="--port 8000 ..." for its flags)
	$(BIN)/fairlane serve $(ARGS)

demo: $(VENV)/.run ## show fairness in the terminal and on a dashboard; nothing is kept (ARGS="--seconds 30")
	$(BIN)/fairlane demo $(ARGS)

# The core decides what runs, so every branch of it has a test. Asked for only when the whole suite
# ran and passed: a failing test is then the last thing on the screen, and so is an untested branch.
test: $(VENV)/.dev ## run the tests (ARGS="-k lease ..." for pytest; then without the coverage rule)
ifeq ($(strip $(ARGS)),)
	@scripts/find-chromium --install >/dev/null # for tests/browser; says what to do when it cannot
	$(BIN)/python -m pytest -n auto tests/unit tests/property --cov --cov-report=
	@echo "Coverage of fairlane.core, which must be complete:"
	@$(BIN)/python -m coverage report --fail-under=100
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore=tests/unit --ignore=tests/property
else
	$(BIN)/python -m pytest $(ARGS)
endif

check: $(VENV)/.dev ## format, lint, types, layers, known holes in dependencies
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/mypy --strict --ignore-missing-imports benchmarks # the peers live elsewhere
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory audit

check-typescript: $(VENV)/.dev ## generate TypeScript types from OpenAPI, compile and run examples/tasks.mts (needs npm)
	$(BIN)/python scripts/check_typescript.py

check-container: $(VENV)/.dev ## build the image and run it: it serves, drains, keeps its data (needs docker, or podman as root)
	$(BIN)/python scripts/try_container.py $(ARGS)

# Without a network nobody can be asked: then it says so, and only the floors are checked.
audit: $(VENV)/.dev ## look for known holes in what the locks pin
	@test -x $(AUDIT) || { $(MAKE) --no-print-directory $(VENV)-audit/bin/python && \
		$(VENV)-audit/bin/python $(PIP_INSTALL) --retries 1 --timeout 10 pip-audit; } || true
	$(BIN)/python scripts/dependencies.py audit $(AUDIT)

AUDIT := $(VENV)-audit/bin/pip-audit

sbom: $(VENV)/.dev ## write what a release is made of to dist/sbom.json (CycloneDX)
	$(BIN)/python scripts/dependencies.py sbom dist/sbom.json

release: $(VENV)/.dev ## make a release in dist/: wheel, sdist, SBOM, notes, checksums; uploads nothing
	$(BIN)/python scripts/release.py dist

fmt: $(VENV)/.dev ## format the code and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

generate: $(VENV)/.dev ## write what follows from the operations and the parser: client methods, reference tables
	$(BIN)/python scripts/generate.py
	$(BIN)/python scripts/cli_reference.py

docs: $(VENV)/.dev $(VENV)-docs/.docs ## render the documentation to build/site; a broken link fails
	$(BIN)/python scripts/stage_docs.py
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict

bench: $(VENV)/.dev $(if $(PEERS),$(VENV)-peers/.peers) ## measure (PEERS=1 also installs the other queues; ARGS=...)
	$(BIN)/python -m benchmarks $(if $(PEERS),--peers $(VENV)-peers/bin/python) $(ARGS)

simulate: $(VENV)/.dev ## run the real engine under faults (SEED=1 STEPS=10000)
	$(BIN)/python -m tests.simulation --seed $(SEED) --steps $(STEPS)

chaos: $(VENV)/.dev ## play the long scenarios on real processes under faults (SEED=1 ARGS="recovery --store sqlite")
	$(BIN)/python -m tests.chaos --seed $(SEED) $(ARGS)

# The locks name versions and hashes and never the place they came from.
lock: $(VENV)-lock/.uv ## pin the dependencies again (ARGS=--upgrade for newer versions)
	$(LOCK) pyproject.toml --all-extras --group dev -o requirements/dev.txt
	$(LOCK) pyproject.toml --all-extras --group build -c requirements/dev.txt -o requirements/runtime.txt
	$(LOCK) --group docs -c requirements/dev.txt -o requirements/docs.txt
	$(LOCK) requirements/peers.in -o requirements/peers.txt

LOCK = $(VENV)-lock/bin/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --no-annotate \
	--custom-compile-command "make lock" $(ARGS)

clean: ## remove everything that was made here
	rm -rf $(VENV) $(VENV)-peers $(VENV)-docs $(VENV)-lock $(VENV)-audit dist build .coverage .coverage.* \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# --- environments -------------------------------------------------------------------------------
# A lock names every package it needs, so pip must not resolve anything: older versions of pip pick
# the newest release for a requirement with an extra (coverage[toml]) and then refuse its hash.

$(VENV)/.run: requirements/runtime.txt pyproject.toml | $(BIN)/python
	$(BIN)/python $(PIP_INSTALL) --require-hashes --no-deps -r $<
	$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	$(BIN)/python $(PIP_INSTALL) --require-hashes --no-deps -r $<
	@touch $@

$(VENV)-peers/.peers: requirements/peers.txt | $(VENV)-peers/bin/python
	$(VENV)-peers/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r $<
	@mkdir -p $(VENV)-peers/npm && cp requirements/peers-npm/package*.json $(VENV)-peers/npm/
	@npm ci --prefix $(VENV)-peers/npm --ignore-scripts --no-audit --no-fund || \
		echo "npm could not install Restate's server: it will be left out"
	@touch $@

$(VENV)-docs/.docs: requirements/docs.txt | $(VENV)-docs/bin/python
	$(VENV)-docs/bin/python $(PIP_INSTALL) --require-hashes --no-deps -r $<
	@touch $@

$(VENV)-lock/.uv: | $(VENV)-lock/bin/python
	$(VENV)-lock/bin/python $(PIP_INSTALL) uv
	@touch $@

%/bin/python:
	@python=$$(scripts/find-python) && echo "Making $* with $$python" && "$$python" -m venv $*
