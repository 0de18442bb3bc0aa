# Which MPIs there are; included by the Makefiles that build against them.

# $(call compiles,mpich) is "mpich" where mpicc.mpich finds MPI's headers: a compiler alone may be there
# without them.
compiles = $(shell echo '\#include <mpi.h>' | mpicc.$(1) -E - >/dev/null 2>&1 && echo $(1))
