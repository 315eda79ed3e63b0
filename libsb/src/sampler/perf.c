// SPDX-License-Identifier: MIT
/*
 * The kernel's events of the sampler, perf_event_open(2). At each tick of a clock on
 * every CPU, the stack of the current thread is sampled. An event of each thread, which
 * is inherited by the threads that it creates, reports when the thread leaves its CPU and
 * returns, and samples the stack when it leaves. If that is too frequent, an event of
 * every CPU does so at every Nth switch. Events with a period are per CPU and not per
 * thread, because an inherited event counts from 0: threads shorter than a period would
 * never be seen. All events of a CPU use one ring.
 *
 * It is one object, struct recorder: how events are opened decides what is in their records.
 * Hence the length.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "array.h"
#include "error.h"
#include "free.h"
#include "sampler/sampler.h"
#include "spin.h"

#define STACK_BYTES 16384 /* sampled part of each stack; a record is below 64 KiB */
#define RING_BYTES  (4U << 20)
#define MIN_RING    (256U << 10)
#define ALL_RINGS   (256U << 20)
#define BLOCK_BYTES (1U << 20)

#if defined(__x86_64__)
#include <asm/perf_regs.h>
/* By DWARF's numbers: rax rdx rcx rbx rsi rdi rbp rsp r8 ... r15 rip. */
static const unsigned int perf_register[SAMPLER_REGISTERS] = {
	PERF_REG_X86_AX,  PERF_REG_X86_DX,  PERF_REG_X86_CX,  PERF_REG_X86_BX,
	PERF_REG_X86_SI,  PERF_REG_X86_DI,  PERF_REG_X86_BP,  PERF_REG_X86_SP,
	PERF_REG_X86_R8,  PERF_REG_X86_R9,  PERF_REG_X86_R10, PERF_REG_X86_R11,
	PERF_REG_X86_R12, PERF_REG_X86_R13, PERF_REG_X86_R14, PERF_REG_X86_R15,
	PERF_REG_X86_IP,
};
#elif defined(__aarch64__)
/* x0 ... x29, lr, sp, pc: perf's and DWARF's numbers agree. */
static const unsigned int perf_register[SAMPLER_REGISTERS] = {
	0,  1,	2,  3,	4,  5,	6,  7,	8,  9,	10, 11, 12, 13, 14, 15, 16,
	17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32,
};
#endif

uint64_t sb_recorder_most_bytes = UINT64_C(256) << 20;

struct ring {
	int fd, switches; /* the CPU's clock, and the switch event; -1: the CPU is offline */
	unsigned char *data;
	struct perf_event_mmap_page *control;
	uint64_t size, seen, forks_seen;
};

/* The source of a record: an event of a CPU, which samples, or one of a thread. */
struct source {
	uint64_t id;
	int fd;
	pid_t tid; /* 0: a CPU's */
	enum event_kind kind; /* of its samples */
};

struct block {
	struct block *next;
	size_t used, size;
	unsigned char bytes[] __attribute__((aligned(8)));
};

struct recorder {
	struct ring *rings;
	struct pollfd *polled;
	int cpus;
	uint64_t period_ns, every;
	unsigned int seed;

	struct source *sources;
	size_t source_count, source_room;
	bool sources_sorted;

	unsigned char *known; /* a bit for each process number */
	pid_t pid_max;

	struct event *events;
	size_t event_count, event_room;
	struct block *blocks;
	uint64_t kept, lost, read_ns;
	bool full;
	/* A record that wraps around the end of its ring. */
	unsigned char whole[65536] __attribute__((aligned(8)));
};

/* ---------------------------------------------------------------- the events */

static int open_event(struct perf_event_attr *attr, pid_t tid, int cpu)
{
	return (int)syscall(SYS_perf_event_open, attr, tid, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

static struct perf_event_attr plain_attr(uint64_t config)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = config,
		.sample_type = PERF_SAMPLE_IDENTIFIER | PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
		.sample_id_all = 1,
		.use_clockid = 1,
		.clockid = CLOCK_MONOTONIC,
		.watermark = 1,
		.wakeup_watermark = MIN_RING / 4,
		.exclude_hv = 1,
	};

	return attr;
}

static uint64_t register_mask(void)
{
	uint64_t mask = 0;

	for (int i = 0; i < SAMPLER_REGISTERS; i++)
		mask |= UINT64_C(1) << perf_register[i];
	return mask;
}

