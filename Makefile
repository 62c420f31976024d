# Redrive's commands. Each sets up what it needs: `make demo` and `make test` work on a fresh Debian 12.

PYTHON  := .venv/bin/python
PYTEST  := $(PYTHON) -m pytest
# More workers than cores: most tests wait for a server.
WORKERS ?= 4

.DEFAULT_GOAL := help
.PHONY: help setup servers demo lint test check test-slow test-matrix chaos fuzz bench screenshots openapi build docs reference audit pins

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.ready ## virtual environment in .venv, with the versions of constraints.txt

servers: ## RabbitMQ and PostgreSQL from the system's packages, if missing; none is left running
	@tools/install_servers.sh

demo: setup ## see it at work: failures, retries, dead letters, the console; until Ctrl-C
	@.venv/bin/redrive demo

test: setup servers lint ## everything but the slow proofs: style, types, layers, tests
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not slow"

check: setup lint audit ## the quick part, without servers
	$(PYTEST) -n auto -m "not slow" $(wildcard tests/unit tests/properties)

audit: setup ## known vulnerabilities in what constraints.txt pins, where that can be asked
	@$(PYTHON) tools/audit_dependencies.py

lint: setup
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy
	.venv/bin/lint-imports

test-slow: setup servers ## the slow proofs
	$(PYTEST) -m slow

test-matrix: setup servers ## the broker contract on RabbitMQ 3.10, 4.0 and 4.3
	WORKERS=$(WORKERS) tools/test_matrix.sh

chaos: setup servers ## the same faults for Redrive and its peers, on four brokers: docs/reliability.md; takes hours
	tools/make_rabbitmq_root.sh forky .cache/rabbitmq-4.3
	command -v faketime >/dev/null || tools/apt_install.sh faketime
	command -v nft >/dev/null || tools/apt_install.sh nftables
	$(PYTHON) -m chaos
	$(PYTHON) -m chaos.soak

fuzz: setup servers ## broken input for everything that reads what strangers write; takes an hour
	$(PYTHON) tools/fuzz.py

bench: .venv/.bench servers ## throughput and CPU per message, side by side with other clients
	test -e /usr/include/amqp.h || tools/apt_install.sh gcc libc6-dev librabbitmq-dev
	$(PYTHON) -m bench
	$(PYTHON) -m bench.embedded
	$(PYTHON) -m bench.workers --json bench/results/workers.json
	$(PYTHON) -m bench.retries
	$(PYTHON) -m bench.outbox --json bench/results/outbox.json
	$(PYTHON) -m bench.dead_letters --json bench/results/dead_letters.json
	$(PYTHON) -m bench.admin --json bench/results/admin.json

screenshots: setup ## docs/screenshots: every screen of the console, in light and dark (needs Chromium), and the demo
	PYTHONPATH=tools $(PYTHON) tools/screenshots.py
	$(PYTHON) tools/draw_demo.py

openapi: setup ## write docs/openapi.json from the code
	$(PYTHON) tools/write_openapi.py

build: setup ## dist/: the wheel and the source distribution
	rm -rf dist
	$(PYTHON) -m build

reference: setup ## write docs/reference from the code, and docs/systems' tables from the tests
	$(PYTHON) tools/write_reference.py
	$(PYTHON) tools/write_conformance.py

docs: setup ## the manual, into site/: open site/index.html; nothing in it comes from a network
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

pins: ## write constraints.txt from what is installed in .venv
	echo "# Exact versions of everything in .venv, written by make pins." > constraints.txt
	$(PYTHON) -m pip freeze --exclude-editable >> constraints.txt

.venv/.ready: pyproject.toml constraints.txt tools/make_venv.sh
	tools/make_venv.sh
	touch $@

.venv/.bench: .venv/.ready
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@
