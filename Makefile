# Everything a newcomer needs: `make demo` and `make test` do their own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENT := $(VENV)/danube-client
CLIENT_STAMP := $(CLIENT)/.installed
PYTEST := $(BIN)/python -m pytest
# Tests and the demo start hundreds of processes: each would compile the package and its tests again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: check-protos $(shell awk -F: '/^[a-z-]+:.*## / {print $$1}' $(MAKEFILE_LIST))

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# $(call install,PYTHON,WHAT,ARGUMENTS OF PIP): what cannot be downloaded is tried three times.
PAUSE_SECONDS ?= 5
define install
@for try in 1 2 3; do \
  $(1) -m pip install --quiet --disable-pip-version-check $(3) 2>$(VENV)/pip.log && exit 0; cat $(VENV)/pip.log >&2; \
  [ $$try = 3 ] || { echo "$(2) could not be installed; once more in $(PAUSE_SECONDS) s" >&2; sleep $(PAUSE_SECONDS); }; \
done; \
echo "$(2) could not be installed: $$(grep '^ERROR' $(VENV)/pip.log | tail -n 1)" >&2; \
echo "Look at the network (HTTPS_PROXY for a proxy, PIP_INDEX_URL for an index of your own), then run it again." >&2; \
exit 1
endef

setup: $(STAMP) ## create .venv and install everything into it

$(STAMP): pyproject.toml requirements-dev.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "pydanube needs Python 3.11 or later; '$(PYTHON)' is not." >&2; \
	  echo "Install one and name it: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up $(VENV) (once; a minute or two, most of it for Spark) ..."
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module is missing: on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
	$(call install,$(BIN)/python,The newest pip,--progress-bar on --upgrade pip)
	$(call install,$(BIN)/python,What requirements-dev.lock lists,-r requirements-dev.lock)
	$(call install,$(BIN)/python,This package,--no-deps -e .)
	@touch $(STAMP)
	@echo "Ready: $(BIN)/danube --help"

# It has an environment of its own because it needs releases of grpcio and protobuf of its own choice.
danube-client: $(CLIENT_STAMP) ## install the official Danube client, for the conformance tests

$(CLIENT_STAMP): tests/conformance/requirements.txt | $(STAMP)
	@$(BIN)/python -m venv $(CLIENT)
	$(call install,$(CLIENT)/bin/python,The official Danube client,--no-deps -r tests/conformance/requirements.txt)
	@touch $(CLIENT_STAMP)

DOCS := $(VENV)/docs
DOCS_STAMP := $(DOCS)/.installed

$(DOCS_STAMP): docs/site/requirements.txt | $(STAMP)
	@$(BIN)/python -m venv $(DOCS)
	$(call install,$(DOCS)/bin/python,What builds the site,-r docs/site/requirements.txt)
	@touch $(DOCS_STAMP)

# Not --quiet: mkdocs does not count warnings then. DOCS_REPOSITORY=https://host/owner/name turns on "edit this page" and links to files that are no pages.
docs: setup $(DOCS_STAMP) ## build the site of the documentation: build/docs/site/index.html
	$(BIN)/python docs/site/prepare.py build/docs
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --clean --config-file build/docs/mkdocs.yml
	@echo "Read it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs/site"

# One file for Linux and macOS and every Python from 3.11 on; the package itself keeps its ranges in pyproject.toml.
lock: setup ## choose the newest versions that pyproject.toml allows for the development environment
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --extra test --extra dev \
	  --no-annotate --no-header pyproject.toml -o requirements-dev.lock

check: setup check-protos ## lint, types, the borders between packages, and descriptor sets that match their .proto
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# A descriptor set is a parsed .proto file, which pydanube.runtime.descriptor_sets loads.
PROTOS := $(shell find src -name '*.proto')
PROTOC := $(BIN)/python -m grpc_tools.protoc -I src --include_imports

protos: setup ## write the descriptor set (.binpb) of every .proto file
	@for proto in $(PROTOS); do \
	  $(PROTOC) --descriptor_set_out=$${proto%.proto}.binpb $$proto || exit 1; \
	done

check-protos: setup
	@for proto in $(PROTOS); do \
	  $(PROTOC) --descriptor_set_out=$(VENV)/check.binpb $$proto || exit 1; \
	  cmp -s $(VENV)/check.binpb $${proto%.proto}.binpb || { \
	    echo "$${proto%.proto}.binpb does not match $$proto: run make protos" >&2; exit 1; }; \
	done

# promtool is no Python package: the target says what to install.
check-deploy: setup ## check the alert rules, the dashboard and a scrape with promtool
	@$(BIN)/python deploy/check.py

