// SPDX-License-Identifier: MIT
/*
 * Native programs whose criticality is known by construction: "native NAME SECONDS". They
 * are the same as in programs.py, with threads instead of processes. A unit of work is a
 * call of unit_done(). At the end, the units and seconds are printed. truth.py has the true
 * values for each.
 *
 * Work is CPU time of the thread, waits are sleeps. BENCH_CHANGE in the environment changes
 * functions: "cpu*0.5,record+0.2" makes cpu() take half of its time, and adds 0.2 ms of CPU
 * time to each call of record(). BENCH_MIDDLE is the time in seconds after which half_speed
 * becomes slow. BENCH_APART=1 gives each thread a CPU that no other one needs, for the reason
 * in programs.py.
 *
 * The programs share the functions that work and wait, and "native NAME" finds them in one table:
 * hence the length.
 */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#ifdef COZ
#include <coz.h>
#else
#define COZ_PROGRESS_NAMED(name)
#endif

/*
 * Keeps a function on the stack while it works: otherwise gcc compiles its last call as a
 * jump.
 */
#define TARGET                                                \
	__attribute__((noinline, noclone, externally_visible, \
		       optimize("no-optimize-sibling-calls")))

#define MS 1000000.0

/* The time of a function in ns: the base time, a factor, and CPU time that is added. */
struct cost {
	const char *function;
	double ms, factor, extra_ms;
};

#define COST(name, time) static struct cost cost_##name = { #name, time, 1, 0 }

COST(f, 0.9);
COST(g, 0.6);
COST(h, 0.3);
COST(often, 2);
COST(seldom, 4);
COST(f_phase, 0.9);
COST(g_phase, 0.9);
COST(cpu, 2);
COST(record, 0.5);
COST(feed, 0.5);
COST(parse, 1.5);
COST(pack, 0.5);
COST(write_out, 0.4);
COST(compute, 2);
COST(store, 2);
COST(decode, 4);
COST(use, 1);
COST(fill, 1);
COST(long_branch, 1);
COST(short_branch, 2);
COST(left_branch, 0);
COST(right_branch, 0);
COST(straggler, 0);
COST(quick, 0);
COST(quick_too, 0);
COST(inside, 0.5);
COST(outside, 1);
COST(step, 1);
COST(render, 6.4);
COST(grow, 2);
COST(handle, 0.25);
COST(aside, 1);
COST(work, 0.2);
COST(slow, 0.6);
COST(between, 0.1);

/* clang-format off */
static struct cost *const costs[] = {
	&cost_f, &cost_g, &cost_h, &cost_often, &cost_seldom, &cost_f_phase, &cost_g_phase,
	&cost_cpu, &cost_record, &cost_feed, &cost_parse, &cost_pack, &cost_write_out,
	&cost_compute, &cost_store, &cost_decode, &cost_use, &cost_fill, &cost_long_branch,
	&cost_short_branch, &cost_left_branch, &cost_right_branch, &cost_straggler,
	&cost_quick, &cost_quick_too, &cost_inside, &cost_outside, &cost_step, &cost_render,
	&cost_grow, &cost_handle, &cost_aside, &cost_work, &cost_slow, &cost_between,
};
/* clang-format on */

static double began, until;
static atomic_ulong units;

static inline double clock_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double now(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

/* The work of a function; a macro, so that its lines belong to the function. */
#define WORK(name)                                                          \
	do {                                                                \
		double end_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) +         \
				MS * (cost_##name.ms * cost_##name.factor + \
				      cost_##name.extra_ms);                \
		while (clock_ns(CLOCK_THREAD_CPUTIME_ID) < end_ns)          \
			;                                                   \
	} while (0)

static void sleep_until(double at)
{
	struct timespec time = { (time_t)(at / 1e9), 0 };

	time.tv_nsec = (long)(at - 1e9 * (double)time.tv_sec);
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL))
		;
}

static void wait_for(double ms)
{
	sleep_until(now() + MS * ms);
}

#define WAIT(name, ms) wait_for((ms)*cost_##name.factor)

void TARGET unit_done(void)
{
	COZ_PROGRESS_NAMED("unit");
	atomic_fetch_add_explicit(&units, 1, memory_order_relaxed);
	if (now() >= until) {
		printf("{\"units\": %lu, \"seconds\": %.6f}\n", atomic_load(&units),
		       (now() - began) / 1e9);
		exit(0);
	}
}

