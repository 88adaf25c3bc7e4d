# Every command of the project. `make` alone lists them.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/pytest
# one more than two cores: tests wait for servers and for kills more than they compute
WORKERS ?= 3
# SEED=n with any command of tests: what a failed run drew is drawn again
ifdef SEED
export CDC_TEST_SEED := $(SEED)
endif

help: ## List the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/ready: requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; $(PYTHON) is older. Name another one: make PYTHON=python3.12 ..."; exit 3; }
	@command -v java >/dev/null || test -x "$$JAVA_HOME/bin/java" || { \
	  echo "Java 17 or newer is needed and was not found. On Debian or Ubuntu: apt-get install openjdk-17-jre-headless"; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(VENV)/ready ## Make the environment in .venv, with what requirements-dev.lock names

demo: setup ## A private MySQL, a shop that is written to, a job that is killed and resumed, and the proof
	$(BIN)/cdc demo

demo-ha: setup ## Two hosts, one of which is killed: the other one takes over, and the proof
	$(BIN)/cdc demo --hosts --folder demo-ha

demo-kafka: setup ## The shop through a real Canal into a real Kafka, a job that is killed, and the proof (READ=driver)
	$(BIN)/python -m tests.support.kafka_demo $(if $(READ),--read $(READ))

# what each of several workers would make for itself, side by side: the compiled kernels, the archive of the JVM's classes
warm: setup
	@$(BIN)/python -m spark.class_archive_builder & made=$$!; $(BIN)/python -m tests.recovery.matrix.warm && wait $$made

check: warm ## The quick part: ruff, mypy, import-linter, unit tests
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) tests/unit -n $(WORKERS)

# Files in this order, the longest ones first: else one worker works on, alone. They are not reordered by their number of
# tests, since the longest have few.
FOLDERS := recovery soak integration spark contract
test: check ## Everything with a bound, on real servers (WORKERS=n at once); what continuous integration runs; SEED=n repeats its draws
	$(PYTEST) $(FOLDERS:%=tests/%) -m "not stress and not matrix and not readers" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-all: check ## The same with all cases of all tests, of which `make test` draws some
	$(PYTEST) $(FOLDERS:%=tests/%) --all-cases -m "not stress and not matrix and not readers" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

integration: setup ## Tests against real servers alone
	$(PYTEST) tests/integration --all-cases

READERS := build/readers
test-readers: setup ## DuckDB and Spark read Delta tables of this program, with packages in build/readers and jars from Maven
	test -x $(READERS)/bin/python || $(PYTHON) -m venv $(READERS)
	$(READERS)/bin/pip install --quiet --disable-pip-version-check -r tests/integration/readers/requirements.txt
	CDC_TEST_READERS=$(READERS)/bin/python $(PYTEST) tests/integration/test_delta_readers.py

canal: setup ## Everything about Canal, against a real Canal server (Maven fetches it)
	$(PYTEST) tests --all-cases -m "canal and not stress and not matrix"

recovery: setup ## The whole fault matrix (every fault point, fault, receiver and sink), restarts; SEED=n repeats its draws
	$(PYTEST) tests/recovery --all-cases -m "not stress"

kills: setup ## 300 kills (KILLS=n, SEED=n) of a running job, compared row by row after every tenth; POWER=1: half cut the power; CHANGES=1: columns change
	$(BIN)/python -m tests.recovery.crash $(if $(KILLS),--kills $(KILLS)) $(if $(POWER),--power) $(if $(CHANGES),--changes)

kills-kafka: setup ## 100 kills (KILLS=n, SEED=n) of a job with a Kafka source, compared row by row after every tenth
	$(BIN)/python -m tests.recovery.kafka_crash $(if $(KILLS),--kills $(KILLS)) $(if $(FORMAT),--format $(FORMAT)) $(if $(READ),--read $(READ))

kills-hosts: warm ## 100 random faults (KILLS=n or MINUTES=n, SEED=n; EVERY=60: a killed host a minute; REBALANCE=s) of 20 jobs (JOBS=n) on 3 hosts (HOSTS=n), compared after every tenth
	$(BIN)/python -m tests.recovery.hosts_crash $(if $(HOSTS),--hosts $(HOSTS)) $(if $(JOBS),--jobs $(JOBS)) $(if $(KILLS),--kills $(KILLS)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(EVERY),--every $(EVERY)) $(if $(REBALANCE),--rebalance $(REBALANCE))

