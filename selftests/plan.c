// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The plan of an experiment: slots end by units, hits look up their delays and count, and
 * no content of the memory has a worse effect than a delay. All tests read and write that
 * memory with the same helpers: hence the length.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include "speed_bump_test.h"
#include "harness.h"

#define MICRO	1000ULL

/* The roles of the functions in all tests below. */
#define FIRST	SB_PLAIN
#define SECOND	SB_SECOND
#define UNIT	SB_NOP

struct plan {
	int fd;
	size_t size;
	struct speed_bump_plan *head;
	__u64 *schedule;
	struct speed_bump_slot *ends;
	struct speed_bump_plan_target *targets;
	struct speed_bump_cell *cells;
};

static int plan_request(int dev, struct plan *plan, const __u64 *ids, unsigned int count,
			const __u64 *units, unsigned int unit_count)
{
	struct speed_bump_plan_request request = {
		.ids = (uintptr_t)ids,
		.count = count,
		.units = (uintptr_t)units,
		.unit_count = unit_count,
	};
	int ret = sb_ioctl(dev, SPEED_BUMP_IOC_PLAN, &request);

	plan->fd = ret ? -1 : request.fd;
	plan->size = request.size;
	return ret;
}

static void *map(const struct plan *plan, size_t size, int prot, int flags, off_t at)
{
	return mmap(NULL, size, prot, flags, plan->fd, at);
}

static int plan_map(struct plan *plan)
{
	char *at = map(plan, plan->size, PROT_READ | PROT_WRITE, MAP_SHARED, 0);

	if (at == MAP_FAILED)
		return -errno;
	plan->head = (void *)at;
	plan->schedule = (void *)(at + plan->head->schedule);
	plan->ends = (void *)(at + plan->head->ends);
	plan->targets = (void *)(at + plan->head->target);
	plan->cells = (void *)(at + plan->head->cells);
	return 0;
}

static struct speed_bump_cell *cell(const struct plan *plan, unsigned int target, __u64 number)
{
	return &plan->cells[target * SPEED_BUMP_PLAN_CELLS + number % SPEED_BUMP_PLAN_CELLS];
}

/* The count in a cell's word if it belongs to slot @number, else 0. */
static __u64 counted(__u64 word, __u64 number)
{
	return word >> 48 == (number & 0xFFFF) ? word << 16 >> 16 : 0;
}

static void draw(const struct plan *plan, __u64 number, unsigned int level, __u64 arms)
{
	plan->schedule[number % SPEED_BUMP_PLAN_SLOTS] = SPEED_BUMP_PLAN_ENTRY(number, level, arms);
}