/* The CPUs that threads may still have to themselves, if BENCH_APART is set. */
static cpu_set_t cpus;

static void may_use(pthread_t thread, const cpu_set_t *these)
{
	if (pthread_setaffinity_np(thread, sizeof(*these), these))
		exit(1);
}

static void give_cpus(pthread_t thread)
{
	cpu_set_t own;

	if (CPU_COUNT(&cpus) == 0)
		return;
	CPU_ZERO(&own);
	for (int i = 0; i < CPU_SETSIZE; i++) {
		if (CPU_ISSET(i, &cpus)) {
			CPU_SET(i, &own);
			if (CPU_COUNT(&cpus) > 1)
				CPU_CLR(i, &cpus);
			break;
		}
	}
	may_use(thread, &own);
	/* The thread that starts others works, or only waits for them. */
	may_use(pthread_self(), &cpus);
}

static void in_thread(void *(*work)(void *), void *with)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, work, with))
		exit(1);
	give_cpus(thread);
}

/* ------------------------------------------------------------- one after the other */

void TARGET f(void)
{
	WORK(f);
}

void TARGET g(void)
{
	WORK(g);
}

void TARGET h(void)
{
	WORK(h);
}

static void serial(void)
{
	for (;;) {
		f();
		g();
		h();
		unit_done();
	}
}

void TARGET often(void)
{
	WORK(often);
}

void TARGET seldom(void)
{
	WORK(seldom);
}

static void rare(void)
{
	for (unsigned int i = 1;; i++) {
		often();
		if (i % 50 == 0)
			seldom();
		unit_done();
	}
}

void TARGET f_phase(void)
{
	WORK(f_phase);
}

void TARGET g_phase(void)
{
	WORK(g_phase);
}

static void phases(void)
{
	for (unsigned int i = 0;; i++) {
		double end = now() + 500 * MS;

		while (now() < end) {
			if (i % 2)
				g_phase();
			else
				f_phase();
			unit_done();
		}
	}
}

/* ------------------------------ a producer that makes some units ahead of the consumer */

static sem_t room, ready;
static void (*produced)(void);

static void *produce(void *unused)
{
	for (;;) {
		sem_wait(&room);
		produced();
		sem_post(&ready);
	}
	return unused;
}

static void feed_by(void (*producer)(void), unsigned int depth)
{
	produced = producer;
	sem_init(&room, 0, depth);
	sem_init(&ready, 0, 0);
	in_thread(produce, NULL);
}

static void take(void)
{
	sem_wait(&ready);
	sem_post(&room);
}

void TARGET cpu(void)
{
	WORK(cpu);
}

void TARGET record(void)
{
	WORK(record);
}

static void stages(void)
{
	feed_by(cpu, 2);
	for (;;) {
		take();
		wait_for(4.5);
		record();
		unit_done();
	}
}

void TARGET feed(void)
{
	WORK(feed);
}

static void wait_and_feed(void)
{
	wait_for(4.5);
	feed();
}

static void swapped(void)
{
	feed_by(wait_and_feed, 2);
	for (;;) {
		take();
		cpu();
		unit_done();
	}
}

void TARGET parse(void)
{
	WORK(parse);
}

void TARGET pack(void)
{
	WORK(pack);
}

void TARGET write_out(void)
{
	WORK(write_out);
}

static void parse_and_pack(void)
{
	parse();
	pack();
}

static void prefetch(void)
{
	feed_by(parse_and_pack, 8);
	for (;;) {
		take();
		record();
		wait_for(4.1);
		write_out();
		unit_done();
	}
}

static void half_speed(void)
{
	const char *text = getenv("BENCH_MIDDLE");
	double middle = began + 1e9 * (text ? strtod(text, NULL) : 12);

	feed_by(parse_and_pack, 8);
	for (;;) {
		for (int left = now() < middle ? 1 : 2; left; left--) {
			record();
			wait_for(4.1);
			write_out();
		}
		take();
		unit_done();
	}
}

void TARGET compute(void)
{
	WORK(compute);
}

void TARGET store(void)
{
	WORK(store);
}

void TARGET decode(void)
{
	WORK(decode);
}

static double producer_waits;

static void wait_and_decode(void)
{
	wait_for(producer_waits);
	decode();
}

