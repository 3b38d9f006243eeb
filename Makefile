# make bot       creates the environment, starts the simulated providers and the voice bot, prints the address
# make test      creates the environment and runs lint, types and the fast tests
# make test-all  the other tests: sockets, WebRTC, a browser, Prometheus, Redis, long simulations
#
# All are safe to repeat; an environment is made again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-dev
BOT_STAMP := $(VENV)/.installed-demo
DOCS_VENV ?= .venv-docs
NEXT_VENV ?= .venv-next
DOCS_STAMP := $(DOCS_VENV)/.installed-docs

.DEFAULT_GOAL := help
.PHONY: help env bot test test-all test-next release docs lint types unit explore format fixtures pictures report bench benchmarks drill compare hello top clean
.PHONY: vllm vllm-env test-vllm

# vLLM's own environment and its models: gigabytes, so they are kept outside of this folder.
VLLM_HOME ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pipecat-hedge/vllm
export VLLM_HOME

# pip compiles nothing (scripts/make_env.sh): where Python may not either, as in many images, each start takes twice as long.
export PYTHONDONTWRITEBYTECODE =

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(STAMP) ## create the environment

$(STAMP): pyproject.toml constraints.txt scripts/make_env.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/make_env.sh dev
	@touch $@ $(BOT_STAMP)

$(BOT_STAMP): pyproject.toml constraints.txt scripts/make_env.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/make_env.sh demo
	@touch $@

bot: $(BOT_STAMP) ## start the simulated providers and the example voice bot (http://127.0.0.1:7860)
	@$(BIN)/python -m examples.voice_bot $(if $(PORT),--port $(PORT)) $(ARGS)

test: lint types unit ## run lint, types and the fast tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m "not live and not realtime and not slow" $(ARGS)

test-all: $(STAMP) ## run the tests that make test leaves out
	@sh scripts/system_packages.sh
	@sh scripts/run_tests.sh $(BIN)/python $(ARGS)

test-next: ## run the fast tests against the newest Pipecat on the index, in .venv-next
	@PYTHON="$(PYTHON)" VENV="$(NEXT_VENV)" sh scripts/test_next.sh $(ARGS)

# The site's tools alone: the pages are read, not imported.
$(DOCS_STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(DOCS_VENV)
	@$(PYTHON) -c 'import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*extras["docs"], sep="\n")' >$(DOCS_VENV)/requirements.txt
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r $(DOCS_VENV)/requirements.txt
	@touch $@

docs: $(DOCS_STAMP) ## build the documentation's site into out/docs; a dead link fails
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "out/docs/index.html"

release: test docs ## build and try what is to be published, and say what is left to do; uploads nothing
	@$(BIN)/python -m scripts.release

explore: $(STAMP) ## look for schedules and texts that break the policies, with new examples each time
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest --timeout 1800 tests/race tests/policy tests/providers $(ARGS)

format: $(STAMP) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fixtures: $(STAMP) ## make the audio fixtures again (needs espeak-ng and flite)
	$(BIN)/python scripts/make_fixtures.py

pictures: $(STAMP) ## take pictures of the bot's page (needs Chromium)
	$(BIN)/python -m scripts.page_screenshots

report: $(STAMP) ## make an example turn log, its report and pictures of it: out/report.html (needs Chromium)
	@$(BIN)/python -m scripts.report_pictures $(ARGS)

bench: $(STAMP) ## compare the bare service, Pipecat's failover and hedging, in one run of some minutes
	$(BIN)/pipecat-hedge bench $(ARGS)

benchmarks: $(STAMP) ## play the same turns to others and to this library, into docs/benchmarks.md (twenty minutes)
	@$(BIN)/python -m benchmarks $(if $(BENCH_TURNS),--turns $(BENCH_TURNS)) $(ARGS)

drill: $(STAMP) ## have providers fail under a fleet of callers, in a good hour; less: ARGS="down hang"
	@$(BIN)/pipecat-hedge drill $(ARGS)

compare: $(STAMP) ## call the example bot without and with hedging, in one run of some minutes
	@$(BIN)/python scripts/compare.py $(ARGS)

hello: $(STAMP) ## ask 300 times for "Hello, world!" through the proxy, and draw the waits
	@$(BIN)/python -m scripts.hello $(ARGS)

top: $(STAMP) ## watch a running bot live in the terminal; others: ARGS="http://host:7860 http://other:7860"
	@$(BIN)/pipecat-hedge top $(ARGS)

vllm-env: $(STAMP)
	@PYTHON="$(PYTHON)" sh scripts/vllm/make_env.sh

vllm: $(STAMP) ## run the bot on a vLLM of its own behind a simulated provider; alone: ARGS=--alone; on a GPU: MODEL=...
	@PYTHON="$(PYTHON)" $(BIN)/python -m scripts.vllm.run $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test-vllm: vllm-env ## run the tests against real vLLM servers
	@TEST_VLLM=1 $(BIN)/python -m pytest --timeout 300 tests/vllm_server $(ARGS)

clean: ## remove the environment and caches
	rm -rf $(VENV) $(DOCS_VENV) $(NEXT_VENV) .pytest_cache .ruff_cache .hypothesis build dist