format: setup ## format the code as `make check` wants it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# loadgroup: what is marked as a group, as all tests of Spark's JVM are, stays in one worker and is dealt first.
# ONLY=file::test make ... runs that alone, in the environment of the target.
ELSEWHERE := not soak and not stores and not spark_kill and not etcd and not browser
RUN = $(PYTEST) $(if $(ONLY),"$$ONLY",$(1))

test: setup danube-client ## run the tests, those of Spark included (about eight minutes on two cores)
	$(call RUN,-n 4 --dist loadgroup -m "$(ELSEWHERE) and not exhaustive")

test-all: setup danube-client ## the same with every case of every test: thousands of examples, every fault in every file
	DANUBE_EXHAUSTIVE=1 $(call RUN,-n 4 --dist loadgroup -m "$(ELSEWHERE)")

# python3.11 and later, on the PATH or installed by pyenv: one of each minor version.
PYTHONS ?= $(foreach minor,11 12 13 14,$(firstword $(foreach python,python3.$(minor) \
  $(wildcard $(HOME)/.pyenv/versions/3.$(minor).*/bin/python3),$(shell $(python) -c 'print("$(python)")' 2>/dev/null))))

test-pythons: ## run the tests on every Python from 3.11 on that is on this machine, each in a .venv-* of its own
	@for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "Python $$version"; \
	  $(MAKE) --no-print-directory test PYTHON=$$python VENV=.venv-$$version || exit 1; \
	done

BROWSER := $(VENV)/browser
BROWSER_STAMP := $(BROWSER)/.installed

# Beside the packages of .venv; axe-core is a file of an npm package.
$(BROWSER_STAMP): tests/browser/requirements.txt | $(STAMP)
	@mkdir -p $(BROWSER)
	$(call install,$(BIN)/python,What drives the browser,--target $(BROWSER) -r tests/browser/requirements.txt)
	@cd $(BROWSER) && npm pack --silent axe-core@4.14.1 >/dev/null && tar xzf axe-core-*.tgz --strip 1 package/axe.min.js || \
	  echo "axe-core could not be had from npm: pages are not checked for accessibility" >&2
	@touch $(BROWSER_STAMP)

test-browser: setup $(BROWSER_STAMP) ## the console in Debian's Chromium: every page, used and photographed (build/browser)
	@command -v chromium >/dev/null || { echo "There is no chromium: apt install chromium" >&2; exit 1; }
	PYTHONPATH=$(abspath $(BROWSER)) DANUBE_AXE=$(abspath $(BROWSER)) $(call RUN,-n 0 -m browser tests/browser)

test-spark: setup ## Spark under kill -9, on a cluster of its own and through Spark Connect
	$(PYTEST) -m "spark_kill and not soak" --timeout 600 tests/spark tests/docs

test-stores: setup ## object stores that need servers of their own: Redis, Azurite, opendal
	@cd tests/runtime && ../../$(BIN)/python -c 'import object_servers as s, sys; \
	  missing = [m for m in (s.missing_weed(), s.missing_redis(), s.missing_azurite()) if m]; \
	  sys.exit("\n".join(missing) or 0)'
	$(PYTEST) -m stores tests/runtime

# Besides the etcd of the PATH (Debian's is 3.4), a newer one that `make etcd` has built.
ETCD_VERSION := v3.6.5
ETCD := $(abspath $(VENV))/etcd-$(ETCD_VERSION)
ETCDS = $(shell printf '%s\n' "$$(PATH="$$PATH:/usr/sbin" command -v etcd)" $(wildcard $(ETCD)) | paste -sd: | sed 's/^://')

NEEDS_ETCD = cd tests/metadata && DANUBE_ETCD="$(ETCDS)" PYTHONPATH=../process ../../$(BIN)/python -c \
  'import etcd_cluster, sys; sys.exit(etcd_cluster.missing_etcd() or 0)'

# Three workers on two cores: many of these tests wait for sessions and faults to end.
test-cluster: setup ## three brokers on three real etcd members under faults, and metadata on etcd (four minutes)
	@$(NEEDS_ETCD)
	DANUBE_ETCD="$(ETCDS)" $(call RUN,-n 3 --dist loadgroup -m "etcd and not soak and not upgrade" tests/metadata tests/cluster tests/docs)

# The release before, until there is one: a commit whose formats and protocol this one must understand, and the other way round.
UPGRADE_FROM ?= cec227a5

