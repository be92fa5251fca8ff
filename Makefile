# The few commands of this repository; `make` alone lists them.
SHELL := /bin/bash
bin := .venv/bin
pytest_args ?=

.PHONY: help setup demo test check bench compose-check clean
help: ## what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## virtual environment, Docker engine, sandbox image; quick when nothing changed
	@scripts/setup.sh

demo: setup ## the whole product on examples/: archive in, proven patch out
	@$(bin)/patchyard demo

test: setup ## the whole test suite: real Redis, real engine
	@scripts/test.sh $(pytest_args)

check: setup ## format, lint, types, import rules
	@$(bin)/ruff format --check .
	@$(bin)/ruff check .
	@$(bin)/mypy
	@$(bin)/lint-imports

bench: setup ## the figures of docs/benchmarks.md
	@for script in benchmarks/*.py; do $(bin)/python "$$script" || exit 1; done

compose-check: setup ## builds the images, starts compose.yaml, runs a task through it, takes it down
	@scripts/compose-check.sh

clean: ## removes what setup and the tests made, except your data in .patchyard/data and the engine
	@scripts/clean.sh