static struct perf_event_attr sampling_attr(uint64_t config, uint64_t period)
{
	struct perf_event_attr attr = plain_attr(config);

	attr.sample_type |= PERF_SAMPLE_REGS_USER | PERF_SAMPLE_STACK_USER;
	attr.sample_regs_user = register_mask();
	attr.sample_stack_user = STACK_BYTES;
	attr.sample_period = period;
	attr.exclude_idle = 1;
	return attr;
}

static int paranoia(void)
{
	FILE *file = fopen("/proc/sys/kernel/perf_event_paranoid", "re");
	int level = -2;

	if (file) {
		if (fscanf(file, "%d", &level) != 1)
			level = -2;
		fclose(file);
	}
	return level;
}

static int refused(struct sb_error *err, int code)
{
	if (code == EACCES || code == EPERM)
		return sb_error_set(
			err, code,
			"the kernel refuses perf events (kernel.perf_event_paranoid is "
			"%d): run as root or with CAP_PERFMON, which some kernels "
			"take only where that is at most 2; in a container "
			"perf_event_open(2) must be allowed",
			paranoia());
	if (code == ENOSYS || code == ENOENT || code == EOPNOTSUPP)
		return sb_error_set(err, code,
				    "this kernel has no perf events (CONFIG_PERF_EVENTS)");
	if (code == EMFILE || code == ENFILE)
		return sb_error_set(err, code,
				    "too many threads for the open files that are allowed: "
				    "raise 'ulimit -n'");
	return sb_error_set(err, code, "perf_event_open: %s", strerror(code));
}

static int add_source(struct recorder *recorder, int fd, pid_t tid, enum event_kind kind)
{
	struct source source = { .fd = fd, .tid = tid, .kind = kind };
	struct source *sources = sb_array_grow(recorder->sources, &recorder->source_room,
					       recorder->source_count + 1,
					       sizeof(*sources));

	if (!sources)
		return -1;
	recorder->sources = sources;
	if (ioctl(fd, PERF_EVENT_IOC_ID, &source.id))
		return -1;
	recorder->sources[recorder->source_count++] = source;
	recorder->sources_sorted = false;
	return 0;
}

static void unmap_ring(struct ring *ring)
{
	if (ring->control)
		munmap(ring->control, (size_t)sysconf(_SC_PAGESIZE) + ring->size);
	ring->control = NULL;
}

static int map_ring(struct ring *ring, uint64_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *memory =
		mmap(NULL, page + size, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, 0);

	if (memory == MAP_FAILED)
		return -1;
	ring->control = memory;
	ring->data = (unsigned char *)memory + page;
	ring->size = size;
	return 0;
}

/*
 * The largest size that may be locked, found by halving. All rings have the same size,
 * because otherwise some would have none.
 */
static int map_rings(struct recorder *recorder)
{
	uint64_t size = RING_BYTES;
	int cpu, code;

	while (size > MIN_RING && size * (uint64_t)recorder->cpus > ALL_RINGS)
		size /= 2;
	for (;; size /= 2) {
		for (cpu = 0; cpu < recorder->cpus; cpu++)
			if (recorder->rings[cpu].fd >= 0 &&
			    map_ring(&recorder->rings[cpu], size))
				break;
		if (cpu == recorder->cpus)
			return 0;
		code = errno;
		while (cpu--)
			unmap_ring(&recorder->rings[cpu]);
		errno = code;
		if (size <= MIN_RING || (code != EPERM && code != ENOMEM))
			return -1;
	}
}

/* 1; 0: the CPU is offline; -1. Open events are closed with the recorder. */
static int open_clock(struct recorder *recorder, int cpu)
{
	struct perf_event_attr clock =
		sampling_attr(PERF_COUNT_SW_CPU_CLOCK, recorder->period_ns);
	struct ring *ring = &recorder->rings[cpu];

	ring->fd = open_event(&clock, -1, cpu);
	if (ring->fd < 0)
		return errno == ENODEV ? 0 : -1;
	recorder->polled[cpu] = (struct pollfd){ .fd = ring->fd, .events = POLLIN };
	return add_source(recorder, ring->fd, 0, EVENT_CLOCK) ? -1 : 1;
}