test-upgrade: setup ## three brokers of an earlier commit (UPGRADE_FROM=...) rolled forward and back under load
	@$(NEEDS_ETCD)
	@git cat-file -e "$(UPGRADE_FROM)^{commit}" 2>/dev/null || { \
	  echo "There is no commit $(UPGRADE_FROM) here: fetch the whole history, or name another with UPGRADE_FROM=..." >&2; exit 1; }
	DANUBE_ETCD="$(ETCDS)" DANUBE_UPGRADE_FROM="$(UPGRADE_FROM)" $(call RUN,-m upgrade -s tests/cluster)

etcd: setup ## build a newer etcd with Go for test-cluster, where Go is present
	@command -v go >/dev/null || { echo "etcd $(ETCD_VERSION) needs Go 1.24 or later" >&2; exit 1; }
	@rm -rf $(VENV)/etcd-source && mkdir $(VENV)/etcd-source
	cd $(VENV)/etcd-source && go mod init etcd-source && \
	  go get go.etcd.io/etcd/server/v3@$(ETCD_VERSION) && go build -o $(ETCD) go.etcd.io/etcd/server/v3

# The crate compiles .proto files, for which grpcio-tools is a protoc.
RUST_PROGRAM := $(VENV)/danube-rust/debug/danube-scenarios

test-danube-clients: setup ## the conformance tests with the official Rust client, which cargo builds first (minutes)
	@command -v cargo >/dev/null || { \
	  echo "The Rust client needs cargo, which is part of Rust" >&2; exit 1; }
	@printf '#!/bin/sh\nexec "%s" -m grpc_tools.protoc "$$@"\n' "$(abspath $(BIN))/python" > $(VENV)/protoc
	@chmod +x $(VENV)/protoc
	PROTOC=$(abspath $(VENV))/protoc CARGO_TARGET_DIR=$(abspath $(VENV))/danube-rust \
	  cargo build --manifest-path tests/clients/rust/Cargo.toml
	DANUBE_CLIENT_PROGRAM=$(abspath $(RUST_PROGRAM)) $(PYTEST) -m "not soak" tests/conformance

soak: setup ## the long durability tests: 50 kill -9 and thousands of power cuts
	$(PYTEST) -m "soak and not spark_kill and not etcd and not simulation" -s --timeout 3600

soak-cluster: setup ## minutes of mixed faults on three brokers and three etcd members (DANUBE_SEED repeats a run)
	@$(NEEDS_ETCD)
	DANUBE_ETCD="$(ETCDS)" $(PYTEST) -m "etcd and soak" -s --timeout 3600 tests/metadata tests/cluster

soak-simulation: setup ## five thousand seeds of a simulated cluster (an hour; DANUBE_SEED is the first of them)
	$(PYTEST) -m simulation -s --timeout 7200 tests/cluster

soak-damage: setup ## hundreds of damages to every kind of stored file: served whole, named, refused, never wrong
	$(PYTEST) -m soak -s --timeout 3600 tests/damage

soak-delivery: setup ## every topic kind and subscription type under a hundred kills of consumers and broker
	$(PYTEST) -m soak -s --timeout 3600 tests/process/test_delivery_churn.py

soak-grpc: setup danube-client ## the official Danube client under eighty kills of its broker
	$(PYTEST) -m soak -s --timeout 3600 tests/conformance

soak-spark: setup ## a hundred kills of Spark's drivers and workers, and every row exactly once
	$(PYTEST) -m "spark_kill and soak" -s --timeout 7200 tests/spark

demo: setup ## a live feed, a pipeline on Spark, a kill -9 in the middle, every row compared, a picture
	$(BIN)/python examples/demo

soak-demo: setup ## the demo 25 times, killed at random moments, five times beside a full load (half an hour)
	$(BIN)/python tests/docs/soak_demo.py

dist: setup ## build a wheel and a source archive into ./dist, to install elsewhere
	@rm -rf dist
	$(BIN)/python -m build --outdir dist

bench: setup ## measure against the machine itself and print ratios
	$(BIN)/danube bench --suite

bench-spark: setup ## Spark with danube beside Spark with sources that have nothing to do: ratios (some minutes)
	$(BIN)/python benchmarks/spark/run.py

serve: setup ## run a broker on 127.0.0.1:6655 with ./danube-data
	$(BIN)/danube serve

cluster: setup ## run three brokers, three etcd members and an object store in ./danube-cluster (ARGS=--s3: an S3 server)
	@$(BIN)/python deploy/cluster/run.py $(ARGS)

clean: ## remove everything that was built, installed or cached (not ./danube-data and ./danube-cluster)
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
