# What people and CI run. Each target works on a fresh clone; see CONTRIBUTING.md.
#
#   make demo      one sender, eight receivers, real files, on this machine      [DEMO=path]
#   make test      everything that can be tested here; what cannot is named as skipped
#   make lint      formatting, clippy, documentation, licences and advisories; that fuzz targets compile
#   make bench     Downpour beside other programs, the short set: about 15 minutes (needs root)
#   make bench-full   all but the short set and those of bench-tuner, one run of each program and cell: 3.7 hours by the
#                  times of its parts, 2.7 without LAB_NGRID; with three, for medians, 11 (needs root)        [REPEATS=3]
#   make bench-feeds  those with products: 3 hours; LAB_NGRID names the real feed's file (needs root)
#   make bench-tuner  those of the tuner and of long ways: most of a day (needs root)
#   make fuzz      each fuzz target for FUZZ_SECONDS (needs the nightly toolchain)

SHELL := /bin/bash
CARGO ?= cargo
TOOLS := $(CURDIR)/target/tools
FUZZ_SECONDS ?= 60
# Commands that tests call and the Debian packages that hold them.
TEST_PACKAGES := strace:strace nft:nftables ethtool:ethtool ip:iproute2 tc:iproute2 chrt:util-linux setsid:util-linux setpriv:util-linux \
  initdb:postgresql mariadbd:mariadb-server-core my_print_defaults:mariadb-client-core \
  psql:postgresql-client mariadb:mariadb-client-core sqlite3:sqlite3 unshare:util-linux mount:mount curl:curl