/* A loop of 10 ms, fed by a producer that takes nearly as long, or longer. */
static void balanced(double producer_ms, unsigned int depth)
{
	producer_waits = producer_ms - cost_decode.ms;
	feed_by(wait_and_decode, depth);
	for (;;) {
		take();
		compute();
		wait_for(6);
		store();
		unit_done();
	}
}

static void balanced_10(void)
{
	balanced(9, 1);
}

static void balanced_20(void)
{
	balanced(8, 1);
}

static void starved(void)
{
	balanced(13, 4);
}

void TARGET use(void)
{
	WORK(use);
}

void TARGET fill(void)
{
	WORK(fill);
}

static void wait_and_fill(void)
{
	wait_for(3);
	fill();
}

static void buffer(unsigned int depth)
{
	feed_by(wait_and_fill, depth);
	for (;;) {
		take();
		wait_for(4);
		use();
		unit_done();
	}
}

static void buffer_1(void)
{
	buffer(1);
}

static void buffer_4(void)
{
	buffer(4);
}

static void buffer_16(void)
{
	buffer(16);
}

/* -------------------------------------------------------------------- fork and join */

static pthread_barrier_t begin, end;

void TARGET long_branch(void)
{
	WAIT(long_branch, 3);
	WORK(long_branch);
}

void TARGET short_branch(void)
{
	WORK(short_branch);
}

void TARGET left_branch(void)
{
	WORK(left_branch);
	WAIT(left_branch, 3);
}

void TARGET right_branch(void)
{
	WORK(right_branch);
	WAIT(right_branch, 3);
}

void TARGET straggler(void)
{
	WORK(straggler);
	WAIT(straggler, 4);
}

void TARGET quick(void)
{
	WORK(quick);
	WAIT(quick, 2);
}

void TARGET quick_too(void)
{
	WORK(quick_too);
	WAIT(quick_too, 2);
}

static void *branch(void *function)
{
	void (*work)(void) = *(void (**)(void))function;

	for (;;) {
		pthread_barrier_wait(&begin);
		work();
		pthread_barrier_wait(&end);
	}
	return NULL;
}

static void together(void (**branches)(void), unsigned int count)
{
	pthread_barrier_init(&begin, NULL, count + 1);
	pthread_barrier_init(&end, NULL, count + 1);
	for (unsigned int i = 0; i < count; i++)
		in_thread(branch, &branches[i]);
	for (;;) {
		pthread_barrier_wait(&begin);
		pthread_barrier_wait(&end);
		unit_done();
	}
}

static void fork_join(void)
{
	together((void (*[])(void)){ long_branch, short_branch }, 2);
}

static void fork_join_equal(void)
{
	together((void (*[])(void)){ left_branch, right_branch }, 2);
}

static void barrier(void)
{
	together((void (*[])(void)){ straggler, quick, quick_too }, 3);
}

/* ----------------------------------------------- 2 ms in the lock, 1 ms outside it */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint next_ticket, now_serving;

void TARGET inside(void)
{
	WAIT(inside, 1.5);
	WORK(inside);
}

void TARGET outside(void)
{
	WORK(outside);
}

/* The lock is fair, as the known answer assumes. */
static void *take_turns(void *unused)
{
	static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;

	for (;;) {
		unsigned int mine = atomic_fetch_add(&next_ticket, 1);

		pthread_mutex_lock(&mutex);
		while (atomic_load(&now_serving) != mine)
			pthread_cond_wait(&turn, &mutex);
		pthread_mutex_unlock(&mutex);
		inside();
		unit_done();
		pthread_mutex_lock(&mutex);
		atomic_fetch_add(&now_serving, 1);
		pthread_cond_broadcast(&turn);
		pthread_mutex_unlock(&mutex);
		outside();
	}
	return unused;
}

static void lock(void)
{
	in_thread(take_turns, NULL);
	take_turns(NULL);
}

/* ----------------------------------------------------------------- 1 ms of every 4 ms */

void TARGET step(void)
{
	WORK(step);
}

static void tick(void)
{
	for (double due = now();;) {
		due += 4 * MS;
		sleep_until(due);
		step();
		unit_done();
	}
}

void TARGET render(void)
{
	WORK(render);
}