/* Write into the ring of the CPU's clock. */
static int open_switches(struct recorder *recorder, int cpu)
{
	struct perf_event_attr switches =
		sampling_attr(PERF_COUNT_SW_CONTEXT_SWITCHES, recorder->every);
	struct ring *ring = &recorder->rings[cpu];

	if (!recorder->every || ring->fd < 0)
		return 0;
	ring->switches = open_event(&switches, -1, cpu);
	if (ring->switches < 0 ||
	    ioctl(ring->switches, PERF_EVENT_IOC_SET_OUTPUT, ring->fd))
		return -1;
	return add_source(recorder, ring->switches, 0, EVENT_OUT_SAMPLE);
}

/* -1 with errno and a message. */
static int open_cpus(struct recorder *recorder, struct sb_error *err)
{
	int opened = 0, result;

	for (int cpu = 0; cpu < recorder->cpus; cpu++) {
		result = open_clock(recorder, cpu);
		if (result < 0)
			return refused(err, errno);
		opened += result;
	}
	if (!opened)
		return refused(err, ENOENT);
	if (map_rings(recorder)) {
		if (errno == EPERM)
			return sb_error_set(err, EPERM,
					    "too little memory may be locked for the "
					    "buffers of perf events: raise "
					    "kernel.perf_event_mlock_kb or 'ulimit -l'");
		return refused(err, errno);
	}
	for (int cpu = 0; cpu < recorder->cpus; cpu++)
		if (open_switches(recorder, cpu))
			return refused(err, errno);
	return 0;
}

static pid_t read_pid_max(void)
{
	FILE *file = fopen("/proc/sys/kernel/pid_max", "re");
	int most = 4194304;

	if (file) {
		if (fscanf(file, "%d", &most) != 1 || most <= 0)
			most = 4194304;
		fclose(file);
	}
	return most;
}

struct recorder *sb_recorder_open(uint64_t period_ns, uint64_t every, struct sb_error *err)
{
	struct recorder *recorder = calloc(1, sizeof(*recorder));
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	int code;

	if (recorder) {
		recorder->cpus = cpus > 0 ? (int)cpus : 1;
		recorder->period_ns = period_ns;
		recorder->every = every;
		recorder->seed = (unsigned int)sb_clock_gettime();
		recorder->pid_max = read_pid_max();
		recorder->known = calloc((size_t)recorder->pid_max / 8 + 1, 1);
		recorder->rings = calloc((size_t)recorder->cpus, sizeof(struct ring));
		recorder->polled = calloc((size_t)recorder->cpus, sizeof(struct pollfd));
	}
	if (!recorder || !recorder->known || !recorder->rings || !recorder->polled) {
		sb_recorder_close(recorder);
		sb_error_set(err, ENOMEM, "%s", strerror(ENOMEM));
		return NULL;
	}
	for (int cpu = 0; cpu < recorder->cpus; cpu++)
		recorder->rings[cpu].fd = recorder->rings[cpu].switches =
			recorder->polled[cpu].fd = -1;
	if (!open_cpus(recorder, err))
		return recorder;
	code = errno;
	sb_recorder_close(recorder);
	errno = code;
	return NULL;
}

void sb_recorder_close(struct recorder *recorder)
{
	struct block *block;

	if (!recorder)
		return;
	for (int cpu = 0; recorder->rings && cpu < recorder->cpus; cpu++) {
		struct ring *ring = &recorder->rings[cpu];

		unmap_ring(ring);
		if (ring->switches >= 0)
			close(ring->switches);
		if (ring->fd >= 0)
			close(ring->fd);
	}
	for (size_t i = 0; i < recorder->source_count; i++)
		if (recorder->sources[i].tid)
			close(recorder->sources[i].fd);
	while ((block = recorder->blocks)) {
		recorder->blocks = block->next;
		sb_free(block);
	}
	sb_free(recorder->events);
	sb_free(recorder->sources);
	sb_free(recorder->known);
	sb_free(recorder->polled);
	sb_free(recorder->rings);
	sb_free(recorder);
}