static __u64 xorshift(__u64 *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

FIXTURE(plan)
{
	int dev;
	struct speed_bump_target first, second, unit;
	__u64 ids[2];
	struct plan plan;
};

FIXTURE_SETUP(plan)
{
	self->dev = sb_open();
	ASSERT_GE(self->dev, 0);
	if (!(sb_features(self->dev) & SPEED_BUMP_FEATURE_PLAN))
		SKIP(return, "the module has no plans");
	self->first = sb_own_target(FIRST, 0);
	self->second = sb_own_target(SECOND, 0);
	self->unit = sb_own_target(UNIT, 0);
	ASSERT_EQ(sb_add(self->dev, &self->first), 0);
	ASSERT_EQ(sb_add(self->dev, &self->second), 0);
	ASSERT_EQ(sb_add(self->dev, &self->unit), 0);
	self->ids[0] = self->first.id;
	self->ids[1] = self->second.id;
	ASSERT_EQ(plan_request(self->dev, &self->plan, self->ids, 2, &self->unit.id, 1), 0);
	ASSERT_EQ(plan_map(&self->plan), 0);
	self->plan.head->lease_ns = UINT64_MAX;
	self->plan.targets[0].arm = 0;
	self->plan.targets[1].arm = 1;
}

FIXTURE_TEARDOWN(plan)
{
	close(self->dev);
	close(self->plan.fd);
}

/* --- what it is ----------------------------------------------------------- */

TEST_F(plan, head_says_where_everything_is)
{
	const struct speed_bump_plan *head = self->plan.head;
	const unsigned char *bytes = (void *)head;
	size_t page = sysconf(_SC_PAGESIZE), i;

	EXPECT_EQ(head->size, sizeof(*head));
	EXPECT_EQ(head->targets, 2);
	EXPECT_GE(head->schedule, sizeof(*head));
	EXPECT_GE(head->ends, head->schedule + SPEED_BUMP_PLAN_SLOTS * sizeof(__u64));
	EXPECT_GE(head->target, head->ends +
		  SPEED_BUMP_PLAN_SLOTS * sizeof(struct speed_bump_slot));
	EXPECT_GE(head->cells, head->target + 2 * sizeof(struct speed_bump_plan_target));
	EXPECT_GE(self->plan.size, head->cells +
		  2 * SPEED_BUMP_PLAN_CELLS * sizeof(struct speed_bump_cell));
	EXPECT_EQ(self->plan.size % page, 0);
	EXPECT_EQ(head->number, 0);
	EXPECT_EQ(head->units, 0);
	/* Memory that neither user space nor the module has written is 0. */
	for (i = head->schedule; i < head->target; i++)
		ASSERT_EQ(bytes[i], 0);
	EXPECT_EQ(fcntl(self->plan.fd, F_GETFD), FD_CLOEXEC);
}

TEST_F(plan, one_a_session)
{
	struct plan other;
	int dev = sb_open();

	EXPECT_EQ(plan_request(self->dev, &other, NULL, 0, NULL, 0), -EEXIST);
	/* With targets of another session. */
	EXPECT_EQ(plan_request(dev, &other, self->ids, 2, NULL, 0), -ENOENT);
	EXPECT_EQ(plan_request(dev, &other, NULL, 0, &self->unit.id, 1), -ENOENT);
	EXPECT_EQ(plan_request(dev, &other, NULL, 0, NULL, 0), 0);
	EXPECT_EQ(plan_map(&other), 0);
	EXPECT_EQ(other.head->targets, 0);
	close(other.fd);
	close(dev);
}

TEST_F(plan, request_is_checked)
{
	struct speed_bump_plan_request request = { .reserved = 1 };
	struct speed_bump_target target = self->first;
	int dev = sb_open();
	struct plan plan;
	__u64 ids[2];

	EXPECT_EQ(sb_ioctl(dev, SPEED_BUMP_IOC_PLAN, &request), -EINVAL);
	EXPECT_EQ(plan_request(dev, &plan, (void *)1, SPEED_BUMP_PLAN_TARGETS + 1, NULL, 0),
		  -EINVAL);
	EXPECT_EQ(plan_request(dev, &plan, NULL, 0, (void *)1, SPEED_BUMP_PLAN_TARGETS + 1),
		  -EINVAL);
	EXPECT_EQ(plan_request(dev, &plan, NULL, 1, NULL, 0), -EFAULT);
	ASSERT_EQ(sb_add(dev, &target), 0);
	ids[0] = target.id;
	ids[1] = target.id;
	EXPECT_EQ(plan_request(dev, &plan, ids, 2, NULL, 0), -EINVAL);
	ids[1] = target.id + 1000;
	EXPECT_EQ(plan_request(dev, &plan, ids, 2, NULL, 0), -ENOENT);
	/* A target may be in both lists, and a failed request leaves nothing behind. */
	EXPECT_EQ(plan_request(dev, &plan, ids, 1, ids, 1), 0);
	close(plan.fd);
	close(dev);
}

/* The same function in as many processes: each scope is a target of its own. */
TEST_F(plan, most_targets_there_can_be)
{
	static pid_t pids[SPEED_BUMP_PLAN_TARGETS];
	static __u64 ids[SPEED_BUMP_PLAN_TARGETS];
	struct speed_bump_target target;
	struct plan plan = { 0 };
	int dev = sb_open(), i;

	for (i = 0; i < SPEED_BUMP_PLAN_TARGETS; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			pause();
			_exit(0);
		}
		target = sb_target(FIRST, 0, SPEED_BUMP_SCOPE_THREAD, pids[i]);
		ASSERT_EQ(sb_add(dev, &target), 0);
		ids[i] = target.id;
	}
	EXPECT_EQ(plan_request(dev, &plan, ids, i, ids, i), 0);
	EXPECT_EQ(plan_map(&plan), 0);
	EXPECT_EQ(plan.head->targets, i);
	cell(&plan, i - 1, SPEED_BUMP_PLAN_CELLS - 1)->delivered = 1;
	while (i--) {
		kill(pids[i], SIGKILL);
		waitpid(pids[i], NULL, 0);
	}
	close(plan.fd);
	close(dev);
}

