# `make` prints the targets. Everything happens in .venv; nothing else on the machine is touched,
# except that `setup` and `test`, run as root on Debian, install the packages in .ci/system.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
S ?= postgres
T ?= 10m
V ?= 15,18
DRAW ?= 1200
CHECK_DRAW ?= 10
K ?= 1000
SEED ?= 1
SOURCE ?= postgres
TARGET ?= postgres
SERVER_TESTS_postgres := tests/conformance tests/servers --ignore-glob "*/test_mysql_*.py"
SERVER_TESTS_mysql := tests/conformance $(sort $(wildcard tests/servers/test_mysql_*.py))
CHECK_TESTS_1 := tests/property $(sort $(wildcard tests/unit/test_[a-m]*.py))
CHECK_TESTS_2 := $(filter-out $(CHECK_TESTS_1),$(sort $(wildcard tests/unit/test_*.py)))
FAULTS_postgres := not mysql and not mariadb
FAULTS_mysql := mysql or mariadb
KERNELS := $(shell find src -name '*.p[yx][xdi]')
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Each worker and each program under test would compile every module again where that is switched off.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup system demo test next-draw test-failed test-all test-times check check-static test-servers test-faults soak certify-sqlserver certify-oracle mutants fuzz bench docs dist screenshots changelog drawings error-page type-page lock clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The locked dependencies of running and of the demo, and the package with its kernel.
$(VENV)/.runtime: requirements-build.lock requirements.lock
	@test -x $(BIN)/python || $(PYTHON) .ci/python_is_new_enough.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing locked dependencies into $(VENV) (the first time takes a few minutes)"
	@$(PIP) install --require-hashes -r requirements-build.lock
	@$(PIP) install --require-hashes --no-build-isolation -r requirements.lock
	@touch $@

$(VENV)/.package: $(VENV)/.runtime pyproject.toml setup.py $(KERNELS)
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.package
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

system:
	@bash .ci/system

setup: system $(VENV)/.dev ## make .venv from the locks, build the kernel, get what the tests need

demo: $(VENV)/.package ## copy a busy shop between two embedded servers, keep it in step, compare
	@$(BIN)/penstock demo

TEST := PENSTOCK_TEST_POSTGRES=$(V) $(PYTEST) -n $(JOBS) --dist worksteal

test: setup ## all cheap tests, and a draw of the expensive ones, another one at every commit (what CI runs)
	$(TEST) -m "not long" --draw $(DRAW) --times build/times.jsonl

test-all: setup ## every test on every server that it could run with, faults and long ones too: hours
	$(TEST)

test-times: setup ## every test that `make test` draws from, once; where the time goes; what they take, for the draw
	$(TEST) -m "not long" --draw inf --times build/times.jsonl --starts || true
	$(BIN)/python tests/plugins/times.py build/times.jsonl --costs tests/data/costs.json

next-draw: ## after a landing: the next `make test` runs the next part of the expensive tests; their costs by the last one
	@expr $$(cat tests/data/landing) + 1 > tests/data/landing; cat tests/data/landing
	@test ! -f build/times.jsonl || $(BIN)/python tests/plugins/times.py build/times.jsonl --costs tests/data/costs.json

