# Every target sets up what it needs first: the virtual environment, the locked packages, Kafka's
# jars. make PYTHON=... names another Python than python3.
.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-lines check fix docs bench dist lock clean
PYTHON ?= python3
# Where bytecode is not kept, each process compiles what it imports: the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE
SET_UP := @$(PYTHON) scripts/bootstrap.py
BIN := .venv/bin
# Most tests wait for servers: more processes than cores. The tests of one file are in one of them,
# because they share servers; files in the order of tests/schedule.py, the longest first, and those
# that share a Spark session in one process.
PYTEST := $(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder
# With AGAIN=1: what failed in a run that came to its end, once more and by itself.
once_more = $(if $(AGAIN),|| { [ $$? = 1 ] && echo "== once more what failed" && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(1); })
BENCHMARKS ?= passthrough spark
UPGRADE ?=
ONLY_SLOW ?=
SLOW_SHARE ?= 1
SESSION_TIMEOUT ?=
AGAIN ?=
LINES ?=

help: ## show these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: ## run the main job on real data: Kafka, Spark, Delta, with a daemon killed in between
	$(SET_UP) run
	@$(BIN)/python -m examples.demo

test: ## run the tests: without servers, against real servers, and with faults
	$(SET_UP) test
	@$(PYTEST) -m "not slow" $(call once_more,-m "not slow")

test-all: ## run the tests that take long as well (ONLY_SLOW, SLOW_SHARE, SESSION_TIMEOUT, AGAIN: CONTRIBUTING.md)
	$(SET_UP) test-all
	@$(PYTEST) --slow-share $(SLOW_SHARE) $(if $(ONLY_SLOW),-m slow) $(if $(SESSION_TIMEOUT),--session-timeout $(SESSION_TIMEOUT)) \
	$(call once_more,$(if $(ONLY_SLOW),-m slow))

test-lines: ## run a ring of tests on each line of Spark, each Python and each broker (LINES="spark-4.3 kafka-3.9")
	$(SET_UP) test
	@$(BIN)/python scripts/lines.py $(LINES)

check: ## check style, types and layers
	$(SET_UP) check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: ## fix what the checkers can fix
	$(SET_UP) check
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: ## build the documentation as a site in site/; a warning is an error
	$(SET_UP) docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: ## run the benchmarks named in BENCHMARKS, one after the other
	$(SET_UP) bench
	@for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks $$name --json || exit 1; done

dist: ## make the wheels of all platforms, one without compiled parts and an sdist in dist/
	$(SET_UP) dist
	@$(BIN)/python scripts/dist.py

lock: ## write the lock files again after a change in pyproject.toml (UPGRADE=--upgrade: newest)
	$(SET_UP) check
	$(BIN)/python scripts/lock.py $(UPGRADE)

clean: ## remove the environment and everything that tools left; the cache of jars stays
	rm -rf .venv .lines .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .headrace
	rm -rf dist man site spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