/* --- slots ---------------------------------------------------------------- */

TEST_F(plan, units_end_slots)
{
	struct plan *plan = &self->plan;
	__u64 before = sb_now(), last = before;
	unsigned int i;

	plan->head->slot_units = 3;
	sb_call(UNIT, 10);
	EXPECT_EQ(plan->head->units, 10);
	EXPECT_EQ(plan->head->number, 3);
	EXPECT_EQ(plan->head->changes, 4);
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(plan->ends[i].tag, i + 1);
		EXPECT_EQ(plan->ends[i].units, 3 * (i + 1));
		EXPECT_EQ(plan->ends[i].tid, syscall(SYS_gettid));
		EXPECT_GE(plan->ends[i].end_ns, last);
		last = plan->ends[i].end_ns;
	}
	EXPECT_LE(last, sb_now());
	EXPECT_EQ(plan->ends[3].tag, 0);

	/* From 10 to 16, from 16 to 17; after that none ends. */
	plan->head->slot_units = 8;
	sb_call(UNIT, 7);
	EXPECT_EQ(plan->head->number, 4);
	EXPECT_EQ(plan->ends[3].units, 16);
	plan->head->slot_units = 0;
	sb_call(UNIT, 50);
	EXPECT_EQ(plan->head->number, 4);
	EXPECT_EQ(plan->head->units, 67);
	EXPECT_EQ(sb_hits(self->dev, self->unit.id), 67);
}

/* Uses a clock that does not make the scheduler update the thread's time. */
static void burn(__u64 ns)
{
	__u64 start = sb_now();

	while (sb_now() - start < ns)
		;
}

/*
 * Ticks are milliseconds apart, so a time that is updated only at ticks would not be
 * exact enough.
 */
TEST_F(plan, end_tells_the_cpu_time_of_the_thread)
{
	struct speed_bump_slot *ends = self->plan.ends;
	unsigned int i, good = 0;
	__u64 cpu;

	self->plan.head->slot_units = 1;
	/* The differences between the CPUs' clocks are known after some ticks. */
	for (i = 0; i < 200; i++) {
		burn(SB_MS / 2);
		sb_call(UNIT, 1);
	}
	for (i = 200; i < 300; i++) {
		cpu = sb_cpu_time(getpid());
		burn(i % 2 ? 2 * SB_MS : SB_MS / 2);
		sb_call(UNIT, 1);
		cpu = sb_cpu_time(getpid()) - cpu;
		if (i == 200)
			continue;
		if (ends[i].cpu_ns - ends[i - 1].cpu_ns > cpu * 7 / 10 &&
		    ends[i].cpu_ns - ends[i - 1].cpu_ns < cpu * 13 / 10)
			good++;
	}
	ksft_print_msg("%u of 99 slots have the CPU time that they took\n", good);
	EXPECT_GE(good, 66);
}

/* --- what hits do --------------------------------------------------------- */

