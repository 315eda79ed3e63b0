// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "site/plan.h"
#include "site/hit.h"
#include "site/run_delay.h"
#include "spin.h"

#define PAGE 4096U
/* Shorter times off the CPU are not worth a system call. */
#define UNEVENTFUL_NS 20000U

/* ------------------------------------------------------------------- memory */

static size_t schedule_offset(void)
{
	return PAGE;
}

static size_t ends_offset(void)
{
	return schedule_offset() + SPEED_BUMP_PLAN_SLOTS * sizeof(uint64_t);
}

size_t sb_plan_memory_size(void)
{
	size_t size =
		ends_offset() + SPEED_BUMP_PLAN_SLOTS * sizeof(struct speed_bump_slot);

	return (size + PAGE - 1) / PAGE * PAGE;
}

void sb_plan_memory_init(void *memory)
{
	struct speed_bump_plan *head = memory;

	head->size = sizeof(*head);
	head->schedule = (uint32_t)schedule_offset();
	head->ends = (uint32_t)ends_offset();
	atomic_store(&PLAN_WORD(head->changes), 1);
}

int sb_plan_view_open(struct plan_view *view, void *memory, size_t size)
{
	struct speed_bump_plan *head = memory;
	size_t schedule = SPEED_BUMP_PLAN_SLOTS * sizeof(uint64_t);
	size_t ends = SPEED_BUMP_PLAN_SLOTS * sizeof(struct speed_bump_slot);
	uint32_t schedule_at, ends_at;

	if (size < sizeof(*head) || head->size < sizeof(*head)) {
		errno = EINVAL;
		return -1;
	}
	/* Read once: another process may write there. */
	schedule_at = *(volatile uint32_t *)&head->schedule;
	ends_at = *(volatile uint32_t *)&head->ends;
	if (schedule_at % 8 || ends_at % 8 || schedule_at + schedule > size ||
	    ends_at + ends > size) {
		errno = EINVAL;
		return -1;
	}
	view->head = head;
	view->schedule = (void *)((char *)memory + schedule_at);
	view->ends = (void *)((char *)memory + ends_at);
	return 0;
}

/* fstat(2) gives no size for memory of the kernel; the head has it. */
static size_t size_in(const struct speed_bump_plan *head)
{
	size_t size = head->ends + SPEED_BUMP_PLAN_SLOTS * sizeof(struct speed_bump_slot);
	size_t cells = head->cells + (size_t)head->targets * SPEED_BUMP_PLAN_CELLS *
					     sizeof(struct speed_bump_cell);

	size = size < cells ? cells : size;
	return (size + PAGE - 1) / PAGE * PAGE;
}

int sb_plan_map(struct plan_view *view, int fd)
{
	struct speed_bump_plan *head;
	void *memory;
	size_t size;

	head = mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0);
	if (head == MAP_FAILED)
		return -1;
	size = size_in(head);
	munmap(head, PAGE);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -1;
	if (sb_plan_view_open(view, memory, size)) {
		munmap(memory, size);
		return -1;
	}
	view->size = size;
	return 0;
}

void sb_plan_view_close(struct plan_view *view)
{
	if (view->size)
		munmap(view->head, view->size);
	view->head = NULL;
	view->size = 0;
}

/* A descriptor sent by the peer of @fd; -1 with errno. */
static int receive_descriptor(int fd)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *part;
	int received;

	if (recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1)
		return -1;
	part = CMSG_FIRSTHDR(&message);
	if (!part || part->cmsg_type != SCM_RIGHTS) {
		errno = EPROTO;
		return -1;
	}
	memcpy(&received, CMSG_DATA(part), sizeof(received));
	return received;
}

