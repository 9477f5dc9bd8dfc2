# A thin door to CMake: `make`, `make demo`, `make test`, `make sim`, `make install`.
# UCX_ROOT=/path builds against the UCX there, UCX=system against the system's; otherwise scripts/ucx.sh decides.
BUILD ?= build
BUILD_TYPE ?= RelWithDebInfo
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
# The tests wait more than they work.
TEST_JOBS ?= $(shell expr $(JOBS) + 1)
# UCX warns of variables with its prefix that it doesn't know.
CLEAN_ENV = env -u UCX_ROOT -u UCX

.PHONY: all build demo test interop interop-engine sim fuzz wheel python-test install deps format tidy clean distclean

all: build

deps:
	@scripts/deps.sh

# Configures again only when there is nothing yet or the choice has changed.
build: deps
	@mkdir -p $(BUILD)
	@root=$$(scripts/ucx.sh $(BUILD)) || exit 1; \
	choice="$$root|$(BUILD_TYPE)|$(PREFIX)"; \
	if [ ! -e $(BUILD)/build.ninja ] || [ "$$(cat $(BUILD)/choice 2>/dev/null)" != "$$choice" ]; then \
	    cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=$(BUILD_TYPE) -DUCX_ROOT="$$root" \
	          -DCMAKE_INSTALL_PREFIX=$(PREFIX) && echo "$$choice" >$(BUILD)/choice || exit 1; \
	fi
	@cmake --build $(BUILD) -j $(JOBS)

demo: build
	@$(CLEAN_ENV) $(BUILD)/kvferry demo

# Without the six cases that stand for all of them elsewhere: here all of them run.
test: build
	@$(CLEAN_ENV) ctest --test-dir $(BUILD) --output-on-failure -j $(TEST_JOBS) -LE '^six$$'

# Against stock SGLang and NIXL, from PyPI. INTEROP="--only 0.4.7 /tcp" runs a part of it.
interop: build
	@$(CLEAN_ENV) scripts/interop.sh $(BUILD) $(INTEROP)

# Real SGLang 0.4.7 servers, stock and kvferry: about 6 GB of wheels and 25 minutes. ENGINE="--part table" runs a part of it.
interop-engine: deps
	@$(CLEAN_ENV) JOBS=$(JOBS) scripts/engine.sh $(BUILD) $(ENGINE)

# SEEDS=1..5000 or SEEDS=42: those seeds; otherwise as many as fit into SIM_SECONDS.
SIM_SECONDS ?= 60
sim: build
	@$(BUILD)/kvf_sim $(if $(SEEDS),--seeds $(SEEDS),--seeds $$(date +%s)00000.. --seconds $(SIM_SECONDS) --coverage)

# All fuzzers, or FUZZ="request letter", for SECONDS each, two at a time (docs/simulator.md).
SECONDS ?= 60
fuzz:
	@scripts/deps.sh ci
	@root=$$(scripts/ucx.sh $(BUILD)) && cmake --preset fuzz -DUCX_ROOT="$$root" && cmake --build build-fuzz -j $(JOBS)
	@fuzz/run.sh build-fuzz $(SECONDS) $(FUZZ)

# The Python package with the library in it, for pip: BUILD/wheel/dist/*.whl
wheel:
	@scripts/deps.sh wheel
	@$(CLEAN_ENV) JOBS=$(JOBS) scripts/wheel.sh $(BUILD)

# The wheel in a fresh environment. PYTHON_TEST=test_arrays runs a part of it.
python-test:
	@scripts/deps.sh wheel
	@$(CLEAN_ENV) JOBS=$(JOBS) scripts/python-test.sh $(BUILD) $(PYTHON_TEST)

# DESTDIR is honoured.
install: build
	@cmake --install $(BUILD)
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ldconfig

format:
	@clang-format -i $$(scripts/sources.sh)

tidy: build
	@scripts/tidy.sh $(BUILD)

# Keeps the UCX that was fetched; distclean doesn't.
clean:
	@[ ! -d $(BUILD) ] || find $(BUILD) -mindepth 1 -maxdepth 1 ! -name 'ucx-*' -exec rm -rf {} +
	@rm -f $(BUILD)/ucx-*.unreachable

distclean:
	@rm -rf build build-*