TEST_F(plan, schedule_is_obeyed_slot_by_slot)
{
	struct plan *plan = &self->plan;
	const unsigned int slots = 600;	/* farther than the cells reach back */
	__u64 seed = 88172645463325252ULL, delivered[2] = { 0 }, expected[2] = { 0 };
	unsigned int calls[2], i, k, level, skipped[2] = { 0 }, delayed[2] = { 0 };
	struct speed_bump_stats stats;
	__u64 arms, took;

	plan->head->slot_units = 1;
	for (k = 0; k < 2; k++) {
		for (i = 0; i < SPEED_BUMP_PLAN_LEVELS; i++)
			plan->targets[k].delay_ns[i] = (10 * k + i + 1) * MICRO;
	}
	for (i = 0; i < slots; i++) {
		arms = xorshift(&seed) % 4;
		level = xorshift(&seed) % SPEED_BUMP_PLAN_LEVELS;
		calls[0] = xorshift(&seed) % 5;
		calls[1] = xorshift(&seed) % 3;
		draw(plan, i, level, arms);
		sb_call(FIRST, calls[0]);
		sb_call(SECOND, calls[1]);
		for (k = 0; k < 2; k++) {
			const struct speed_bump_cell *c = cell(plan, k, i);
			__u64 asked = (10 * k + level + 1) * MICRO * calls[k];

			ASSERT_EQ(counted(c->calls, i), calls[k]);
			took = counted(c->delivered, i);
			delivered[k] += took;
			if (arms >> k & 1) {
				ASSERT_GE(took, asked);
				expected[k] += asked;
				delayed[k] += calls[k];
			} else {
				ASSERT_EQ(took, 0);
				skipped[k] += calls[k];
			}
		}
		sb_call(UNIT, 1);
		ASSERT_EQ(plan->head->number, i + 1);
	}
	for (k = 0; k < 2; k++) {
		ASSERT_EQ(sb_stats(self->dev, self->ids[k], &stats), 0);
		EXPECT_EQ(stats.delayed, delayed[k]);
		EXPECT_EQ(stats.skipped_disabled, skipped[k]);
		EXPECT_EQ(stats.hits, delayed[k] + skipped[k]);
		EXPECT_EQ(stats.requested_ns, expected[k]);
		EXPECT_EQ(stats.measured_ns, delivered[k]);
	}
}

TEST_F(plan, entry_of_another_round_is_none)
{
	struct plan *plan = &self->plan;
	__u64 number = 3 * SPEED_BUMP_PLAN_SLOTS + 7;
	struct speed_bump_stats stats;

	plan->targets[0].delay_ns[0] = 10 * MICRO;
	plan->head->number = number;
	sb_call(FIRST, 1);
	draw(plan, number - SPEED_BUMP_PLAN_SLOTS, 0, 1);
	sb_call(FIRST, 1);
	draw(plan, number + SPEED_BUMP_PLAN_SLOTS, 0, 1);
	sb_call(FIRST, 1);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 0);
	draw(plan, number, 0, 1);
	sb_call(FIRST, 4);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 4);
	EXPECT_EQ(counted(cell(plan, 0, number)->calls, number), 7);
}

TEST_F(plan, nothing_is_delayed_after_the_lease)
{
	struct plan *plan = &self->plan;
	struct speed_bump_stats stats;

	plan->targets[0].delay_ns[0] = 10 * MICRO;
	draw(plan, 0, 0, 1);
	plan->head->lease_ns = 0;
	sb_call(FIRST, 2);
	plan->head->lease_ns = sb_now();
	sb_call(FIRST, 3);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.skipped_window, 5);
	EXPECT_EQ(stats.measured_ns, 0);
	plan->head->lease_ns = sb_now() + 3600 * SB_S;
	sb_call(FIRST, 4);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 4);
	EXPECT_EQ(counted(cell(plan, 0, 0)->calls, 0), 9);
}

TEST_F(plan, frequency_is_that_of_the_level)
{
	struct plan *plan = &self->plan;
	struct speed_bump_stats stats;

	plan->targets[0].delay_ns[5] = 10 * MICRO;
	plan->targets[0].every[5] = 3;
	plan->targets[0].every[0] = 1;
	draw(plan, 0, 5, 1);
	sb_call(FIRST, 30);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 10);
	EXPECT_EQ(stats.skipped_frequency, 20);
	EXPECT_EQ(counted(cell(plan, 0, 0)->calls, 0), 30);
	EXPECT_EQ(counted(cell(plan, 0, 0)->delivered, 0), stats.measured_ns);
}

/* Arms and levels that do not exist. */
TEST_F(plan, what_is_out_of_range_is_off)
{
	struct plan *plan = &self->plan;
	struct speed_bump_stats stats;
	unsigned int arm;

	plan->targets[0].delay_ns[0] = 10 * MICRO;
	draw(plan, 0, SPEED_BUMP_PLAN_LEVELS, ~0ULL);
	sb_call(FIRST, 1);
	draw(plan, 0, 0, ~0ULL);
	plan->targets[0].arm = SPEED_BUMP_PLAN_NO_ARM;
	sb_call(FIRST, 1);
	for (arm = SPEED_BUMP_PLAN_ARMS; arm < 200; arm++) {
		plan->targets[0].arm = arm;
		sb_call(FIRST, 1);
	}
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 0);
	plan->targets[0].arm = SPEED_BUMP_PLAN_ARMS - 1;
	sb_call(FIRST, 1);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.delayed, 1);
}