int sb_recorder_attach(struct recorder *recorder, pid_t tid, struct sb_error *err)
{
	struct perf_event_attr attr =
		recorder->every ? plain_attr(PERF_COUNT_SW_DUMMY) :
				  sampling_attr(PERF_COUNT_SW_CONTEXT_SWITCHES, 1);

	attr.inherit = 1;
	attr.context_switch = 1;
	attr.task = 1;
	attr.mmap = 1;
	attr.mmap2 = 1;
	attr.comm = 1;
	attr.comm_exec = 1;
	for (int cpu = 0; cpu < recorder->cpus; cpu++) {
		int fd, code;

		if (recorder->rings[cpu].fd < 0)
			continue;
		fd = open_event(&attr, tid, cpu);
		if (fd < 0 && errno == ESRCH)
			return 0; /* if an earlier one was opened, it is disabled now */
		if (fd >= 0 &&
		    !ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, recorder->rings[cpu].fd) &&
		    !add_source(recorder, fd, tid, EVENT_OUT_SAMPLE))
			continue;
		code = errno;
		if (fd >= 0)
			close(fd);
		return refused(err, code);
	}
	return 1;
}

void sb_recorder_know(struct recorder *recorder, pid_t pid)
{
	if (pid > 0 && pid <= recorder->pid_max)
		recorder->known[pid / 8] |= (unsigned char)(1U << (pid % 8));
}

bool sb_recorder_knows(const struct recorder *recorder, pid_t pid)
{
	return pid > 0 && pid <= recorder->pid_max &&
	       recorder->known[pid / 8] >> (pid % 8) & 1;
}

/* From half of it to one and a half times it. */
static uint64_t about(struct recorder *recorder, uint64_t number)
{
	return number / 2 + (uint64_t)rand_r(&recorder->seed) % number + 1;
}

void sb_recorder_jitter(struct recorder *recorder)
{
	for (int cpu = 0; cpu < recorder->cpus; cpu++) {
		uint64_t period = about(recorder, recorder->period_ns);
		uint64_t every = about(recorder, recorder->every + !recorder->every);

		if (recorder->rings[cpu].fd < 0)
			continue;
		ioctl(recorder->rings[cpu].fd, PERF_EVENT_IOC_PERIOD, &period);
		if (recorder->rings[cpu].switches >= 0)
			ioctl(recorder->rings[cpu].switches, PERF_EVENT_IOC_PERIOD,
			      &every);
	}
}

/* --------------------------------------------------------------- what they say */

/* Memory until the recorder is closed; NULL: the limit is reached, or no memory. */
static void *keep(struct recorder *recorder, size_t size)
{
	struct block *block = recorder->blocks;
	void *place;

	size = (size + 7) & ~(size_t)7;
	if (recorder->kept + size > sb_recorder_most_bytes) {
		recorder->full = true;
		return NULL;
	}
	if (!block || block->size - block->used < size) {
		block = malloc(sizeof(*block) + BLOCK_BYTES);
		if (!block) {
			recorder->full = true;
			return NULL;
		}
		block->used = 0;
		block->size = BLOCK_BYTES;
		block->next = recorder->blocks;
		recorder->blocks = block;
	}
	place = block->bytes + block->used;
	block->used += size;
	recorder->kept += size;
	return place;
}

static int compare_sources(const void *a, const void *b)
{
	const struct source *x = a, *y = b;

	return (x->id > y->id) - (x->id < y->id);
}

static const struct source *source_of(struct recorder *recorder, uint64_t id)
{
	struct source key = { .id = id };

	if (!recorder->sources_sorted)
		qsort(recorder->sources, recorder->source_count, sizeof(key),
		      compare_sources);
	recorder->sources_sorted = true;
	return bsearch(&key, recorder->sources, recorder->source_count, sizeof(key),
		       compare_sources);
}

static struct event *new_event(struct recorder *recorder)
{
	if (recorder->event_count == recorder->event_room) {
		size_t room = recorder->event_room ? 2 * recorder->event_room : 1024;
		struct event *larger = NULL;

		if (room * sizeof(*larger) <= sb_recorder_most_bytes)
			larger = realloc(recorder->events, room * sizeof(*larger));
		if (!larger) {
			recorder->full = true;
			return NULL;
		}
		recorder->events = larger;
		recorder->event_room = room;
	}
	return &recorder->events[recorder->event_count];
}

/* Read consecutive numbers of a record, up to its end. */
struct reader {
	const unsigned char *at, *end;
};

static uint64_t next_word(struct reader *reader)
{
	uint64_t word = 0;

	if ((size_t)(reader->end - reader->at) >= sizeof(word)) {
		memcpy(&word, reader->at, sizeof(word));
		reader->at += sizeof(word);
	} else {
		reader->at = reader->end;
	}
	return word;
}