int sb_plan_receive(struct plan_view *view, const char *path)
{
	const struct timeval patience = { .tv_sec = 2 };
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd, given = -1, failed = -1, saved;

	if (strlen(path) + sizeof(".plan") > sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(address.sun_path, path);
	strcat(address.sun_path, ".plan");
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	/* A tool that hangs must not make the program hang. */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	if (!connect(fd, (struct sockaddr *)&address, sizeof(address)))
		given = receive_descriptor(fd);
	if (given >= 0)
		failed = sb_plan_map(view, given);
	saved = errno;
	if (given >= 0)
		close(given);
	close(fd);
	errno = saved;
	return failed;
}

/* -------------------------------------------------------------------- units */

/* The thread's times when it last ended a slot. */
static _Thread_local struct {
	uint64_t clock_ns, cpu_ns, wait_ns;
	uint32_t tid, generation;
} reporter __attribute__((tls_model("initial-exec")));

void sb_plan_note_reporter(uint64_t now_ns, uint64_t *cpu, uint64_t *wait, uint32_t *tid)
{
	uint64_t cpu_ns = sb_clock_thread_cpu();
	uint32_t generation = load(&sb_site_generation);
	int saved = errno;

	if (!reporter.tid || reporter.generation != generation) {
		reporter.tid = (uint32_t)syscall(SYS_gettid);
		reporter.generation = generation;
		reporter.wait_ns = sb_run_delay_ns(cpu_ns);
	} else if (now_ns - reporter.clock_ns > cpu_ns - reporter.cpu_ns + UNEVENTFUL_NS) {
		reporter.wait_ns = sb_run_delay_ns(cpu_ns);
	}
	reporter.clock_ns = now_ns;
	reporter.cpu_ns = cpu_ns;
	*cpu = cpu_ns;
	*wait = reporter.wait_ns;
	*tid = reporter.tid;
	errno = saved;
}

static __attribute__((noinline)) uint64_t end_slot(struct plan_view *view, uint64_t units,
						   uint64_t now_ns, bool worked)
{
	struct speed_bump_plan *head = view->head;
	uint64_t number, cpu_ns = 0, wait_ns = 0;
	struct speed_bump_slot *end;
	uint32_t tid = 0;

	/* Threads that end slots at the same time end different ones. */
	number = atomic_fetch_add_explicit(&PLAN_WORD(head->number), 1,
					   memory_order_release);
	atomic_fetch_add_explicit(&PLAN_WORD(head->changes), 1, memory_order_release);
	end = &view->ends[number % SPEED_BUMP_PLAN_SLOTS];
	atomic_store_explicit(&PLAN_WORD(end->tag), 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	end->end_ns = now_ns;
	end->units = units;
	if (worked)
		sb_plan_note_reporter(now_ns, &cpu_ns, &wait_ns, &tid);
	end->cpu_ns = cpu_ns;
	end->wait_ns = wait_ns;
	end->tid = tid;
	atomic_store_explicit(&PLAN_WORD(end->tag), number + 1, memory_order_release);
	return number;
}

uint64_t sb_plan_end(struct sb_site_table *table, uint64_t n, uint64_t end_ns)
{
	uint64_t before = atomic_fetch_add_explicit(&PLAN_WORD(table->plan.head->units),
						    n, memory_order_relaxed);

	return end_slot(&table->plan, before + n, end_ns, false);
}

void sb_plan_unit(struct sb_site_table *table, uint64_t n, bool worked)
{
	struct speed_bump_plan *head = table->plan.head;
	uint64_t before = atomic_fetch_add_explicit(&PLAN_WORD(head->units), n,
						    memory_order_relaxed);
	uint64_t length = load(&PLAN_WORD(head->slot_units));
	struct plan_rank *rank = worked ? sb_plan_own_rank(table) : NULL;

	if (rank)
		sb_plan_rank_unit(table, rank, n);
	if (load(&table->ranks->epoch))
		return;
	if (length && before / length != (before + n) / length)
		end_slot(&table->plan, before + n, sb_clock_gettime(), worked);
}

/* --------------------------------------------------------------------- call */

/* A ring for the site in this process; NULL: none is free. */
static struct plan_ring *take_ring(struct sb_site *site, uint64_t where)
{
	struct sb_site_table *table = site->table;
	uint32_t pid = table->slots[(uint32_t)where].pid;

	if ((uint32_t)where >= table->capacity)
		return NULL;
	for (uint32_t i = 0; i < PLAN_RINGS; i++) {
		struct plan_ring *ring = &table->rings[i];
		uint32_t free = 0;

		if (load(&ring->pid) ||
		    !atomic_compare_exchange_strong(&ring->pid, &free, UINT32_MAX))
			continue;
		ring->function = site->function_index;
		ring->slot = (uint32_t)where;
		store(&ring->rank, 0);
		store(&ring->head, 0);
		store(&ring->current, 0);
		atomic_store_explicit(&ring->pid, pid, memory_order_release);
		return ring;
	}
	atomic_fetch_add_explicit(&table->header->rings_lost, 1, memory_order_relaxed);
	return NULL;
}

static struct plan_ring *ring_of(struct sb_site *site)
{
	uint64_t where = atomic_load_explicit(&site->where, memory_order_acquire);
	uint64_t none = 0;
	struct plan_ring *ring;

	if (atomic_load_explicit(&site->ring_where, memory_order_acquire) == where)
		return site->ring;
	/*
	 * Of threads that allocate it at the same time, one succeeds; the others get it
	 * later.
	 */
	if (!atomic_compare_exchange_strong(&site->ring_taking, &none, 1))
		return NULL;
	ring = take_ring(site, where);
	site->ring = ring;
	atomic_store_explicit(&site->ring_where, where, memory_order_release);
	store(&site->ring_taking, 0);
	return ring;
}

/* Close the account of the previous slot if @number is a new slot. */
static void turn_over(struct sb_site *site, uint64_t number, uint32_t rank)
{
	struct plan_ring *ring = ring_of(site);
	struct plan_account *account;
	uint64_t current, head;

	if (!ring)
		return;
	store(&ring->rank, rank);
	current = load(&ring->current);
	if (current == number + 1 || current & PLAN_LOCKED ||
	    !atomic_compare_exchange_strong(&ring->current, &current,
					    current | PLAN_LOCKED))
		return;
	head = load(&ring->head);
	/* The first account has the counts from before there was a ring. */
	account = &ring->accounts[head % PLAN_RING_ENTRIES];
	site_counted(&site->table->slots[ring->slot], account);
	account->calls--; /* the current call belongs to the new slot */
	account->number = current ? current - 1 : UINT64_MAX;
	atomic_store_explicit(&ring->head, head + 1, memory_order_release);
	atomic_store_explicit(&ring->current, number + 1, memory_order_release);
}

/* The slot that this process is in; *@index is its rank as stored in a ring. */
static uint64_t slot_here(struct sb_site_table *table, uint32_t *index)
{
	struct plan_rank *rank;

	if (!load(&table->ranks->epoch))
		return plan_number(&table->plan);
	rank = sb_plan_rank_here(table);
	if (!rank)
		return plan_number(&table->plan);
	*index = (uint32_t)(rank - table->ranks->ranks) + 1;
	return load_acquire(&rank->number);
}

enum site_outcome sb_plan_hit(struct sb_site *site, struct site_counters *counters,
			      uint64_t entry, uint64_t hit)
{
	struct sb_site_table *table = site->table;
	struct plan_function *plan = site->plan;
	struct site_order order = { .end_ns = load(
					    &PLAN_WORD(table->plan.head->lease_ns)) };
	uint32_t flags = load(&plan->flags), arm, level, rank = 0;
	uint64_t changes, number, planned;

	if (flags & PLAN_UNIT)
		sb_plan_unit(table, 1, true);
	/* Reads after this are at least as new. */
	changes = atomic_load_explicit(site->changes, memory_order_acquire);
	number = flags & PLAN_RULED ? slot_here(table, &rank) : PLAN_NO_SLOT;
	if (number != PLAN_NO_SLOT) {
		turn_over(site, number, rank);
		planned = plan_entry(&table->plan, number);
		arm = load(&plan->arm);
		if (rank && arm < SPEED_BUMP_PLAN_ARMS)
			arm += load(&table->ranks->ranks[rank - 1].first_arm);
		level = (planned >> 48) & 0xff;
		if (arm < SPEED_BUMP_PLAN_ARMS && planned >> arm & 1 &&
		    level < SPEED_BUMP_PLAN_LEVELS && order.end_ns &&
		    load(&table->header->enabled)) {
			order.delay_ns = load(&plan->delay_ns[level]);
			order.every = load(&plan->every[level]);
		}
	}
	if (order.delay_ns)
		return sb_site_delay(site, counters, entry, hit, &order);
	if (!(flags & PLAN_UNIT))
		sb_site_be_quiet(site, changes);
	return SITE_DONE;
}