TEST_F(plan, own_settings_have_no_effect)
{
	struct speed_bump_stats stats;

	ASSERT_EQ(sb_set_delay(self->dev, self->first.id, 9 * SB_S), 0);
	sb_call(FIRST, 5);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.requested_ns, 0);
	/* Targets that are not in the plan have statistics. */
	ASSERT_EQ(sb_set_delay(self->dev, self->unit.id, 20 * MICRO), 0);
	sb_call(UNIT, 5);
	ASSERT_EQ(sb_stats(self->dev, self->unit.id, &stats), 0);
	EXPECT_EQ(stats.requested_ns, 5 * 20 * MICRO);
}

TEST_F(plan, session_that_is_off_does_nothing_of_it)
{
	struct plan *plan = &self->plan;
	struct speed_bump_stats stats;

	plan->targets[0].delay_ns[0] = SB_S;
	draw(plan, 0, 0, 1);
	ASSERT_EQ(sb_switch_session(self->dev, 0), 0);
	sb_call(FIRST, 5);
	sb_call(UNIT, 5);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.skipped_disabled, 5);
	EXPECT_EQ(counted(cell(plan, 0, 0)->calls, 0), 0);
	EXPECT_EQ(plan->head->units, 0);
}

/* The unit is counted first: the call itself belongs to the slot that begins. */
TEST_F(plan, target_that_is_also_a_unit)
{
	struct speed_bump_target both = self->first;
	int dev = sb_open();
	struct plan plan;

	ASSERT_EQ(sb_add(dev, &both), 0);
	ASSERT_EQ(plan_request(dev, &plan, &both.id, 1, &both.id, 1), 0);
	ASSERT_EQ(plan_map(&plan), 0);
	plan.head->lease_ns = UINT64_MAX;
	plan.head->slot_units = 1;
	plan.targets[0].delay_ns[0] = 10 * MICRO;
	draw(&plan, 1, 0, 1);
	sb_call(FIRST, 1);
	EXPECT_EQ(plan.head->number, 1);
	EXPECT_EQ(counted(cell(&plan, 0, 1)->calls, 1), 1);
	EXPECT_GE(counted(cell(&plan, 0, 1)->delivered, 1), 10 * MICRO);
	EXPECT_EQ(counted(cell(&plan, 0, 0)->calls, 0), 0);
	close(plan.fd);
	close(dev);
}

/* A delay that outlasts its slot counts for that slot; one that outlasts its cell does not. */
struct late {
	pthread_t thread;
	struct plan *plan;
	__u64 number;
};

static void *move_on(void *arg)
{
	struct late *late = arg;

	/* A call is counted when it begins, so the delay is under way. */
	while (!counted(__atomic_load_n(&cell(late->plan, 0, 0)->calls, __ATOMIC_SEQ_CST), 0))
		sched_yield();
	__atomic_store_n(&late->plan->head->number, late->number, __ATOMIC_SEQ_CST);
	return NULL;
}

static int call_late(struct plan *plan, __u64 number)
{
	struct late late = { .plan = plan, .number = number };
	int ret = pthread_create(&late.thread, NULL, move_on, &late);

	if (ret)
		return ret;
	sb_call(FIRST, 1);
	return pthread_join(late.thread, NULL);
}

TEST_F(plan, late_delay_counts_for_the_slot_it_began_in)
{
	struct plan *plan = &self->plan;

	plan->targets[0].delay_ns[0] = SB_S;
	draw(plan, 0, 0, 1);
	ASSERT_EQ(call_late(plan, SPEED_BUMP_PLAN_CELLS - 1), 0);
	EXPECT_GE(counted(cell(plan, 0, 0)->delivered, 0), SB_S);
	EXPECT_EQ(plan->head->number, SPEED_BUMP_PLAN_CELLS - 1);
}

TEST_F(plan, delay_that_outlives_its_cell_counts_for_none)
{
	struct plan *plan = &self->plan;

	plan->targets[0].delay_ns[0] = SB_S;
	draw(plan, 0, 0, 1);
	ASSERT_EQ(call_late(plan, SPEED_BUMP_PLAN_CELLS), 0);
	EXPECT_EQ(cell(plan, 0, 0)->delivered, 0);
}