static uint32_t next_half(struct reader *reader)
{
	uint32_t half = 0;

	if ((size_t)(reader->end - reader->at) >= sizeof(half)) {
		memcpy(&half, reader->at, sizeof(half));
		reader->at += sizeof(half);
	}
	return half;
}

/* Copy it to @found; NULL if there is none. False: no memory. */
static bool read_stack(struct recorder *recorder, struct reader *reader,
		       struct stack **found)
{
	uint64_t perf[64] = { 0 }, mask = register_mask();
	const unsigned char *bytes;
	uint64_t taken, used = 0;
	struct stack *stack;

	*found = NULL;
	if (next_word(reader) != PERF_SAMPLE_REGS_ABI_64)
		return true; /* it has none any more because it is exiting */
	for (unsigned int i = 0; i < 64; i++)
		if (mask >> i & 1)
			perf[i] = next_word(reader);
	taken = next_word(reader);
	bytes = reader->at;
	if (taken && taken <= (uint64_t)(reader->end - reader->at)) {
		reader->at += taken;
		used = next_word(reader);
	}
	if (used > taken)
		used = 0;
	stack = keep(recorder, sizeof(*stack) + used);
	if (!stack) {
		recorder->lost++;
		return false;
	}
	for (int i = 0; i < SAMPLER_REGISTERS; i++)
		stack->registers[i] = perf[perf_register[i]];
	stack->partial = false;
	stack->size = (uint32_t)used;
	memcpy(stack->bytes, bytes, used);
	*found = stack;
	return true;
}

static struct mapping *read_mapping(struct recorder *recorder, struct reader *reader)
{
	uint64_t address, length, offset;
	struct mapping *mapping;
	const char *path;
	size_t size;

	address = next_word(reader);
	length = next_word(reader);
	offset = next_word(reader);
	for (int i = 0; i < 4; i++)
		next_word(reader); /* device, inode, its generation, protection */
	path = (const char *)reader->at;
	size = strnlen(path, (size_t)(reader->end - reader->at));
	mapping = keep(recorder, sizeof(*mapping) + size + 1);
	if (!mapping)
		return NULL;
	*mapping = (struct mapping){ address, address + length, offset };
	memcpy(mapping->path, path, size);
	mapping->path[size] = '\0';
	return mapping;
}

/* Decode into @event; false: the record is irrelevant. */
static bool read_sample(struct recorder *recorder, struct reader reader,
			struct event *event)
{
	const struct source *source = source_of(recorder, next_word(&reader));

	event->pid = (pid_t)next_half(&reader);
	event->tid = (pid_t)next_half(&reader);
	event->time_ns = next_word(&reader);
	if (!source || !sb_recorder_knows(recorder, event->pid))
		return false;
	event->source = source->tid ? source->tid : event->tid;
	event->kind = source->kind;
	return read_stack(recorder, &reader, &event->stack);
}

static bool read_record(struct recorder *recorder, const struct perf_event_header *header,
			struct event *event)
{
	const unsigned char *end = (const unsigned char *)header + header->size;
	struct reader reader = { (const unsigned char *)(header + 1), end };
	struct reader last = { end - 24, end };
	const struct source *source;

	if (header->type == PERF_RECORD_LOST) {
		next_word(&reader);
		recorder->lost += next_word(&reader);
		return false;
	}
	if (header->type == PERF_RECORD_SAMPLE)
		return read_sample(recorder, reader, event);
	if (header->size < sizeof(*header) + 24)
		return false;
	event->pid = (pid_t)next_half(&last);
	event->tid = (pid_t)next_half(&last);
	event->time_ns = next_word(&last);
	source = source_of(recorder, next_word(&last));
	if (!source)
		return false;
	event->source = source->tid;
	switch (header->type) {
	case PERF_RECORD_SWITCH:
		event->kind = header->misc & PERF_RECORD_MISC_SWITCH_OUT ? EVENT_OUT :
									   EVENT_IN;
		event->preempted = header->misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT;
		return true;
	case PERF_RECORD_FORK:
	case PERF_RECORD_EXIT:
		event->kind = header->type == PERF_RECORD_FORK ? EVENT_FORK : EVENT_EXIT;
		event->pid = (pid_t)next_half(&reader);
		event->parent = (pid_t)next_half(&reader);
		event->tid = (pid_t)next_half(&reader);
		return true;
	case PERF_RECORD_COMM:
		event->kind = EVENT_EXEC;
		return header->misc & PERF_RECORD_MISC_COMM_EXEC;
	case PERF_RECORD_MMAP2:
		event->kind = EVENT_MAP;
		next_word(&reader); /* process and thread */
		event->mapping = read_mapping(recorder, &reader);
		return event->mapping;
	default:
		return false;
	}
}

