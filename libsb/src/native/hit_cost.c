// SPDX-License-Identifier: MIT
/*
 * The cost of a hit besides its delay: the exception, the handler, and the instruction
 * that the kernel emulates or single-steps. It depends on the machine, above all on
 * whether it is a virtual one, and on the backend, so it is measured with functions of
 * libsb.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "native/backend.h"
#include "error.h"
#include "elf/insn.h"
#include "native/session.h"

#define ROUNDS 16
#define CALLS  25

/* A function at offset 0 whose first instruction is emulated, and one at STEPPED. */
#define STEPPED 64

#if defined(__x86_64__)
static const unsigned char emulated_code[] = { 0x53, 0x5b, 0xc3 }; /* push, pop, ret */
static const unsigned char stepped_code[] = { 0x89, 0xc0, 0xc3 }; /* mov %eax, %eax; ret */
#else
static const uint32_t emulated_code[] = { 0x14000001, 0xd65f03c0 }; /* b .+4; ret */
static const uint32_t stepped_code[] = { 0xaa0003e0, 0xd65f03c0 }; /* mov x0, x0; ret */
#endif

enum sb_hit_kind sb_hit_kind_at(int fd, uint64_t offset)
{
	unsigned char code[SB_INSN_MAX_LENGTH] = { 0 };
	ssize_t n = pread(fd, code, sizeof(code), (off_t)offset);

	return n > 0 && sb_insn_is_emulated(code, (size_t)n) ? SB_HIT_EMULATED :
							       SB_HIT_STEPPED;
}

enum sb_hit_kind sb_elf_hit_kind(const struct sb_elf *elf, uint64_t offset)
{
	return sb_hit_kind_at(sb_elf_fd(elf), offset);
}

/* The quickest of some rounds: interruptions only make a call longer. */
static uint64_t time_calls(void (*function)(void))
{
	uint64_t best = UINT64_MAX;

	function();
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = sb_spin_ticks(), took;

		for (int k = 0; k < CALLS; k++)
			function();
		took = sb_spin_ticks_to_ns(sb_spin_ticks() - start);
		best = took < best ? took : best;
	}
	return best / CALLS;
}

/* Functions in a file of their own, one for each kind of breakpoint. */
struct sample {
	int fd;
	char *code;
	uint64_t offset; /* of the function of the wanted kind */
};

static int no_sample(struct sb_error *err)
{
	return sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			    strerror(errno));
}

static void sample_close(struct sample *sample)
{
	if (sample->code != MAP_FAILED)
		munmap(sample->code, (size_t)sysconf(_SC_PAGESIZE));
	if (sample->fd >= 0)
		close(sample->fd);
}

static int sample_open(struct sample *sample, enum sb_hit_kind kind, struct sb_error *err)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);

	*sample = (struct sample){ .fd = -1, .code = MAP_FAILED };
	if (kind != SB_HIT_EMULATED && kind != SB_HIT_STEPPED)
		return sb_error_set(err, EINVAL, "there is no kind %d of hits", kind);
	sample->offset = kind == SB_HIT_STEPPED ? STEPPED : 0;
	sample->fd = memfd_create("speed_bump", MFD_CLOEXEC);
	if (sample->fd < 0 || ftruncate(sample->fd, (off_t)size) ||
	    pwrite(sample->fd, emulated_code, sizeof(emulated_code), 0) < 0 ||
	    pwrite(sample->fd, stepped_code, sizeof(stepped_code), STEPPED) < 0)
		return no_sample(err);
	/* Private, because breakpoints are set only in such memory. */
	sample->code = mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, sample->fd, 0);
	return sample->code == MAP_FAILED ? no_sample(err) : 0;
}

static void (*sample_function(const struct sample *sample))(void)
{
	void (*function)(void);

	*(void **)&function = sample->code + sample->offset;
	return function;
}

static struct sb_target sample_target(const struct sample *sample, char *label)
{
	return (struct sb_target){ .fd = sample->fd,
				   .offset = sample->offset,
				   .label = label,
				   .options = { .scope = SB_SCOPE_THREAD,
						.scope_id = (int)syscall(SYS_gettid) } };
}

static int sample_add(struct sb_backend *backend, struct sb_target *target,
		      struct sb_error *err)
{
	bool is_known;
	size_t failed;

	if (backend->problem)
		sb_error_set(backend->problem, 0, "%s", "");
	if (!backend->ops->add(backend, target, 1, &failed))
		return 0;
	is_known = backend->problem && sb_error_code(backend->problem) == errno;
	return sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			    is_known ? sb_error_message(backend->problem) :
				       strerror(errno));
}

static uint64_t measure(struct sb_backend *backend, const struct sample *sample,
			struct sb_error *err)
{
	char label[] = "[the cost of a hit]";
	struct sb_target target = sample_target(sample, label);
	void (*function)(void) = sample_function(sample);
	uint64_t without = time_calls(function), with;
	size_t failed;

	if (sample_add(backend, &target, err))
		return 0;
	with = time_calls(function);
	backend->ops->remove(backend, &target.id, 1, &failed);
	return with > without ? with - without : 1;
}