/* --- many at once --------------------------------------------------------- */

#define THREADS	4
#define ROUNDS	1000

static void *work(void *arg)
{
	int i;

	for (i = 0; i < ROUNDS; i++) {
		sb_call(FIRST, 3);
		sb_call(UNIT, 1);
	}
	return arg;
}

TEST_F(plan, threads_lose_no_slot_and_no_call)
{
	struct plan *plan = &self->plan;
	pthread_t threads[THREADS];
	__u64 i, calls = 0;

	plan->head->slot_units = THREADS * ROUNDS / 200;
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, work, NULL), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
	EXPECT_EQ(plan->head->units, THREADS * ROUNDS);
	EXPECT_EQ(plan->head->number, 200);
	EXPECT_EQ(plan->head->changes, 201);
	for (i = 0; i < 200; i++) {
		EXPECT_EQ(plan->ends[i].tag, i + 1);
		EXPECT_NE(plan->ends[i].tid, 0);
	}
	for (i = 0; i <= 200; i++)
		calls += counted(cell(plan, 0, i)->calls, i);
	EXPECT_EQ(calls, 3 * THREADS * ROUNDS);
}

#define PROCESSES	40
#define TASKS		25	/* threads of each */

static void *work_a_little(void *arg)
{
	int i;

	for (i = 0; i < 5; i++) {
		sb_call(FIRST, 4);
		sb_call(UNIT, 1);
	}
	return arg;
}

/* Processes that start and end at any moment take part from their first call to their last. */
TEST_F(plan, a_thousand_threads_of_many_processes)
{
	const unsigned int units = PROCESSES * TASKS * 5;
	struct plan *plan = &self->plan;
	pthread_t threads[TASKS];
	__u64 i, calls = 0;
	int status;

	plan->head->slot_units = units / 100;
	plan->targets[0].delay_ns[0] = 20 * MICRO;
	for (i = 0; i < 200; i++)
		draw(plan, i, 0, i & 1);
	for (i = 0; i < PROCESSES; i++) {
		pid_t pid = fork();
		int k;

		ASSERT_GE(pid, 0);
		if (pid)
			continue;
		for (k = 0; k < TASKS; k++)
			if (pthread_create(&threads[k], NULL, work_a_little, NULL))
				_exit(1);
		for (k = 0; k < TASKS; k++)
			pthread_join(threads[k], NULL);
		_exit(0);
	}
	for (i = 0; i < PROCESSES; i++) {
		ASSERT_GT(wait(&status), 0);
		EXPECT_EQ(status, 0);
	}
	EXPECT_EQ(plan->head->units, units);
	EXPECT_EQ(plan->head->number, 100);
	for (i = 0; i < 100; i++)
		EXPECT_EQ(plan->ends[i].tag, i + 1);
	for (i = 0; i <= 100; i++) {
		calls += counted(cell(plan, 0, i)->calls, i);
		/*
		 * A delay that was still running when its slot ended counts in the slot
		 * where it began.
		 */
		if (!(i & 1))
			EXPECT_EQ(counted(cell(plan, 0, i)->delivered, i), 0);
	}
	EXPECT_EQ(calls, 4 * units);
}

TEST_F(plan, every_unit_ends_a_slot_on_all_cpus_at_once)
{
	struct plan *plan = &self->plan;
	pthread_t threads[THREADS];
	__u64 i, units = 0;

	plan->head->slot_units = 1;
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_create(&threads[i], NULL, work, NULL), 0);
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(pthread_join(threads[i], NULL), 0);
	ASSERT_EQ(plan->head->number, THREADS * ROUNDS);
	for (i = 0; i < THREADS * ROUNDS; i++) {
		EXPECT_EQ(plan->ends[i].tag, i + 1);
		units += plan->ends[i].units;
	}
	/* Each report ended one slot, with 1, 2, 3 and so on units, in any order. */
	EXPECT_EQ(units, THREADS * ROUNDS * (THREADS * ROUNDS + 1ULL) / 2);
}

/* --- the memory ----------------------------------------------------------- */