/* The record at @position; one that wraps around is copied. */
static const struct perf_event_header *
record_at(struct recorder *recorder, const struct ring *ring, uint64_t position)
{
	uint64_t at = position & (ring->size - 1);
	const struct perf_event_header *header = (const void *)(ring->data + at);
	uint64_t first = ring->size - at;

	if (header->size <= first)
		return header;
	memcpy(recorder->whole, ring->data + at, first);
	memcpy(recorder->whole + first, ring->data, header->size - first);
	return (const void *)recorder->whole;
}

/* A fork is processed before anything that the new thread's CPU reports about it. */
static void look_for_forks(struct recorder *recorder, struct ring *ring, uint64_t head)
{
	while (ring->forks_seen < head) {
		const struct perf_event_header *header =
			record_at(recorder, ring, ring->forks_seen);

		if (header->size < sizeof(*header))
			return;
		if (header->type == PERF_RECORD_FORK) {
			pid_t pid;

			memcpy(&pid, header + 1, sizeof(pid));
			sb_recorder_know(recorder, pid);
		}
		ring->forks_seen += header->size;
	}
}

static int take_records(struct recorder *recorder, struct ring *ring, uint64_t head)
{
	while (ring->seen < head) {
		const struct perf_event_header *header =
			record_at(recorder, ring, ring->seen);
		struct event *event = new_event(recorder);

		if (header->size < sizeof(*header))
			break;
		if (!event)
			recorder->lost++;
		else if (read_record(recorder, header, event))
			recorder->event_count++;
		ring->seen += header->size;
	}
	__atomic_store_n(&ring->control->data_tail, ring->seen, __ATOMIC_RELEASE);
	return 0;
}

static uint64_t head_of(const struct ring *ring)
{
	return __atomic_load_n(&ring->control->data_head, __ATOMIC_ACQUIRE);
}

int sb_recorder_drain(struct recorder *recorder, int timeout_ms)
{
	uint64_t *heads = calloc((size_t)recorder->cpus, sizeof(*heads));

	if (!heads)
		return -1;
	poll(recorder->polled, (nfds_t)recorder->cpus, timeout_ms);
	recorder->read_ns = sb_clock_gettime();
	/* First search all rings for forks that have not been processed. */
	for (int cpu = 0; cpu < recorder->cpus; cpu++)
		if (recorder->rings[cpu].fd >= 0)
			heads[cpu] = head_of(&recorder->rings[cpu]);
	for (int cpu = 0; cpu < recorder->cpus; cpu++)
		if (recorder->rings[cpu].fd >= 0)
			look_for_forks(recorder, &recorder->rings[cpu],
				       head_of(&recorder->rings[cpu]));
	for (int cpu = 0; cpu < recorder->cpus; cpu++)
		if (recorder->rings[cpu].fd >= 0)
			take_records(recorder, &recorder->rings[cpu], heads[cpu]);
	sb_free(heads);
	return 0;
}

static int compare_events(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	if (x->time_ns != y->time_ns)
		return x->time_ns < y->time_ns ? -1 : 1;
	return (x->order > y->order) - (x->order < y->order);
}

struct event *sb_recorder_sort(struct recorder *recorder, size_t *count)
{
	for (size_t i = 0; i < recorder->event_count; i++)
		recorder->events[i].order = i;
	qsort(recorder->events, recorder->event_count, sizeof(struct event),
	      compare_events);
	*count = recorder->event_count;
	return recorder->events;
}

bool sb_recorder_is_full(const struct recorder *recorder)
{
	return recorder->full;
}

uint64_t sb_recorder_read_ns(const struct recorder *recorder)
{
	return recorder->read_ns;
}

uint64_t sb_recorder_lost(const struct recorder *recorder)
{
	return recorder->lost;
}
