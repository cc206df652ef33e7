# Every target sets up what it needs by itself; the second time that takes a moment.
.PHONY: help demo up test test-system test-core soak check format bench lock set-up generate dist advisories console clean

ARGS ?=
export PYTHON
# A target starts hundreds of Python programs of one source: kept compiled, each of them begins in a third of the time.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make demo         start Mooring on a database of its own and show what it does"
	@echo "make up           start Mooring and stay; the first time make what an app needs"
	@echo "                  (ARGS=--no-try: without that; ARGS='--port N': another port)"
	@echo "make test         run the tests that need no child server, 6 minutes"
	@echo "                  (ARGS='-k word' chooses; a path runs all tests in it)"
	@echo "make test-system  run the others, 20 minutes: killed servers, sandboxes"
	@echo "make test-core    run the tests of the core, which need no database"
	@echo "make soak         run the tests that have a long form in it, with a random seed"
	@echo "make check        run every linter"
	@echo "make format       let ruff and biome put the code in order"
	@echo "make bench        run the benchmarks"
	@echo "make generate     write the OpenAPI document, the SDK's table, generated docs"
	@echo "make console      build the web console again, if it could not be built before"
	@echo "make lock         write requirements.txt (ARGS=--upgrade for new versions)"
	@echo "make dist         build the signed wheels of every part, and what they contain"
	@echo "make advisories   ask an advisory database about every locked version"
	@echo "make clean        remove everything that the set-up and the tools made"

set-up:
	@sh tools/set_up.sh

demo: set-up
	@.venv/bin/python -m tools.demo $(ARGS)

up: set-up
	@.venv/bin/mooring up --try-if-new $(ARGS)

test: set-up
	@.venv/bin/python -m tools.test $(ARGS)

test-system: set-up
	@.venv/bin/python -m tools.test --gate system $(ARGS)

# The core's tests use no fixture and no plugin that knows the server: not loading them is half of the time.
test-core: set-up
	@.venv/bin/python -m tools.test server/tests/core --noconftest -p no:schemathesis $(ARGS)

soak: set-up
	@MOORING_SOAK=1 .venv/bin/python -m tools.test server/tests/processes/test_catalog_storm.py \
		server/tests/processes/test_kill_the_server.py \
		server/tests/processes/test_artifact_checks.py tests/e2e/test_catalog_walk.py server/tests/world/test_world.py \
		tests/e2e/test_conformance.py tests/e2e/slurm/test_adapter_dies.py server/tests/api/test_contract.py \
		agent/tests/hosts/namespace/test_fuzz.py agent/tests/containers/test_image_fuzz.py \
		agent/tests/tasks/test_task_fuzz.py agent/tests/tunnels/test_frame_fuzz.py server/tests/relay/test_head_fuzz.py \
		server/tests/core/money/test_charging_machine.py server/tests/workers/test_charging_machine.py $(ARGS)

check: set-up
	@.venv/bin/python -m tools.check $(ARGS)

format: set-up
	@.venv/bin/ruff format .
	@.venv/bin/ruff check --fix .
	@cd console && node_modules/.bin/biome check --write --log-level=warn .

bench: set-up
	@.venv/bin/python -m bench $(ARGS)

# The SDK and the pages of the CLI are made from the OpenAPI document, so that comes first.
generate: set-up
	@for each in openapi task_schemas bundle_schema sdk lifecycles docs map; do .venv/bin/python -m tools.generate_$$each || exit 1; done

console:
	@rm -f .tools/console-stamp
	@sh tools/set_up.sh

lock: set-up
	@.venv/bin/python -m tools.lock $(ARGS)

dist: set-up
	@.venv/bin/python -m tools.dist $(ARGS)

advisories: set-up
	@.venv/bin/python -m tools.advisories

clean:
	@rm -rf agent/mooring_agent/sandbox_init/mooring-init console/node_modules console/src/api/schema.d.ts server/mooring/console .venv .tools .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .schemathesis .test-output
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