uint64_t sb_session_hit_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
				struct sb_error *err)
{
	uint64_t *known = &session->hit_cost_ns[kind == SB_HIT_STEPPED];
	struct sample sample;

	if (*known && (kind == SB_HIT_EMULATED || kind == SB_HIT_STEPPED))
		return *known;
	if (sample_open(&sample, kind, err)) {
		sample_close(&sample);
		return 0;
	}
	*known = measure(session->backend, &sample, err);
	sample_close(&sample);
	return *known;
}

/* ------------------------------------------------------------ both ends of calls */

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Sums over the delays of a target. */
struct delays {
	uint64_t requested_ns, delivered_ns;
};

static struct delays read_delays(struct sb_backend *backend, int fd, uint64_t id)
{
	struct sb_target_list *list = calloc(1, sizeof(*list));
	const struct sb_target_info *info = NULL;
	struct delays delays = { 0 };

	if (list && !backend->ops->list(backend, SB_LIST_SESSION, fd, list))
		info = sb_target_list_find(list, id);
	if (info)
		delays = (struct delays){ info->counters[SB_COUNTER_REQUESTED_NS],
					  info->counters[SB_COUNTER_DELIVERED_NS] };
	sb_target_list_free(list);
	return delays;
}

/* The costs of both ends of a call, as the session keeps them. */
struct call_cost {
	uint64_t cost_ns, timed_ns, over_ns;
};

/*
 * Measure calls of a function that does nothing: their duration as the backend sees it
 * (timed_ns), and what a delay costs beyond its length (over_ns).
 */
static int measure_delayed(struct sb_backend *backend, const struct sample *sample,
			   uint64_t id, uint64_t undelayed_ns, struct call_cost *cost)
{
	/* The delay is 100% of the duration: the sum of the delays is that of the durations. */
	struct sb_change change = { .id = id,
				    .mask = SB_UPDATE_DELAY,
				    .delay_ppm = 1000000 };
	void (*function)(void) = sample_function(sample);
	struct delays before, after;
	uint64_t timed[ROUNDS];
	int64_t least = INT64_MAX;
	size_t failed;

	if (backend->ops->update(backend, &change, 1, &failed))
		return -1;
	before = read_delays(backend, sample->fd, id);
	for (int i = 0; i < ROUNDS; i++) {
		uint64_t start = sb_spin_ticks();
		int64_t took, over;

		for (int k = 0; k < CALLS; k++)
			function();
		took = (int64_t)sb_spin_ticks_to_ns(sb_spin_ticks() - start);
		after = read_delays(backend, sample->fd, id);
		timed[i] = (after.requested_ns - before.requested_ns) / CALLS;
		over = (took - (int64_t)(after.delivered_ns - before.delivered_ns)) /
			       CALLS -
		       (int64_t)undelayed_ns;
		least = over < least ? over : least;
		before = after;
	}
	qsort(timed, ROUNDS, sizeof(timed[0]), by_value);
	cost->timed_ns = timed[ROUNDS / 4];
	cost->over_ns = least > 0 ? (uint64_t)least : 0;
	return 0;
}

/* The cost is 0 if it can't be measured. */
static struct call_cost measure_call(struct sb_backend *backend,
				     const struct sample *sample, struct sb_error *err)
{
	char label[] = "[the cost of a call]";
	struct sb_target target = sample_target(sample, label);
	void (*function)(void) = sample_function(sample);
	uint64_t without = time_calls(function), with;
	struct call_cost cost = { 0 };
	size_t failed;

	/* So little that the delay is 0. */
	target.options.delay_ppm = 1;
	if (sample_add(backend, &target, err))
		return cost;
	with = time_calls(function);
	if (measure_delayed(backend, sample, target.id, with, &cost))
		sb_error_set(err, errno, "the cost of a hit can't be measured: %s",
			     strerror(errno));
	else
		cost.cost_ns = with > without ? with - without : 1;
	backend->ops->remove(backend, &target.id, 1, &failed);
	return cost;
}

uint64_t sb_session_call_cost_ns(struct sb_session *session, enum sb_hit_kind kind,
				 struct sb_error *err)
{
	bool stepped = kind == SB_HIT_STEPPED;
	struct call_cost cost = { 0 };
	struct sample sample;

	if (!(session->backend->limits.features & SB_FEATURE_PART)) {
		sb_error_set(err, EOPNOTSUPP,
			     "the backend (%s) does not see the ends of calls",
			     session->backend->ops->name);
		return 0;
	}
	if (session->call_cost_ns[stepped] && (kind == SB_HIT_EMULATED || stepped))
		return session->call_cost_ns[stepped];
	if (!sample_open(&sample, kind, err))
		cost = measure_call(session->backend, &sample, err);
	sample_close(&sample);
	session->call_timed_ns[stepped] = cost.timed_ns;
	session->call_over_ns[stepped] = cost.over_ns;
	session->call_cost_ns[stepped] = cost.cost_ns;
	return cost.cost_ns;
}
