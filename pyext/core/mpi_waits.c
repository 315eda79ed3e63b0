// SPDX-License-Identifier: MIT
/*
 * Loaded before MPI by LD_PRELOAD: how long each call waits for other ranks.
 *
 * MPI has all of its functions twice, as MPI_X and PMPI_X, so that tools can put theirs in
 * place of the first. This one needs no header of MPI, as it has to work with each of
 * them: arguments are integers and pointers everywhere, and go through as words. More
 * words are passed on than a function has; those are not looked at.
 *
 * If there is no PMPI_X, as in a part of MPI that some library contains, the next MPI_X is
 * called: the one that would be called without this library.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef intptr_t word;
typedef word (*function_type)(word a, word b, word c, word d, word e, word f, word g,
			      word h, word i, word j, word k, word l, word m);
typedef _Atomic(void (*)(uint64_t ns)) listener;

/* Called for each wait; speed_bump._core sets it. */
EXPORT listener speed_bump_mpi_waited;

/* A function of MPI may call others. */
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
 * Find @name in the libraries after this one; if that fails, in those of the object of
 * @caller, which may be the only one with MPI.
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

/*
 * As the loader would do without this library. A program that asks at run time whether there
 * are functions of MPI 4, as the wheels of mpi4py do by weak references, finds those here.
 */
static _Noreturn void refuse(const char *name)
{
	size_t length = strlen(name);
	bool counts = length > 2 && !strcmp(name + length - 2, "_c");

	fprintf(stderr, "speed-bump: undefined symbol: %s%s\n", name,
		counts ?
			": this MPI is older than MPI 4; a program built for it does not call "
			"that function (of mpi4py: pip install --no-binary mpi4py mpi4py)" :
			"");
	_exit(127);
}

/* @name begins with PMPI; without the P it is the function itself. */
static function_type real(_Atomic(function_type) *known, const char *name,
			  const void *caller)
{
	function_type found = atomic_load_explicit(known, memory_order_relaxed);
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (found)
		return found;
	found = (function_type)find(name, caller);
	if (!found) {
		found = (function_type)find(name + 1, caller);
		if (found && !atomic_flag_test_and_set(&said))
			fprintf(stderr,
				"speed-bump: this MPI has no %s: %s is called in its "
				"place\n",
				name, name + 1);
	}
	if (!found)
		refuse(name + 1);
	atomic_store_explicit(known, found, memory_order_relaxed);
	return found;
}

static void tell(uint64_t begin_ns)
{
	void (*told)(uint64_t) =
		atomic_load_explicit(&speed_bump_mpi_waited, memory_order_acquire);

	if (told)
		told(now_ns() - begin_ns);
}

/* @function is found as @real_name, of the profiling interface. */
#define WAITS(function, real_name)                                                   \
	EXPORT word function(word a, word b, word c, word d, word e, word f, word g, \
			     word h, word i, word j, word k, word l, word m)         \
	{                                                                            \
		static _Atomic(function_type) known;                                 \
		function_type next =                                                 \
			real(&known, real_name, __builtin_return_address(0));        \
		uint64_t begin_ns;                                                   \
		word result;                                                         \
                                                                                     \
		if (inside)                                                          \
			return next(a, b, c, d, e, f, g, h, i, j, k, l, m);          \
		inside = true;                                                       \
		begin_ns = now_ns();                                                 \
		result = next(a, b, c, d, e, f, g, h, i, j, k, l, m);                \
		tell(begin_ns);                                                      \
		inside = false;                                                      \
		return result;                                                       \
	}                                                                            \
	_Static_assert(true, "")

/* In C, and in Fortran as its compilers name it. */
#define CALL(name, fortran)               \
	WAITS(MPI_##name, "PMPI_" #name); \
	WAITS(mpi_##fortran##_, "pmpi_" #fortran "_")

/* MPI 4 has those with a count twice; mpi4py calls the second where it is there. */
#define COUNTS(name, fortran) \
	CALL(name, fortran);  \
	WAITS(MPI_##name##_c, "PMPI_" #name "_c")

#pragma GCC diagnostic ignored "-Wmissing-prototypes"
COUNTS(Allgather, allgather);
COUNTS(Allgatherv, allgatherv);
COUNTS(Allreduce, allreduce);
COUNTS(Alltoall, alltoall);
COUNTS(Alltoallv, alltoallv);
COUNTS(Alltoallw, alltoallw);
CALL(Barrier, barrier);
COUNTS(Bcast, bcast);
CALL(Comm_dup, comm_dup);
CALL(Comm_split, comm_split);
COUNTS(Exscan, exscan);
COUNTS(Gather, gather);
COUNTS(Gatherv, gatherv);
CALL(Mprobe, mprobe);
COUNTS(Mrecv, mrecv);
COUNTS(Neighbor_allgather, neighbor_allgather);
COUNTS(Neighbor_allgatherv, neighbor_allgatherv);
COUNTS(Neighbor_alltoall, neighbor_alltoall);
COUNTS(Neighbor_alltoallv, neighbor_alltoallv);
COUNTS(Neighbor_alltoallw, neighbor_alltoallw);
CALL(Probe, probe);
COUNTS(Recv, recv);
COUNTS(Reduce, reduce);
COUNTS(Reduce_scatter, reduce_scatter);
COUNTS(Reduce_scatter_block, reduce_scatter_block);
COUNTS(Rsend, rsend);
COUNTS(Scan, scan);
COUNTS(Scatter, scatter);
COUNTS(Scatterv, scatterv);
COUNTS(Send, send);
COUNTS(Sendrecv, sendrecv);
COUNTS(Sendrecv_replace, sendrecv_replace);
COUNTS(Ssend, ssend);
CALL(Wait, wait);
CALL(Waitall, waitall);
CALL(Waitany, waitany);
CALL(Waitsome, waitsome);
CALL(Win_fence, win_fence);
CALL(Win_wait, win_wait);
