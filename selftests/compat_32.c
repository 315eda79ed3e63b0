// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * A 32-bit program uses the device of a 64-bit kernel for a function of its own. It is
 * built without a C library, because build machines often have none for 32 bits.
 */
#include <asm/unistd.h>
#include <linux/fcntl.h>
#include <linux/mman.h>
#include <linux/speed_bump.h>

#include "layout.h"

#define CALLS		40
#define DELAY_NS	100000
#define ARRAY_COUNT(array)	(sizeof(array) / sizeof((array)[0]))

static long syscall3(long number, long a, long b, long c)
{
	long ret;

	asm volatile("int $0x80" : "=a"(ret) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
	return ret;
}

/*
 * The compiler emits calls of these for large objects, and there is no libc. gcc 16 does
 * so at -O0.
 */
void *memset(void *to, int byte, __SIZE_TYPE__ size);
void *memcpy(void *to, const void *from, __SIZE_TYPE__ size);

void *memset(void *to, int byte, __SIZE_TYPE__ size)
{
	char *at = to;

	while (size--)
		*at++ = byte;
	return to;
}

void *memcpy(void *to, const void *from, __SIZE_TYPE__ size)
{
	char *at = to;
	const char *in = from;

	while (size--)
		*at++ = *in++;
	return to;
}

static void print(const char *text)
{
	long length = 0;

	while (text[length])
		length++;
	syscall3(__NR_write, 1, (long)text, length);
}

static void print_number(unsigned long number)
{
	char digits[12] = { 0 };
	int at = 11;

	do {
		digits[--at] = '0' + number % 10;
		number /= 10;
	} while (number);
	print(digits + at);
}

static int tests, failures;

static void report(const char *name, int passed)
{
	print(passed ? "ok " : "not ok ");
	print_number(++tests);
	print(" compat_32.");
	print(name);
	print("\n");
	failures += !passed;
}

static long batch(long dev, unsigned long cmd, void *entries, unsigned int entry_size)
{
	struct speed_bump_batch arg = {
		.entries = (unsigned long)entries,
		.count = 1,
		.entry_size = entry_size,
	};

	return syscall3(__NR_ioctl, dev, cmd, (long)&arg);
}

/* Not inlined: this is built without optimisation. */
static int function(int n)
{
	return n + 1;
}

static unsigned long function_offset(void)
{
	unsigned long start;

	asm("movl $__executable_start, %0" : "=r"(start));
	return (unsigned long)&function - start;
}

static int layout_is_that_of_64_bits(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_COUNT(layout_facts); i++) {
		if (layout_facts[i].is == layout_facts[i].should_be)
			continue;
		print("# ");
		print(layout_facts[i].what);
		print("\n");
		return 0;
	}
	return 1;
}

static int query_works(long dev)
{
	struct speed_bump_query query = { 0 };

	return !syscall3(__NR_ioctl, dev, SPEED_BUMP_IOC_QUERY, (long)&query) &&
	       query.max_delay_ns == SPEED_BUMP_MAX_DELAY_NS &&
	       query.max_batch == SPEED_BUMP_MAX_BATCH;
}

static int pointer_above_32_bits_is_refused(long dev)
{
	struct speed_bump_batch arg = {
		.entries = (1ULL << 40) + (unsigned long)&arg,
		.count = 1,
		.entry_size = sizeof(struct speed_bump_remove),
	};

	return syscall3(__NR_ioctl, dev, SPEED_BUMP_IOC_REMOVE, (long)&arg) < 0;
}

static int target_counts_and_delays(long dev, struct speed_bump_target *target)
{
	struct speed_bump_stats stats = { 0 };
	int n = 0;

	if (batch(dev, SPEED_BUMP_IOC_ADD, target, sizeof(*target)))
		return 0;
	while (n < CALLS)
		n = function(n);
	stats.id = target->id;
	return !batch(dev, SPEED_BUMP_IOC_STATS, &stats, sizeof(stats)) &&
	       stats.hits == CALLS && stats.delayed == CALLS &&
	       stats.requested_ns == CALLS * (__u64)DELAY_NS &&
	       stats.measured_ns >= stats.requested_ns;
}