TEST_F(plan, is_mapped_shared_and_from_its_beginning)
{
	const struct plan *plan = &self->plan;
	size_t page = sysconf(_SC_PAGESIZE);
	char byte = 0;

	EXPECT_EQ(map(plan, plan->size, PROT_READ, MAP_PRIVATE, 0), MAP_FAILED);
	EXPECT_EQ(errno, EINVAL);
	EXPECT_EQ(map(plan, plan->size + page, PROT_READ, MAP_SHARED, 0), MAP_FAILED);
	EXPECT_EQ(errno, EINVAL);
	EXPECT_EQ(map(plan, plan->size, PROT_READ, MAP_SHARED, page), MAP_FAILED);
	EXPECT_EQ(errno, EINVAL);
	EXPECT_EQ(map(plan, page, PROT_READ, MAP_SHARED, plan->size), MAP_FAILED);
	EXPECT_EQ(map(plan, plan->size, PROT_READ | PROT_EXEC, MAP_SHARED, 0), MAP_FAILED);
	EXPECT_NE(mprotect(plan->head, plan->size, PROT_READ | PROT_EXEC), 0);
	EXPECT_EQ(mremap(plan->head, plan->size, plan->size + page, MREMAP_MAYMOVE), MAP_FAILED);
	EXPECT_EQ(read(plan->fd, &byte, 1), -1);
	EXPECT_EQ(write(plan->fd, &byte, 1), -1);
	EXPECT_NE(ftruncate(plan->fd, 0), 0);
}

/* For a process that has only the descriptor, the head gives the size. */
TEST_F(plan, beginning_can_be_mapped_by_itself)
{
	const struct plan *plan = &self->plan;
	size_t page = sysconf(_SC_PAGESIZE);
	struct speed_bump_plan *head;

	head = map(plan, page, PROT_READ, MAP_SHARED, 0);
	ASSERT_NE(head, MAP_FAILED);
	EXPECT_EQ(memcmp(head, plan->head, sizeof(*head)), 0);
	EXPECT_EQ(mremap(head, page, 2 * page, MREMAP_MAYMOVE), MAP_FAILED);
}

/* Whatever a process does with its mapping, the rest of the memory stays the same. */
TEST_F(plan, mappings_show_the_same_memory)
{
	struct plan *plan = &self->plan;
	struct speed_bump_plan *other;
	size_t page = sysconf(_SC_PAGESIZE);
	int status;
	pid_t pid;

	other = map(plan, plan->size, PROT_READ, MAP_SHARED, 0);
	ASSERT_NE(other, MAP_FAILED);
	plan->head->slot_units = 7;
	EXPECT_EQ(other->slot_units, 7);
	EXPECT_EQ(madvise(other, plan->size, MADV_DONTNEED), 0);
	EXPECT_EQ(other->slot_units, 7);
	EXPECT_EQ(munmap((char *)other + page, page), 0);
	EXPECT_EQ(other->size, sizeof(*other));
	pid = fork();
	if (!pid) {
		plan->head->slot_units = 5;
		_exit(0);
	}
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_EQ(other->slot_units, 5);
}

TEST_F(plan, memory_outlives_session_and_descriptor)
{
	struct plan *plan = &self->plan;
	struct speed_bump_plan *other;
	unsigned int i;

	plan->head->slot_units = 2;
	sb_call(UNIT, 5);
	close(self->dev);
	self->dev = -1;
	sb_call(UNIT, 5);
	EXPECT_EQ(plan->head->units, 5);
	EXPECT_EQ(plan->head->number, 2);
	other = map(plan, plan->size, PROT_READ, MAP_SHARED, 0);
	ASSERT_NE(other, MAP_FAILED);
	EXPECT_EQ(other->units, 5);
	munmap(other, plan->size);
	close(plan->fd);
	plan->fd = -1;
	for (i = 0; i < plan->size / sizeof(__u64); i++)
		((__u64 *)plan->head)[i]++;
	EXPECT_EQ(plan->ends[1].tag, 3);
}

/* Only the session holds the memory: hits are still counted. */
TEST_F(plan, session_outlives_the_memory_of_others)
{
	struct speed_bump_stats stats;

	self->plan.head->slot_units = 1;
	ASSERT_EQ(munmap(self->plan.head, self->plan.size), 0);
	close(self->plan.fd);
	self->plan.fd = -1;
	sb_call(FIRST, 100);
	sb_call(UNIT, 100);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.hits, 100);
}