/* In step with a display: what is late is shown a frame later. */
static void frames(void)
{
	for (;;) {
		render();
		unit_done();
		sleep_until(8 * MS * ((double)(uint64_t)(now() / (8 * MS)) + 1));
	}
}

/* ------------------------------------------- a delay makes more work: see programs.py */

#define EVENT_MS   0.5
#define MAX_EVENTS 40

void TARGET grow(void)
{
	WORK(grow);
}

void TARGET handle(void)
{
	WORK(handle);
}

static void with_events(bool until_none_is_left)
{
	for (double due = now();;) {
		double seen;
		int left = MAX_EVENTS;

		grow();
		seen = now();
		while (left-- && due <= seen) {
			handle();
			due += EVENT_MS * MS;
			if (until_none_is_left)
				seen = now();
		}
		if (due < seen)
			due = seen;
		unit_done();
	}
}

static void amplified(void)
{
	with_events(true);
}

static void backlog(void)
{
	with_events(false);
}

/* -------------------------------------------------------------------- beside the work */

void TARGET aside(void)
{
	WAIT(aside, 2);
	WORK(aside);
}

static void *alone(void *unused)
{
	for (;;)
		aside();
	return unused;
}

static void shams(void)
{
	in_thread(alone, NULL);
	for (;;) {
		wait_for(2.5);
		record();
		unit_done();
	}
}

/* ----------------------------------------------------- the latency of requests */

#define SLOW_EVERY 5

void TARGET work(void)
{
	WORK(work);
}

void TARGET slow(void)
{
	WORK(slow);
}

/* No request takes longer because of it. */
void TARGET between(void)
{
	WORK(between);
}

void TARGET request(unsigned long number)
{
	work();
	if (!(number % SLOW_EVERY))
		slow();
}

static void requests(void)
{
	for (unsigned long number = 1;; number++) {
		request(number);
		between();
		unit_done();
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} programs[] = {
	{ "serial", serial },
	{ "rare", rare },
	{ "phases", phases },
	{ "stages", stages },
	{ "swapped", swapped },
	{ "prefetch", prefetch },
	{ "half_speed", half_speed },
	{ "balanced_10", balanced_10 },
	{ "balanced_20", balanced_20 },
	{ "starved", starved },
	{ "buffer_1", buffer_1 },
	{ "buffer_4", buffer_4 },
	{ "buffer_16", buffer_16 },
	{ "fork_join", fork_join },
	{ "fork_join_equal", fork_join_equal },
	{ "barrier", barrier },
	{ "lock", lock },
	{ "tick", tick },
	{ "frames", frames },
	{ "amplified", amplified },
	{ "backlog", backlog },
	{ "shams", shams },
	{ "requests", requests },
};

/* Each word of BENCH_CHANGE is a function, '*' or '+', and a number. */
static void change(char *text)
{
	char *rest = NULL;

	for (char *word = strtok_r(text, ",", &rest); word;
	     word = strtok_r(NULL, ",", &rest)) {
		size_t length = strcspn(word, "*+"), i;

		for (i = 0; i < sizeof(costs) / sizeof(*costs); i++)
			if (strlen(costs[i]->function) == length &&
			    !strncmp(costs[i]->function, word, length))
				break;
		if (!word[length] || i == sizeof(costs) / sizeof(*costs)) {
			fprintf(stderr, "BENCH_CHANGE: no function in '%s'\n", word);
			exit(2);
		}
		if (word[length] == '*')
			costs[i]->factor = strtod(word + length + 1, NULL);
		else
			costs[i]->extra_ms = strtod(word + length + 1, NULL);
	}
}

int main(int argc, char **argv)
{
	char *text = getenv("BENCH_CHANGE"), *apart = getenv("BENCH_APART");

	if (text)
		change(strdup(text));
	if (apart && *apart)
		sched_getaffinity(0, sizeof(cpus), &cpus);
	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	began = now();
	if (argc == 3 && strtod(argv[2], NULL) > 0) {
		until = began + 1e9 * strtod(argv[2], NULL);
		for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++)
			if (!strcmp(argv[1], programs[i].name))
				programs[i].run();
	}
	fprintf(stderr, "usage: %s PROGRAM SECONDS\nprograms:", argv[0]);
	for (size_t i = 0; i < sizeof(programs) / sizeof(*programs); i++)
		fprintf(stderr, " %s", programs[i].name);
	fputc('\n', stderr);
	return 2;
}
