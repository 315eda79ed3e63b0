// SPDX-License-Identifier: MIT
/*
 * Loaded before MPI by LD_PRELOAD: how long each call waits for other ranks.
 *
 * MPI has all of its functions twice, as MPI_X and PMPI_X, so that tools can put theirs in
 * place of the first. This one needs no header of MPI, as it has to work with each of
 * them: arguments are integers and pointers everywhere, and go through as words. More
 * words are passed on than a function has; those are not looked at.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

typedef intptr_t word;
typedef word (*function)(word a, word b, word c, word d, word e, word f, word g, word h,
			 word i, word j, word k, word l);
typedef _Atomic(void (*)(uint64_t ns)) listener;

/* Told of each wait; speed_bump._core sets it. */
EXPORT listener speed_bump_mpi_waited;

/* One function of MPI may be made of others. */
static _Thread_local bool inside;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* @name as the object that @caller is in finds it, which may be alone in having MPI. */
static void *find(const char *name, const void *caller)
{
	void *found = dlsym(RTLD_DEFAULT, name), *object;
	Dl_info info;

	if (found || !dladdr(caller, &info))
		return found;
	object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!object)
		return NULL;
	found = dlsym(object, name);
	dlclose(object);
	return found;
}

static function real(_Atomic(function) *known, const char *name, const void *caller)
{
	function found = atomic_load_explicit(known, memory_order_relaxed);

	if (found)
		return found;
	found = (function)find(name, caller);
	if (!found) {
		fprintf(stderr, "speed-bump: this MPI has no %s\n", name);
		abort();
	}
	atomic_store_explicit(known, found, memory_order_relaxed);
	return found;
}

static void tell(uint64_t begin_ns)
{
	void (*told)(uint64_t) = atomic_load_explicit(&speed_bump_mpi_waited,
						      memory_order_acquire);

	if (told)
		told(now_ns() - begin_ns);
}

#define WAITS(name)                                                                       \
	EXPORT word MPI_##name(word a, word b, word c, word d, word e, word f, word g,    \
			       word h, word i, word j, word k, word l)                    \
	{                                                                                 \
		static _Atomic(function) known;                                           \
		function next = real(&known, "PMPI_" #name, __builtin_return_address(0)); \
		uint64_t begin_ns;                                                        \
		word result;                                                              \
                                                                                          \
		if (inside)                                                               \
			return next(a, b, c, d, e, f, g, h, i, j, k, l);                  \
		inside = true;                                                            \
		begin_ns = now_ns();                                                      \
		result = next(a, b, c, d, e, f, g, h, i, j, k, l);                        \
		tell(begin_ns);                                                           \
		inside = false;                                                           \
		return result;                                                            \
	}                                                                                 \
	_Static_assert(true, "")

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
WAITS(Allgather);
WAITS(Allgatherv);
WAITS(Allreduce);
WAITS(Alltoall);
WAITS(Alltoallv);
WAITS(Alltoallw);
WAITS(Barrier);
WAITS(Bcast);
WAITS(Exscan);
WAITS(Gather);
WAITS(Gatherv);
WAITS(Mprobe);
WAITS(Neighbor_allgather);
WAITS(Neighbor_allgatherv);
WAITS(Neighbor_alltoall);
WAITS(Neighbor_alltoallv);
WAITS(Neighbor_alltoallw);
WAITS(Probe);
WAITS(Recv);
WAITS(Reduce);
WAITS(Reduce_scatter);
WAITS(Reduce_scatter_block);
WAITS(Scan);
WAITS(Scatter);
WAITS(Scatterv);
WAITS(Send);
WAITS(Sendrecv);
WAITS(Sendrecv_replace);
WAITS(Ssend);
WAITS(Wait);
WAITS(Waitall);
WAITS(Waitany);
WAITS(Waitsome);