/* --- hostile memory ------------------------------------------------------- */

struct vandal {
	pthread_t thread;
	struct plan *plan;
	__u64 seed;
	bool end;
};

/* Random data everywhere, but with delays that are short enough for a test. */
static void *scribble(void *arg)
{
	struct vandal *vandal = arg;
	struct plan *plan = vandal->plan;
	__u64 *words = (__u64 *)plan->head;
	size_t count = plan->size / sizeof(*words), i;
	unsigned int k;

	while (!__atomic_load_n(&vandal->end, __ATOMIC_RELAXED)) {
		for (i = 0; i < count; i++)
			words[i] = xorshift(&vandal->seed);
		/* Often valid contents. */
		for (k = 0; k < 2; k++) {
			plan->targets[k].arm = xorshift(&vandal->seed) % 60;
			for (i = 0; i < SPEED_BUMP_PLAN_LEVELS; i++)
				plan->targets[k].delay_ns[i] = xorshift(&vandal->seed) % 3000;
			for (i = 0; i < SPEED_BUMP_PLAN_LEVELS; i++)
				plan->targets[k].every[i] = xorshift(&vandal->seed) % 3;
		}
		plan->head->lease_ns = UINT64_MAX;
		plan->head->slot_units = xorshift(&vandal->seed) % 3;
		for (i = 0; i < 20000; i++) {
			plan->head->number = xorshift(&vandal->seed) >> (i % 64);
			plan->head->units = xorshift(&vandal->seed);
			plan->head->slot_units = xorshift(&vandal->seed) % 3;
			draw(plan, plan->head->number, xorshift(&vandal->seed) % 9,
			     xorshift(&vandal->seed));
			cell(plan, i % 2, plan->head->number)->calls = xorshift(&vandal->seed);
			/* Keep the compiler from dropping the write, which nothing here reads. */
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

static void *call_all(void *arg)
{
	bool *end = arg;

	while (!__atomic_load_n(end, __ATOMIC_RELAXED)) {
		sb_call(FIRST, 3);
		sb_call(SECOND, 3);
		sb_call(UNIT, 3);
	}
	return NULL;
}

/*
 * A page of random data may have a delay of 10 s in force, but only for a moment, and a
 * signal that ends the process ends the delay too.
 */
TEST_F(plan, garbage_does_no_harm)
{
	struct vandal vandal = { .plan = &self->plan, .seed = 1 };
	struct speed_bump_stats stats;
	int status, i;
	pid_t pid;

	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		pthread_t thread;

		/* The scope of the targets is the tree, so it includes the child. */
		for (i = 0; i < 3; i++)
			pthread_create(&thread, NULL, call_all, &vandal.end);
		pthread_create(&vandal.thread, NULL, scribble, &vandal);
		for (;;)
			pause();
	}
	sb_sleep(5 * SB_S);
	ASSERT_EQ(kill(pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	EXPECT_TRUE(WIFSIGNALED(status));
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(sb_stats(self->dev, self->ids[i], &stats), 0);
		EXPECT_GT(stats.delayed, 0);
		EXPECT_LE(stats.requested_ns, stats.delayed * SPEED_BUMP_MAX_DELAY_NS);
		ksft_print_msg("%lld hits, %lld delayed\n", stats.hits, stats.delayed);
	}
}

TEST_F(plan, delay_is_clamped)
{
	struct plan *plan = &self->plan;
	struct speed_bump_stats stats;
	int status;
	pid_t pid;

	plan->targets[0].delay_ns[0] = UINT64_MAX;
	draw(plan, 0, 0, 1);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		sb_call(FIRST, 1);
		_exit(0);
	}
	EXPECT_EQ(sb_wait_busy(pid, 0), 0);
	ASSERT_EQ(kill(pid, SIGKILL), 0);
	ASSERT_EQ(waitpid(pid, &status, 0), pid);
	ASSERT_EQ(sb_stats(self->dev, self->first.id, &stats), 0);
	EXPECT_EQ(stats.requested_ns, SPEED_BUMP_MAX_DELAY_NS);
	EXPECT_EQ(stats.cut, 1);
	EXPECT_EQ(counted(cell(plan, 0, 0)->delivered, 0), stats.measured_ns);
}

TEST_HARNESS_MAIN
