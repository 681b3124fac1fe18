# `make demo` and `make test` need no other preparation: each installs what it uses into .venv, once.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# the first interpreter that is new enough; PYTHON=... chooses another
PYTHON ?= $(shell for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$candidate" && break; done)
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# the inputs of the compiled modules: after a change of these, the next target installs the modules again
BUILD_INPUTS := pyproject.toml setup.cfg setup.py $(sort $(shell find gantrymq kernel plugins -name '*.pyx' -o -name '*.px[di]'))
MODULES := $(sort $(shell find gantrymq kernel plugins -name '*.py'))
QUICK := not slow and not interop and not spark and not crash
# What runs with the plain twins as well: the folders of the broker, and elsewhere what opts in (tests/conftest.py).
# Foreign software is the same to both twins where other tests show that they write the same bytes.
PLAIN := not once and not spark
PLAIN_TESTS := $(addprefix tests/,broker crash fuzz hostile kernel plugins) \
	$(sort $(shell grep -rl --include='*.py' 'pytest\.mark\.twins' tests/client tests/interop tests/nameserver tests/remoting tests/testing))
# On two processors: most of the longest tests wait for the disk, for other processes and for RocketMQ's intervals.
WORKERS ?= 6
TWIN_WORKERS ?= 3
# The port ranges of runs of pytest at the same time must not overlap.
PORTS := 20000-27999
TWIN_PORTS := 28000-31999
# A worker takes a file as a whole: what a file starts (a JVM, a broker) is started once. Long files go first.
# What fails everywhere has one cause, and an hour more does not tell it better.
FILES := --dist loadfile --no-loadscope-reorder --maxfail 100
PARALLEL := --numprocesses $(WORKERS) $(FILES)
TWIN_PARALLEL := --numprocesses $(TWIN_WORKERS) $(FILES)
FILE ?=
# Tests start hundreds of programs of ours. Compiling each module again would take a third of a start.
test check soak repeat machines asan ha-test export-kills: export PYTHONDONTWRITEBYTECODE :=
test check soak repeat machines asan ha-test export-kills: export PYTHONPYCACHEPREFIX := $(CURDIR)/build/pycache

.PHONY: help install demo test compiled twins plain prepared collected check soak repeat machines foreign fuzz ha-test export-kills asan lint format bench bench-all bench-delays bench-soak docs release clean

help:
	@echo 'make demo [FILE=path]  run the whole pipeline end to end: produce, consume, restart, export to Parquet'
	@echo 'make test              every check and test (ruff, mypy, pytest with foreign clients and Spark)'
	@echo 'make check             lint and the quick part of the tests'
	@echo 'make soak              all variants of the tests of which `make test` runs a slice, and 100 kills'
	@echo 'make machines          2,000 examples for each state machine of a store and its plugins (EXAMPLES=)'
	@echo 'make repeat            the tests several times beside a busy processor, to find flaky ones [RUNS=10 TESTS="tests/broker tests/crash"]'
	@echo '                       [STALL=0.5 LATE=0.3], with processes paused and threads delayed at random'
	@echo 'make fuzz              a million mutated inputs for each parser, then an hour of coverage-guided ones (needs clang)'
	@echo 'make ha-test           kills, pauses, partitions and promotions of real clusters: 500 rounds, up to 4 hours (Linux)'
	@echo '                       [GANTRYMQ_HA_ROUNDS=500 GANTRYMQ_HA_SECONDS=14400 GANTRYMQ_HA_SEED=number GANTRYMQ_HA_PROMOTION=watch]'
	@echo 'make export-kills      kill -9 of two processes that export to an object store: 1,000 times, 10 to 20 minutes [KILLS=1000]'
	@echo 'make asan              the compiled loops under address and undefined-behavior sanitizers: twins, fuzzers, attacks'
	@echo 'make install           the command gantrymq in .venv, with Spark'
	@echo 'make lint | format     ruff and mypy | let ruff rewrite'
	@echo 'make bench             GantryMQ beside the Java broker, up to 20 minutes [SHORT=1 KAFKA=1 NATS=1 GROUP=budget,idle'
	@echo '                       ONLY=text SECONDS=3 ROUNDS=3 WARM=10 GROWTH=1,10,20 JSON=file FILL=1];'
	@echo '                       GROUP=indexing KEYED=1000000 the index; GROUP=nameserver,replication,floods,client,hooks,processes,security,spark;'
	@echo '                       bench-all: all of it, up to 20 GiB; bench-delays: how late delayed messages come'
	@echo 'make bench-soak        an hour at 70 % of the limit: memory and pauses [MINUTES=60 SHARE=0.7 FLUSH=sync JSON=file]'
	@echo 'make docs              the documentation as HTML in build/docs'
	@echo 'make release           sdist, wheel, SBOM and checksums in dist [WHEELS=folder of cibuildwheel, KEY=of GnuPG]'
	@echo 'make clean             remove what the targets above made'

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'GantryMQ needs Python 3.11 or newer; none was found. Install it, or use make PYTHON=/path/to/python3' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo '$(PYTHON) is older than Python 3.11' >&2; exit 1; }
	@echo "Creating .venv with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo 'The module venv is missing: on Debian and Ubuntu, apt install python3-venv' >&2; exit 1; }

