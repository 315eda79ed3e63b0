// SPDX-License-Identifier: MIT
/*
 * "sampled WHAT": programs whose time in each function is known by construction. They
 * count their work, not time, so that other load on the machine affects all functions
 * equally. They run until they are killed. Built without frame pointers.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TARGET __attribute__((noinline, noclone))
#define ROUNDS 20000
#define DEPTH  40
#define CALLS  10
#define NAP_NS 20000000
#define AGES_S 1000000

static volatile uint64_t sink;

/*
 * A call does the same amount of work wherever it is called from; the asm keeps the
 * frame.
 */
static void TARGET work(unsigned int times)
{
	uint64_t x = sink;

	for (unsigned int i = 0; i < times * ROUNDS; i++)
		x = x * 6364136223846793005u + 1442695040888963407u;
	sink = x;
}

void TARGET two(void)
{
	work(2);
	__asm__ volatile("");
}

void TARGET one(void)
{
	work(1);
	__asm__ volatile("");
}

static void TARGET deep(unsigned int left)
{
	char room[64];

	memset(room, (int)left, sizeof(room));
	if (left)
		deep(left - 1);
	else
		work(3);
	sink += (unsigned char)room[left % sizeof(room)];
}

/*
 * 3 units of its own, all below many frames of functions that are not targets; and 1 unit
 * in another target.
 */
void TARGET outer(void)
{
	deep(DEPTH);
	one();
	__asm__ volatile("");
}

void TARGET nap(void)
{
	nanosleep(&(struct timespec){ 0, NAP_NS }, NULL);
	__asm__ volatile("");
}

void TARGET sleep_for_ages(void)
{
	nanosleep(&(struct timespec){ AGES_S, 0 }, NULL);
	__asm__ volatile("");
}

/* The last call is compiled to a jump: work() returns to the caller of this function. */
__attribute__((optimize("optimize-sibling-calls"))) void TARGET jumping(void)
{
	work(2);
}

static void TARGET twice(void)
{
	work(2);
	__asm__ volatile("");
}

void far(void (*function)(void));

static void far_jumps(void)
{
	for (;;) {
		far(twice);
		one();
	}
}

#if defined(__x86_64__)
/*
 * Code without unwind tables that uses the frame pointer for other data, as a BLAS does:
 * here for an address that looks like a call by decoy().
 */
__asm__(".text\n"
	".globl lost\n"
	".type lost, @function\n"
	"lost:\n"
	"push %rbp\n"
	"push $1\n"
	"lea decoy+1(%rip), %rax\n"
	"push %rax\n"
	"push $0\n"
	"mov %rsp, %rbp\n"
	"mov $100000, %ecx\n"
	"1: dec %ecx\n"
	"jnz 1b\n"
	"add $24, %rsp\n"
	"pop %rbp\n"
	"ret\n"
	".size lost, . - lost\n");
#else
void TARGET lost(void)
{
	work(1);
}
#endif
void lost(void);

void TARGET decoy(void)
{
	work(1);
	__asm__ volatile("");
}

static void lose(void)
{
	for (;;) {
		lost();
		one();
	}
}

static void jumps(void)
{
	for (;;) {
		jumping();
		one();
	}
}

static void ratio(void)
{
	for (;;) {
		two();
		one();
	}
}

static void nested(void)
{
	for (;;)
		outer();
}

/* The work of a thread or process: more than is needed to create and wake it. */
static void some(void (*function)(void))
{
	work(0); /* page faults at the start count for no target */
	for (int i = 0; i < 4; i++)
		function();
}

static void *doing_two(void *unused)
{
	(void)unused;
	some(two);
	return NULL;
}

/*
 * Each call of two() is made in a new thread, which ends before one period of the clock.
 */
static void threads(void)
{
	pthread_t thread;

	for (;;) {
		if (pthread_create(&thread, NULL, doing_two, NULL) ||
		    pthread_join(thread, NULL))
			exit(1);
		some(one);
	}
}

/* The same with processes. */
static void children(void)
{
	for (;;) {
		pid_t pid = fork();

		if (!pid) {
			some(two);
			_exit(0);
		}
		if (pid < 0 || waitpid(pid, NULL, 0) != pid)
			exit(1);
		some(one);
	}
}

/*
 * A program that executes another one all the time. With a third of these calls an execve()
 * took more time than the calls on an emulated CPU that others used, too.
 */
static void renewed(char **argv)
{
	for (int i = 0; i < 3000; i++) {
		two();
		one();
	}
	execv("/proc/self/exe", argv);
	exit(1);
}

static void naps(void)
{
	for (;;) {
		nap();
		one();
	}
}

/* System calls, after each of which the kernel looks whether others want the CPU. */
void TARGET call(void)
{
	struct timespec now;

	for (int i = 0; i < CALLS; i++)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	__asm__ volatile("");
}

/* Three others use the only CPU that it may have; they end with it. */
static void crowded(void)
{
	cpu_set_t cpus, first;
	int cpu = 0;

	sched_getaffinity(0, sizeof(cpus), &cpus);
	while (!CPU_ISSET(cpu, &cpus))
		cpu++;
	CPU_ZERO(&first);
	CPU_SET(cpu, &first);
	sched_setaffinity(0, sizeof(first), &first);
	for (int i = 0; i < 3; i++)
		if (!fork())
			for (;;)
				work(1);
	for (;;) {
		two();
		call();
	}
}

static void *sleeping(void *unused)
{
	(void)unused;
	sleep_for_ages();
	return NULL;
}

static void asleep(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, sleeping, NULL))
		exit(1);
	naps();
}

/* Two threads that only wake each other. */
static int to[2], back[2];

static void *answering(void *unused)
{
	char byte;

	while (read(to[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
		;
	return unused;
}

void TARGET ask(void)
{
	char byte = 0;

	if (write(to[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
		exit(1);
	__asm__ volatile("");
}

static void pingpong(void)
{
	pthread_t thread;

	if (pipe(to) || pipe(back) || pthread_create(&thread, NULL, answering, NULL))
		exit(1);
	for (;;)
		ask();
}

/* As a compiler at run time does with the code that it has generated. */
static void remaps(void)
{
	size_t size = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);

	if (page == MAP_FAILED)
		exit(1);
	for (;;) {
		if (mprotect(page, size, PROT_READ | PROT_EXEC) ||
		    mprotect(page, size, PROT_READ | PROT_WRITE))
			exit(1);
		one();
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} programs[] = {
		{ "ratio", ratio },	    { "nested", nested },
		{ "threads", threads },	    { "children", children },
		{ "naps", naps },	    { "asleep", asleep },
		{ "pingpong", pingpong },   { "jumps", jumps },
		{ "far_jumps", far_jumps }, { "remaps", remaps },
		{ "lose", lose },	    { "crowded", crowded },
	};

	for (size_t i = 0; argc == 2 && i < sizeof(programs) / sizeof(*programs); i++)
		if (!strcmp(argv[1], programs[i].name))
			programs[i].run();
	if (argc == 2 && !strcmp(argv[1], "renewed"))
		renewed(argv);
	/*
	 * A fixed number of calls of two() and one(), to measure the run time without a
	 * sampler.
	 */
	if (argc == 3 && !strcmp(argv[1], "ratio")) {
		for (long n = strtol(argv[2], NULL, 10); n > 0; n--) {
			two();
			one();
		}
		return 0;
	}
	return 2;
}
