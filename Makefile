# Every target works on a fresh clone: what is missing is installed first, what is there is left alone.
.DEFAULT_GOAL := help
.PHONY: help demo test check up down bench scale simulate spark-4 lock proto clean
MAKEFLAGS += --no-print-directory
# Many processes import the same modules: each would compile them anew.
unexport PYTHONDONTWRITEBYTECODE

python := .venv/bin/python

help: ## show this list
	@echo "LakeSync: make <target>"
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  \1|\2/' | awk -F'|' '{printf "%-10s %s\n", $$1, $$2}'

demo: ## the main job on real flights: start, deploy, sync, show the result; leaves the stack running
	@tools/bootstrap.sh
	@$(python) -m tools.demo

test: ## every test, lint, types and import contracts (26 minutes on 2 cores)
	@tools/test.sh

check: ## the quick part of `test`: lint, types, import contracts, unit tests
	@tools/test.sh quick

up: ## start the local AWS emulator and deploy the stack on it
	@tools/bootstrap.sh
	@$(python) -m tools.local_stack up

down: ## stop the local stack and forget its data
	@tools/bootstrap.sh dev
	@$(python) -m tools.local_stack down

bench: ## measure speed and memory against the targets; writes results.json (ONLY="client gateway")
	@tools/bootstrap.sh
	@$(python) -m benchmarks $(if $(ONLY),--only $(ONLY))

scale: ## the real code on a model of DynamoDB and Lambda, and lake tables of many gateways (20 minutes)
	@tools/bootstrap.sh
	@$(python) -m benchmarks --only scale shared_tables

simulate: ## seeded runs of clients, network, functions and lake, with faults: SEEDS=100000 FIRST=0
	@tools/bootstrap.sh dev
	@$(python) -m tools.simulate --seeds $(or $(SEEDS),2000) --first $(or $(FIRST),0)
	@tools/javascript.sh build
	@$(python) -m tools.simulate --javascript --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0)

spark-4: ## the Spark tests on the Spark of Glue 6.0, which the template offers beside 5.1
	@tools/test.sh spark-4

lock: ## compile requirements/*.in into lock files (UPGRADE=1: newest versions of everything)
	@tools/bootstrap.sh dev
	@$(python) -m tools.lock

proto: ## generate Python from the protobuf schema
	@tools/bootstrap.sh dev
	@$(python) -m grpc_tools.protoc -I layers/lakesync/python --python_out=layers/lakesync/python \
		--pyi_out=layers/lakesync/python lakesync/wire/lakesync.proto

clean: ## stop the stack and remove everything that make made
	@if [ -x $(python) ]; then $(python) -m tools.local_stack down; \
		$(python) -m tools.local_stack down --folder .local/test-stack; fi
	rm -rf .venv .local .aws-sam build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
