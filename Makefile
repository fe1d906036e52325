# Every command sets up what it needs first. ARGS passes extra arguments: make test ARGS="-k claim"

SHELL := /bin/bash
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help run test test-nightly bench docs check format lock clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '%-20s %s\n' "$$name" "$$text"; done

run: ## Start the server and print its address (ARGS go to turnkeep serve)
	@scripts/setup run
	@scripts/web build || echo "The page could not be built; the lines above say why. The server runs without it." >&2
	@exec .venv/bin/turnkeep serve $(ARGS)

test: ## Check the code, then run every test (ARGS go to pytest)
	@scripts/test $(ARGS)

test-nightly: ## Run the tests that take minutes
	@scripts/test --nightly $(ARGS)

bench: ## Measure against the peers and the physical limit
	@scripts/setup bench
	@.venv/bin/python -m bench $(ARGS)

docs: ## Build the site of the manual into site/
	@scripts/docs build $(ARGS)
	@echo "Open site/README.html or site/index.html"

check: ## Style, format, types and layers
	@scripts/check

format: ## Rewrite the code in the agreed format
	@scripts/setup dev
	@.venv/bin/ruff check --fix-only --quiet .
	@.venv/bin/ruff format .

lock: ## Write the requirements locks anew (ARGS=--upgrade takes newer versions)
	@scripts/lock $(ARGS)

clean: ## Remove everything that the commands above made
	rm -rf .venv .venv-bench .venv.lock .bare-machine .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist site .web.lock web/node_modules clients/js/node_modules clients/js/dist clients/react/node_modules clients/react/dist tests/wires/node/node_modules clients/js/src/wire/schema.ts src/turnkeep/web
	find src clients tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