# Test programs of all crates, by name.
TESTS := $(sort $(basename $(notdir $(wildcard crates/*/tests/*.rs))) $(notdir $(patsubst %/main.rs,%,$(wildcard crates/*/tests/*/main.rs))))

# Of `net`, those that measure nothing, nearly all on loopback, and three that wait half a minute or more for who is slow or gone.
TOGETHER := bad_input:: endings:: products:: sessions:: a_disk_that_is_slow a_member_that_forges a_receiver_whose_connections_die

# How many tests run at once where they do not measure: as many as there are cores, four at least.
THREADS := $(shell n=$$(nproc); echo $$((n > 4 ? n : 4)))

# Programs that the lab runs beside Downpour.
BENCH_PACKAGES := udp-sender:udpcast uftp:uftp iperf3:iperf3 rsync:rsync aria2c:aria2 \
  globus-url-copy:globus-gass-copy-progs globus-gridftp-server:globus-gridftp-server-progs zstd:zstd
LAB := target/release/lab

.PHONY: demo test test-full test-setup lint bench bench-full bench-feeds bench-tuner bench-setup fuzz deny

demo:
	$(CARGO) build --release --locked -p downpour
	target/release/downpour demo $(if $(DEMO),"$(DEMO)")

# All of the workspace each time: with other members the features of what they depend on differ, and it is built again. Tests
# mostly wait for a clock, so that more run at once than there are cores. Not so the lab's `network`, which says how late its
# emulator is, and of `net` all but TOGETHER: each such test runs many programs, and measures what they cost.
test: test-setup
	RUST_TEST_THREADS=$(THREADS) $(CARGO) test --workspace --locked --lib --bins $(addprefix --test ,$(filter-out net network,$(TESTS)))
	$(CARGO) test --workspace --locked --doc
	$(CARGO) test --workspace --locked --test network -- --test-threads=2
	$(CARGO) test --workspace --locked --test net -- $(TOGETHER) --test-threads=$(THREADS)
	$(CARGO) test --workspace --locked --test net -- $(addprefix --skip ,$(TOGETHER)) --test-threads=1

# Campaigns of 20,000 files between two sites whose daemons, databases and network are killed at random, with SQLite and with
# PostgreSQL and MariaDB.
test-full: test
	DOWNPOUR_CAMPAIGN=20000 $(CARGO) test --release --locked -p downpour --test site -- campaign --nocapture --test-threads=1

# Installs what the tests need, as root on Debian; elsewhere says what is missing. Never fails: a test
# whose tools are absent names itself as skipped, and so does a program of the lab.
test-setup:
	@$(call install,$@,$(TEST_PACKAGES))

bench-setup: test-setup $(TOOLS)/bin/normCast
	@$(call install,$@,$(BENCH_PACKAGES))

# $(call install,who wants it,command:package …)
define install
missing=""; \
for pair in $(2); do \
  PATH="$$PATH:/usr/sbin:/sbin:$$(echo /usr/lib/postgresql/*/bin | tr ' ' :)" command -v "$${pair%%:*}" >/dev/null || missing="$$missing $${pair##*:}"; \
done; \
[ -z "$$missing" ] && exit 0; \
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
  echo "installing$$missing"; \
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $$missing; } </dev/null >/dev/null \
    || echo "skipped: $(1): could not install$$missing"; \
else \
  echo "skipped: $(1): not installed:$$missing"; \
fi
endef

# NORM's program for files is an example in Debian's source package.
$(TOOLS)/bin/normCast:
	@crates/lab/norm.sh $@ || echo "skipped: bench-setup: NORM cannot be built here"

# Fuzz targets are only compiled, without their engine, which is C++; where the workspace lies built, so that little is built twice.
lint: deny
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items
	CARGO_TARGET_DIR=target CUSTOM_LIBFUZZER_PATH=/dev/null $(CARGO) check --locked --manifest-path fuzz/Cargo.toml

# Licences, bans and sources need no network. The advisory database does; when it cannot be had, that is
# said by name.
deny: $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --locked check licenses bans sources
	@if timeout 60 $(TOOLS)/bin/cargo-deny --locked fetch db >$(TOOLS)/fetch.log 2>&1; then \
	  $(TOOLS)/bin/cargo-deny --locked --offline check advisories; \
	else \
	  echo "skipped: advisories: the advisory database cannot be fetched here ($(TOOLS)/fetch.log)"; \
	fi

# Not in the workspace's target folder: the features it needs would rebuild our own dependencies. Not optimised:
# that takes three times as long, and what it checks is small.
$(TOOLS)/bin/cargo-deny:
	@mkdir -p $(TOOLS)
	CARGO_TARGET_DIR=$(TOOLS)/build CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) install --debug cargo-deny --locked --version 0.20.2 --root $(TOOLS)
	@rm -rf $(TOOLS)/build

# Figures go to target/lab/TIME/NAME/: the lab overwrites no runs. On an idle machine: each page says how busy it was.
bench: bench-setup
	$(CARGO) build --release --locked -p downpour -p downpour-lab
	$(LAB) emulator check --quick
	@$(call EACH,$(SHORT))

SHORT := short short-unicast
FIGURES := target/lab/$(shell date -u +%Y-%m-%d-%H%M%S)
RUN = echo "$(LAB) run crates/lab/experiments/$(1).toml $(2)" && $(LAB) run crates/lab/experiments/$(1).toml $(2) --out $(FIGURES)/$(1)
# One that fails ends no others.
EACH = trap 'exit 130' INT; status=0; for name in $(1); do $(call RUN,$$name) || status=1; done; exit $$status
# Of each program in each cell, by bench-full; medians need three, and three times the hours.
REPEATS ?= 1
# One that fails does not end a night of others; its name is kept for the end.
FAILED := $(FIGURES)/failed
TRY = $(call RUN,$(1),--repeats $(REPEATS)) || echo $(1) >>$(FAILED)

# Most experiments leave the machine idle: slow links, or one or two receivers. They run five at a time, the longest first, so
# that what is delivered in all stays below 2 Gbit/s; those that need the machine, or whose figures are milliseconds, run alone,
# as do those that look for a rate: beside others their links were late, and other ones than were asked for; and stragglers,
# whose few percent over a run without trouble are less than neighbours cost.
EXPERIMENTS := $(basename $(notdir $(wildcard crates/lab/experiments/*.toml)))
FEEDS := $(filter ldm7-%,$(EXPERIMENTS))
TUNER := $(filter tuner-% windows-% wan-%,$(EXPERIMENTS))
ALONE := peers-8 peers-small peers-250 ishihara-37 unlimited $(filter rate-% straggler-%,$(EXPERIMENTS))
LONG := peers-20 peers-1 afdp-unicast ishihara-37-unicast unicast-100
BESIDE := $(LONG) $(filter-out $(SHORT) $(FEEDS) $(TUNER) $(ALONE) $(LONG),$(EXPERIMENTS))

bench-full: bench-setup
	$(CARGO) build --release --locked -p downpour -p downpour-lab
	@trap 'exit 130' INT; mkdir -p $(FIGURES); \
	printf '%s\n' $(BESIDE) | xargs -P 5 -I NAME sh -c '$(call TRY,NAME)' || echo xargs >>$(FAILED); \
	for name in $(ALONE); do $(call TRY,$$name); done; \
	if [ -r "$$LAB_NGRID" ]; then \
	  for name in $(FEEDS); do $(call TRY,$$name); done; \
	else \
	  echo "skipped: bench-full: $(FEEDS): LAB_NGRID does not name the NGRID feed's file (docs/results/ldm7.md)"; \
	fi; \
	[ ! -e $(FAILED) ] || { echo "bench-full: failed:" $$(cat $(FAILED)); exit 1; }

# The feed is not part of this repository: docs/results/ldm7.md.
bench-feeds: bench-setup
	@[ -r "$$LAB_NGRID" ] || { echo "bench-feeds: set LAB_NGRID to the file with the NGRID feed (docs/results/ldm7.md)"; exit 1; }
	$(CARGO) build --release --locked -p downpour -p downpour-lab
	@$(call EACH,$(FEEDS))

bench-tuner: bench-setup
	$(CARGO) build --release --locked -p downpour -p downpour-lab
	@$(call EACH,$(TUNER))

# Finds nothing or fails; what it finds lies in fuzz/artifacts. AddressSanitizer keeps freed memory for a
# while, hence the limit.
fuzz: $(TOOLS)/bin/cargo-fuzz
	@export PATH="$(TOOLS)/bin:$$PATH"; set -e; \
	for target in $$($(CARGO) +nightly fuzz list); do \
	  echo "fuzz: $$target, $(FUZZ_SECONDS) s"; \
	  mkdir -p fuzz/corpus/$$target; seeds=fuzz/seeds/$$target; [ -d $$seeds ] || seeds=; \
	  $(CARGO) +nightly fuzz run $$target fuzz/corpus/$$target $$seeds -- -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=3000 -verbosity=0 -print_final_stats=1; \
	done

$(TOOLS)/bin/cargo-fuzz:
	@mkdir -p $(TOOLS)
	CARGO_TARGET_DIR=$(TOOLS)/build $(CARGO) install cargo-fuzz --locked --version 0.13.2 --root $(TOOLS)
	@rm -rf $(TOOLS)/build