$(VENV)/.base: $(BUILD_INPUTS) | $(BIN)/python
	@echo 'Installing GantryMQ and Spark (once, some minutes)'
	@$(PIP) install -e '.[spark,metrics,compression]'
	@touch $@

$(VENV)/.test: $(BUILD_INPUTS) | $(BIN)/python
	@echo 'Installing GantryMQ, Spark and the test tools (once, some minutes)'
	@$(PIP) install -e '.[spark,delta,iceberg,metrics,dashboard,backup,compression,test,bench,docs]'
	@touch $(VENV)/.base $@

$(VENV)/.docs: $(BUILD_INPUTS) | $(BIN)/python
	@$(PIP) install -e '.[docs]'
	@touch $@

install: $(VENV)/.base
	@echo 'Installed. Activate it (. $(BIN)/activate), then: gantrymq --help'

demo: $(VENV)/.base
	@$(BIN)/python -m gantrymq.cli.demo $(if $(FILE),--file '$(FILE)')

# The plain twin of the compiled loops is the reference, and what a machine without a compiler has: it passes the same
# tests, but for those that would be the same once more, with fewer kills. These and the sanitizers run beside the tests of
# the compiled loops, whose longest ones leave a fifth of the processors idle; their output appears when they have ended.
test: prepared
	@$(MAKE) --no-print-directory --jobs 2 compiled twins

compiled:
	GANTRYMQ_TEST_PORTS=$(PORTS) $(BIN)/python -m pytest $(PARALLEL)

twins:
	@mkdir -p build
	@export GANTRYMQ_TEST_PORTS=$(TWIN_PORTS); { $(MAKE) --no-print-directory plain && $(MAKE) --no-print-directory asan; } >build/twins.log 2>&1; \
		status=$$?; cat build/twins.log; exit $$status

plain:
	GANTRYMQ_PURE=1 GANTRYMQ_KILL_ROUNDS=$${GANTRYMQ_KILL_ROUNDS:-8} $(BIN)/python -m pytest $(TWIN_PARALLEL) -m '$(PLAIN)' $(PLAIN_TESTS)

# Workers that begin at the same time would each compile every module of tests that has no compiled file yet.
prepared: $(VENV)/.test
	@$(MAKE) --no-print-directory --output-sync=target --jobs 3 lint foreign collected

collected: $(VENV)/.test
	@mkdir -p build
	@$(BIN)/python -m pytest --collect-only -qq >build/collected.log || { cat build/collected.log; exit 1; }

# Maven, Go and npm fetch and build once; within a test that would count against its time limit.
foreign: $(VENV)/.test
	@echo 'Preparing RocketMQ and foreign clients (the first time some minutes)'
	@$(BIN)/python tests/interop/prepare.py