static int list_gives_it_back(long dev, const struct speed_bump_target *target)
{
	struct speed_bump_info info = { 0 };
	char text[8] = { 0 };
	struct speed_bump_list list = {
		.entries = (unsigned long)&info,
		.text = (unsigned long)text,
		.count = 1,
		.entry_size = sizeof(info),
		.text_size = sizeof(text),
		.flags = SPEED_BUMP_LIST_SESSION,
	};

	return !syscall3(__NR_ioctl, dev, SPEED_BUMP_IOC_LIST, (long)&list) &&
	       list.count == 1 && info.id == target->id && info.offset == target->offset &&
	       info.label_len == 2 && text[0] == '3' && text[1] == '2';
}

static int update_and_remove_work(long dev, const struct speed_bump_target *target)
{
	struct speed_bump_update update = {
		.id = target->id, .mask = SPEED_BUMP_UPDATE_DELAY, .delay_ns = 5,
	};
	struct speed_bump_remove entry = { .id = target->id };

	return !batch(dev, SPEED_BUMP_IOC_UPDATE, &update, sizeof(update)) &&
	       !batch(dev, SPEED_BUMP_IOC_REMOVE, &entry, sizeof(entry)) &&
	       function(1) == 2;
}

/* A 32-bit function counts in the memory that its program has mapped. */
static int plan_counts_and_delays(long dev, struct speed_bump_target *target)
{
	struct speed_bump_plan_request request = {
		.ids = (unsigned long)&target->id, .count = 1,
		.units = (unsigned long)&target->id, .unit_count = 1,
	};
	unsigned long map[6] = { 0, 0, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0 };
	struct speed_bump_plan_target *to;
	struct speed_bump_cell *cell;
	struct speed_bump_plan *head;
	int n = 0;
	long at;

	if (batch(dev, SPEED_BUMP_IOC_ADD, target, sizeof(*target)) ||
	    syscall3(__NR_ioctl, dev, SPEED_BUMP_IOC_PLAN, (long)&request))
		return 0;
	map[1] = request.size;
	map[4] = request.fd;
	/* The old mmap takes its arguments from memory. */
	at = syscall3(__NR_mmap, (long)map, 0, 0);
	if (at < 0 && at > -4096)
		return 0;
	head = (struct speed_bump_plan *)at;
	to = (struct speed_bump_plan_target *)(at + head->target);
	cell = (struct speed_bump_cell *)(at + head->cells);
	*(__u64 *)(at + head->schedule) = SPEED_BUMP_PLAN_ENTRY(0ULL, 2, 1ULL << 40);
	to->arm = 40;
	to->delay_ns[2] = DELAY_NS;
	head->lease_ns = -1;
	while (n < CALLS)
		n = function(n);
	return cell->calls == CALLS && cell->delivered >= CALLS * (__u64)DELAY_NS &&
	       head->units == CALLS && head->number == 0;
}

void _start(void);

void __attribute__((force_align_arg_pointer)) _start(void)
{
	long dev = syscall3(__NR_open, (long)"/dev/" SPEED_BUMP_DEVICE_NAME, O_RDWR, 0);
	struct speed_bump_target target = {
		.offset = function_offset(),
		.delay_ns = DELAY_NS,
		.label = (unsigned long)"32",
		.label_len = 2,
		.fd = syscall3(__NR_open, (long)"/proc/self/exe", O_RDONLY, 0),
		.scope = SPEED_BUMP_SCOPE_TREE,
		.scope_id = syscall3(__NR_getpid, 0, 0, 0),
	};

	print("TAP version 13\n");
	if (dev < 0) {
		print("1..0 # SKIP /dev/" SPEED_BUMP_DEVICE_NAME " can't be opened\n");
		syscall3(__NR_exit, 4, 0, 0);
	}
	print("1..7\n");
	report("layout_is_that_of_64_bits", layout_is_that_of_64_bits());
	report("query_works", query_works(dev));
	report("pointer_above_32_bits_is_refused", pointer_above_32_bits_is_refused(dev));
	report("target_counts_and_delays", target_counts_and_delays(dev, &target));
	report("list_gives_it_back", list_gives_it_back(dev, &target));
	report("update_and_remove_work", update_and_remove_work(dev, &target));
	report("plan_counts_and_delays", plan_counts_and_delays(dev, &target));
	syscall3(__NR_exit, !!failures, 0, 0);
	__builtin_unreachable();
}
