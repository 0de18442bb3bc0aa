# make demo      build, then a real MPI program with and without the cache, compared
# make test      everything that CI runs, installing what the machine lacks
# make build     release build: the command and the MPI shim
# make install   [PREFIX=/usr/local] [DESTDIR=]

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
export TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))

.PHONY: build test demo install check preload examples clean

build:
	@scripts/dependencies.sh build
	$(CARGO) build --release --locked -p halocline-cli
	$(MAKE) --no-print-directory preload

demo:
	@scripts/dependencies.sh demo
	$(MAKE) --no-print-directory build examples
	bench/demo.sh

test:
	@scripts/dependencies.sh test
	$(MAKE) --no-print-directory preload examples check

check:
	$(CARGO) x check

preload:
	$(MAKE) --no-print-directory -C crates/preload OUT=$(TARGET)/preload

examples:
	$(MAKE) --no-print-directory -C examples/mpi OUT=$(TARGET)/examples

install: build
	install -D -m 755 $(TARGET)/release/halocline $(DESTDIR)$(PREFIX)/bin/halocline
	[ ! -e $(TARGET)/preload/libhalocline_mpi.so ] || install -D -m 755 \
	    $(TARGET)/preload/libhalocline_mpi.so $(DESTDIR)$(PREFIX)/lib/halocline/libhalocline_mpi.so

clean:
	$(CARGO) clean