check: lint
	$(BIN)/python -m pytest $(PARALLEL) -m '$(QUICK)'

# `make test` has a slice of these, another one each day (tests/support/slices.py). Failures are not tried again.
soak: export GANTRYMQ_SOAK := true
soak: export GANTRYMQ_STRICT := true
soak: foreign
	$(BIN)/python -m pytest $(PARALLEL) -m soak
	$(BIN)/python -m pytest $(PARALLEL) tests/crash/test_kill.py tests/crash/test_plugin_state_kill.py \
		tests/crash/test_dedup_kill.py tests/broker/test_fuzz.py
	@$(MAKE) --no-print-directory machines

KILLS ?= 1000
export-kills: $(VENV)/.test
	GANTRYMQ_EXPORT_KILLS=$(KILLS) $(BIN)/python -m pytest -s \
		tests/spark/test_object_exports.py::test_writers_that_are_killed_publish_each_message_once

# The state machines of `make test` (a store, delays, timed messages, transactions, index, offsets) with more examples.
EXAMPLES ?= 2000
machines: $(VENV)/.test
	GANTRYMQ_MACHINE_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest --numprocesses 2 --timeout 0 \
		$$(grep -rl --include='*.py' 'from support.machines import' tests)

# Finds flaky tests: each run has another slice, a failure is not tried again, and a log of each run stays in build/repeat.
# STALL=0.5 pauses processes of the tests for up to half a second, LATE=0.3 lets threads begin up to 0.3 s late.
RUNS ?= 10
STALL ?= 0
LATE ?= 0
TESTS ?= tests
repeat: foreign
	@$(BIN)/python tests/support/repeat.py --runs $(RUNS) --stall $(STALL) --late-threads $(LATE) --log build/repeat -- \
		$(PARALLEL) $(TESTS)

# A million mutated inputs for each parser (`make test` has ten thousand), then as many as coverage finds in an hour, with
# the compiled loops built for it. Their corpora stay in build/corpora, where the next run goes on.
GUIDED := build/guided
$(GUIDED)/.built: $(BUILD_INPUTS) $(MODULES) | $(VENV)/.test
	@command -v clang >/dev/null || { echo 'make fuzz needs clang: on Debian and Ubuntu, apt install clang' >&2; exit 1; }
	@echo 'Building the compiled loops with coverage and the address sanitizer (some minutes)'
	@mkdir -p $(GUIDED)
	@CC=clang LDSHARED='clang -shared' CFLAGS='-O1 -g -fno-omit-frame-pointer -fsanitize=address,fuzzer-no-link' $(BIN)/python \
		setup.py -q build --build-base build/guided-objects --build-lib $(GUIDED) >build/guided.log 2>&1 || { cat build/guided.log; exit 1; }
	@touch $@

fuzz: $(GUIDED)/.built
	GANTRYMQ_FUZZ_INPUTS=$${GANTRYMQ_FUZZ_INPUTS:-1000000} $(BIN)/python -m pytest tests/fuzz/test_parsers.py --timeout 7200
	LD_PRELOAD="$$($(BIN)/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so" PYTHONMALLOC=malloc \
		ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=$(GUIDED):tests:tests/fuzz $(BIN)/python -P tests/fuzz/guided.py --all build/corpora \
		$${GANTRYMQ_FUZZ_SECONDS:-3600}

# `make test` has a slice of it, of a minute. One round takes some seconds; the figures come after each group of ten.
ha-test: $(VENV)/.test
	GANTRYMQ_HA_ROUNDS=$${GANTRYMQ_HA_ROUNDS:-500} GANTRYMQ_HA_SECONDS=$${GANTRYMQ_HA_SECONDS:-14400} GANTRYMQ_HA_PROMOTION=$${GANTRYMQ_HA_PROMOTION:-watch} \
		$(BIN)/python -m pytest -s tests/ha

