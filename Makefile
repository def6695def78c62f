# make serve   the bundled voice on http://127.0.0.1:8000
# make test    every test that this machine can run
# make lint    style and types
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test lint clean
.DELETE_ON_ERROR:

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.serve: requirements.txt pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(VENV)/.test: requirements-dev.txt $(VENV)/.serve
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $@

serve: $(VENV)/.serve
	$(BIN)/duotone serve $(ARGS)

test: $(VENV)/.test
	$(BIN)/pytest $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) build dist *.egg-info