stress: setup ## Walks from every source to every sink under kills (SECONDS=n of each, SEED=n), and their summary
	$(BIN)/python -m tests.soak $(if $(SECONDS),--seconds $(SECONDS))

stress-long: setup ## Hours: the state machine for millions of steps, a hundred kills of jobs into each cluster sink
	$(PYTEST) tests -m stress

verify-runs: setup ## 100 runs (RUNS=n, SEED=n, SINKS="delta doris starrocks") of `cdc verify` under load: every fault found and repaired, no false alarm; KILLS=n kills during each; ROWS=10000000 FAULTS=1: one in ten million
	$(BIN)/python -m tests.soak.verify_runs $(SINKS) $(if $(RUNS),--runs $(RUNS)) $(if $(ROWS),--rows $(ROWS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(KILLS),--kills $(KILLS))

soak: setup ## Two hours (MINUTES=n, SEED=n) of mixed writes, a kill a minute: any difference, any leak; writes a plot
	$(BIN)/python -m tests.soak.soak $(if $(MINUTES),--minutes $(MINUTES))

BENCH = $(BIN)/python -m benchmarks $(if $(RUNS),--runs $(RUNS)) $(if $(ROWS),--rows $(ROWS)) $(if $(AGAINST),--against $(AGAINST))
bench: setup ## Every benchmark (ONLY="name ...", RUNS=n, ROWS=n), with checks and baselines; AGAINST=folder compares with another checkout
	$(BENCH) $(ONLY)

profile: setup ## Print the functions that use the CPU while a job loads a backlog (py-spy, JFR)
	$(BENCH) end_to_end.catch_up --receiver binlog --sink delta --profile $(if $(RUNS),,--runs 1)

bench-canal: setup ## Benchmarks of the Canal client alone, and of jobs on a real Canal server
	$(BENCH) decode.canal_client
	$(BENCH) end_to_end --receiver canal

bench-peers: setup ## The Java connector, Debezium's engine and mysql-replication on the same binlog (needs Maven)
	$(BENCH) peers

bench-decode: setup ## Benchmarks of the decoder alone, next to mysql-replication
	$(BENCH) decode.binlog decode.long_stream

fuzz: setup ## Damaged binlogs, documents and text through the decoder (COUNT=n, SEED=n); ten million documents at once
	$(BIN)/python -m tests.fuzz --what json --count $(or $(COUNT),10000000) --seed $(or $(SEED),0)
	$(BIN)/python -m tests.fuzz --what text --count $(or $(COUNT),1000000) --seed $(or $(SEED),0)
	$(BIN)/python -m tests.fuzz --what stream --count $(or $(COUNT),200000) --seed $(or $(SEED),0)
	$(BIN)/python -m tests.fuzz --what stream --count 2000 --seed $(or $(SEED),0) --boundscheck
	$(BIN)/python -m tests.fuzz --what json --count 100000 --seed $(or $(SEED),0) --boundscheck

docs: setup ## Build the documentation site into build/site; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

reference: setup ## Generate the reference pages in docs/reference from the code
	$(BIN)/python -m tests.support.reference

screens: setup ## Record the screens in docs/images: the terminal during the demonstration, and the web page in a browser
	$(BIN)/python -m tests.support.screens build/screens
	CDC_TEST_SCREENS=docs/images $(PYTEST) tests/integration/test_page.py -k "plots and snapshot"

golden: setup ## Record the golden binlogs in tests/data again, from both servers
	$(BIN)/python -m tests.data.record

protocol: setup ## Generate cdc/sources/canal/protocol_pb2.py from protocol.proto
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. cdc/sources/canal/protocol.proto

LOCK := uv pip compile pyproject.toml --generate-hashes --python-version 3.11 --python-platform linux --no-header --no-annotate --quiet
lock: ## Write the lock files again: requirements.lock to run, requirements-dev.lock to develop
	$(LOCK) --group dev --upgrade -o requirements-dev.lock
	$(LOCK) --constraint requirements-dev.lock -o requirements.lock

clean: ## Remove what the other commands made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache demo demo-ha demo-kafka

.PHONY: help setup demo demo-ha demo-kafka warm check test test-all integration canal recovery test-readers kills kills-kafka kills-hosts stress stress-long verify-runs soak bench profile bench-canal bench-decode bench-peers fuzz docs reference screens golden protocol lock clean
