// SPDX-License-Identifier: MIT
/*
 * Loaded before MPI by LD_PRELOAD: how long each call waits for other ranks.
 *
 * MPI has all of its functions twice, as MPI_X and PMPI_X, so that tools can put theirs in
 * place of the first. This one needs no header of MPI, as it has to work with each of
 * them: arguments are integers and pointers everywhere, and go through as words. More
 * words are passed on than a function has; those are not looked at.
 *
 * Where there is no PMPI_X, as in a part of MPI that some library brings along, the next MPI_X
 * is called, which would have been without us.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

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

static bool is_ours(const void *found)
{
	static const char here;
	Dl_info info, ours;

	return dladdr(found, &info) && dladdr(&here, &ours) &&
	       info.dli_fbase == ours.dli_fbase;
}

/*
 * @name as all of the program finds it behind us; else as the object that @caller is in
 * does, which may be alone in having MPI.
 */
static void *find(const char *name, const void *caller)
{
	void *found = dlsym(RTLD_NEXT, name), *object;
	Dl_info info;

	if (!found)
		found = dlsym(RTLD_DEFAULT, name);
	if (found && is_ours(found))
		found = NULL;
	if (found || !dladdr(caller, &info))
		return found;
	object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!object)
		return NULL;
	found = dlsym(object, name);
	dlclose(object);
	return found && !is_ours(found) ? found : NULL;
}

/* @name is that of PMPI; without the P it is the function's own. */
static function real(_Atomic(function) *known, const char *name, const void *caller)
{
	function found = atomic_load_explicit(known, memory_order_relaxed);
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (found)
		return found;
	found = (function)find(name, caller);
	if (!found) {
		found = (function)find(name + 1, caller);
		if (found && !atomic_flag_test_and_set(&said))
			fprintf(stderr,
				"speed-bump: this MPI has no %s: %s is called in its "
				"place\n",
				name, name + 1);
	}
	if (!found) {
		/* As the loader would, had we not been there. */
		fprintf(stderr, "speed-bump: undefined symbol: %s\n", name + 1);
		_exit(127);
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
