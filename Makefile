# Needs make, git and Python 3.11 to 3.14. Every target builds what it needs in .venv.

DEMO_FLAGS ?=
TEST_FLAGS ?=

BIN := .venv/bin

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test check bench clean

help: ## list the targets
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## train a small model on this machine and show the text it writes; ends in runs/demo
	@sh tools/venv.sh plot
	$(BIN)/dlm demo $(DEMO_FLAGS)

test: ## run the whole test suite; TEST_FLAGS="tests/exact -x" narrows it
	@sh tools/venv.sh dev
	$(BIN)/python -m pytest $(TEST_FLAGS)

check: ## check format, lint, types and the layering of imports
	@sh tools/venv.sh dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports --no-logo

bench: ## measure against PyTorch, one JSON line each; PyTorch alone downloads up to 3 GB
	@sh tools/venv.sh bench
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/denoise.py

clean: ## delete .venv and caches; runs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache
	find dlm_jax tests configs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
