# make demo      build, then a real MPI program with and without the cache, compared
# make demo-cluster  the same on three nodes with one cache over them, one of which is killed
# make test      everything that CI runs, installing what the machine lacks
# make test-cluster  long: nodes and stores fail in 200 rounds, with a ledger of what was acknowledged
# make build     release build: the command and the MPI shim
# make install   [PREFIX=/usr/local] [DESTDIR=]: the command, the shim, man pages, completions

PREFIX ?= /usr/local
DESTDIR ?=
HALOCLINE = $(TARGET)/release/halocline
SHARE = $(DESTDIR)$(PREFIX)/share
CARGO ?= cargo
export TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

.PHONY: build test test-cluster demo demo-cluster install install-files check preload examples clean

build:
	@scripts/dependencies.sh build
	$(CARGO) build --release --locked -p halocline-cli
	$(MAKE) --no-print-directory preload

demo:
	@scripts/dependencies.sh demo
	$(MAKE) --no-print-directory build examples
	bench/demo.sh

demo-cluster:
	@scripts/dependencies.sh demo-cluster
	$(MAKE) --no-print-directory build examples
	bench/demo-cluster.sh

test:
	@scripts/dependencies.sh test
	$(MAKE) --no-print-directory preload examples check

test-cluster:
	@scripts/dependencies.sh test
	HALOCLINE_CLUSTER_ROUNDS=$(or $(HALOCLINE_CLUSTER_ROUNDS),200) $(CARGO) test -p halocline-cli --test cluster_rounds --test shared_tier_rounds -- --nocapture

check:
	$(CARGO) x check

preload:
	$(MAKE) --no-print-directory -C crates/preload OUT=$(TARGET)/preload

examples:
	$(MAKE) --no-print-directory -C examples/mpi OUT=$(TARGET)/examples

install: build
	$(MAKE) --no-print-directory install-files

# What `make install` does with what was built. Root leaves nothing of its own in the build.
install-files:
	set -e; docs=$$(mktemp -d); trap 'rm -rf "$$docs"' EXIT; $(HALOCLINE) docs "$$docs"; \
	install -d "$(SHARE)/man/man1" "$(SHARE)/bash-completion/completions" \
	    "$(SHARE)/zsh/site-functions" "$(SHARE)/fish/vendor_completions.d"; \
	install -m 644 "$$docs"/man/*.1 "$(SHARE)/man/man1"; \
	install -m 644 "$$docs/completions/halocline.bash" "$(SHARE)/bash-completion/completions/halocline"; \
	install -m 644 "$$docs/completions/halocline.zsh" "$(SHARE)/zsh/site-functions/_halocline"; \
	install -m 644 "$$docs/completions/halocline.fish" "$(SHARE)/fish/vendor_completions.d"
	install -D -s -m 755 $(HALOCLINE) "$(DESTDIR)$(PREFIX)/bin/halocline"
	[ ! -e $(TARGET)/preload/libhalocline_mpi.so ] || install -D -m 755 \
	    $(TARGET)/preload/libhalocline_mpi.so "$(DESTDIR)$(PREFIX)/lib/halocline/libhalocline_mpi.so"

clean:
	$(CARGO) clean