# The extensions once more, built with sanitizers into a folder of their own, and what feeds them foreign bytes.
# Python's own allocator would hide reads past an object's end. The nameserver has no compiled loops, which loops are
# chosen is no matter of bytes, and neither are full disks and deleted topics. Not optimized: the compiler takes a fifth of
# the time, the tests a few percent more.
SANITIZED := build/sanitized
SANITIZED_TESTS := tests/kernel/fast $(sort $(wildcard tests/plugins/*/test_twins*.py)) \
	tests/broker/test_fuzz.py tests/fuzz/test_parsers.py tests/hostile tests/spark/test_columns.py tests/spark/test_rows.py \
	tests/spark/test_avro_columns.py tests/cli/test_bench_twins.py \
	--ignore tests/hostile/test_nameserver_flood.py --ignore tests/hostile/test_strangers.py \
	--ignore tests/kernel/fast/test_kind.py --ignore tests/hostile/test_tables_and_log.py \
	--deselect tests/broker/test_fuzz.py::test_the_nameserver_answers_requests_with_any_header_and_body \
	--deselect tests/hostile/test_processor_time.py::test_a_large_request_is_processed_in_many_turns
$(SANITIZED)/.built: $(BUILD_INPUTS) $(MODULES) | $(VENV)/.test
	@echo 'Building the compiled loops with sanitizers (some minutes)'
	@mkdir -p $(SANITIZED)
	@CFLAGS='-O0 -g -fno-omit-frame-pointer -fsanitize=address,undefined' $(BIN)/python setup.py -q build \
		--build-base build/sanitized-objects --build-lib $(SANITIZED) >build/sanitized.log 2>&1 || { cat build/sanitized.log; exit 1; }
	@touch $@

asan: $(SANITIZED)/.built
	@test -s "$$($${CC:-gcc} -print-file-name=libasan.so)" || { echo 'the C compiler has no address sanitizer; install gcc' >&2; exit 1; }
	LD_PRELOAD="$$($${CC:-gcc} -print-file-name=libasan.so) $$($${CC:-gcc} -print-file-name=libubsan.so)" PYTHONPATH=$(SANITIZED) \
		PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
		UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 GANTRYMQ_FUZZ_INPUTS=$${GANTRYMQ_FUZZ_INPUTS:-2000} \
		PYTHONSAFEPATH=1 $(BIN)/python -m pytest $(TWIN_PARALLEL) $(SANITIZED_TESTS) --timeout 900 -p no:cacheprovider

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy examples/plugins/stamp/gantrymq_stamp.py

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.test
	$(BIN)/python benchmarks $(if $(SECONDS),--seconds '$(SECONDS)') $(if $(ROUNDS),--rounds '$(ROUNDS)') \
		$(if $(WARM),--warm '$(WARM)') $(if $(ONLY),--only '$(ONLY)') $(if $(GROUP),--groups '$(GROUP)') \
		$(if $(GROWTH),--growth '$(GROWTH)') $(if $(KEYED),--keyed '$(KEYED)') $(if $(JSON),--json '$(JSON)') $(if $(KAFKA),--kafka) $(if $(NATS),--nats) \
		$(if $(SHORT),--quick) $(if $(FILL),--fill)

bench-all:
	@$(MAKE) --no-print-directory bench GROUP=all

bench-soak: $(VENV)/.test
	$(BIN)/python benchmarks/soak.py $(if $(MINUTES),--minutes '$(MINUTES)') $(if $(SHARE),--share '$(SHARE)') \
		$(if $(FLUSH),--flush '$(FLUSH)') $(if $(JSON),--json '$(JSON)')

bench-delays: $(VENV)/.test
	$(BIN)/python benchmarks/delays.py $(if $(PENDING),--pending '$(PENDING)') $(if $(BURST),--burst '$(BURST)') \
		$(if $(ALONE),--alone)

release: $(VENV)/.test
	$(BIN)/python packaging/release.py dist $(if $(WHEELS),--wheels '$(WHEELS)') $(if $(KEY),--sign '$(KEY)')

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/docs
	@echo 'Built: build/docs/index.html'

clean:
	rm -rf $(VENV) build dist gantrymq-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