test-failed: setup ## the tests that failed in the last run, one at a time
	@ended=0; for failed in $(wildcard .pytest_cache/v/cache/lastfailed .pytest_cache/check-*/v/cache/lastfailed); do \
	PENSTOCK_TEST_POSTGRES=$(V) $(PYTEST) -o cache_dir=$${failed%/v/*} --last-failed --last-failed-no-failures none \
	-p no:randomly || test $$? -eq 5 || ended=1; done; exit $$ended

check: $(VENV)/.dev ## format, lint, types, layers, cheap unit and property tests and a draw of the others
	@$(MAKE) --no-print-directory --jobs 3 --output-sync check-static check-tests-1 check-tests-2

check-static:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests are so short that pytest-xdist, whose workers collect all of them and send six messages
# for each, would take as long as they do. Each of the two processes keeps its failures for
# `make test-failed`.
check-tests-%:
	PENSTOCK_HYPOTHESIS=check $(PYTEST) -o cache_dir=.pytest_cache/check-$* -q -m "not long" --draw $(CHECK_DRAW) $(CHECK_TESTS_$*)

test-servers: setup ## each test on every server of kind S=postgres (of versions V=15,18) or S=mysql
	@test "$(S)" = postgres -o "$(S)" = mysql || { echo "S=postgres or S=mysql"; exit 1; }
	PENSTOCK_TEST_POSTGRES=$(V) $(PYTEST) -n $(JOBS) --dist worksteal $(SERVER_TESTS_$(S))

test-faults: setup ## processes killed, connections cut, disks full, on servers of kind S: ten to fifteen minutes, S=mysql 30
	@test "$(S)" = postgres -o "$(S)" = mysql || { echo "S=postgres or S=mysql"; exit 1; }
	$(PYTEST) -n $(JOBS) --dist worksteal tests/faults --ignore tests/faults/test_demo.py -k "$(FAULTS_$(S))"

soak: setup ## property tests at length, then K=1000 kills, SEED=1, SOURCE=, TARGET=postgres; planted mistakes beside them: hours
	@mkdir -p build
	@$(BIN)/python tests/mutate_protections.py > build/mutants.txt 2>&1 & planted=$$!; ended=0; \
	PENSTOCK_HYPOTHESIS=soak $(PYTEST) -n $(JOBS) --dist worksteal --timeout 7200 tests/property \
	&& $(BIN)/python tests/soak.py --kills $(K) --seed $(SEED) --source $(SOURCE) --target $(TARGET) \
	|| ended=1; \
	wait $$planted || ended=1; cat build/mutants.txt; exit $$ended

certify-sqlserver: setup ## compare a SQL Server of yours with what penstock assumes, DSN=sqlserver://...: some ten minutes
	@test -n "$(DSN)" || { echo "DSN=sqlserver://user:password@host:1433/master"; exit 2; }
	@PYTHONPATH=tests $(BIN)/python -m certify_sqlserver "$(DSN)"

certify-oracle: setup ## compare an Oracle database of yours with what penstock assumes, DSN=oracle://...
	@test -n "$(DSN)" || { echo "DSN=oracle://user:password@host:1521/service?pdb=NAME"; exit 2; }
	@PYTHONPATH=tests $(BIN)/python -m certify_oracle "$(DSN)"

mutants: setup ## planted mistakes, one at a time: each has to be found by a test; N= words of their names
	$(BIN)/python tests/mutate_protections.py $(N)

fuzz: setup ## the compiled kernel against its plain twin on broken input, for T=10m
	bash .ci/fuzz $(T)

bench: setup ## all benchmarks: JSON lines and a table
	$(BIN)/python -m bench

docs: $(VENV)/.dev ## the documentation as HTML, into build/docs
	$(BIN)/sphinx-build --quiet --fail-on-warning -b html docs build/docs

dist: $(VENV)/.dev ## sdist and wheels of a release into dist/, x86-64 and aarch64, for each Python that is found: some ten minutes
	@$(BIN)/python .ci/dist.py

screenshots: setup ## the pictures of the web interface, in a real browser, and of the terminal
	$(BIN)/python tests/shoot_web.py

changelog: $(VENV)/.dev ## print the entry of CHANGELOG.md that the files in changelog.d make
	$(BIN)/towncrier build --draft

drawings: ## draw the pictures of README.md and ARCHITECTURE.md
	$(BIN)/python .ci/drawings.py

error-page: ## write docs/errors.md from the error classes, and the tables of docs/troubleshooting.md
	$(BIN)/python .ci/error_page.py
	$(BIN)/python .ci/trouble_page.py

type-page: ## write docs/types.md from the table of types
	$(BIN)/python .ci/type_page.py

lock: ## write the locks again (needs a .venv with pip-tools)
	bash .ci/lock

clean: ## remove what building and testing leave behind, but not .venv
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
