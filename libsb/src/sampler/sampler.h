/* SPDX-License-Identifier: MIT */
/* Common parts of the sampler: events, stacks and mappings of code. */
#ifndef SB_SAMPLER_H
#define SB_SAMPLER_H

#include <sys/types.h>

#include "libsb-provisional.h"

/* Registers by DWARF's numbers; the last is the program counter. */
#if defined(__x86_64__)
#define SAMPLER_REGISTERS 17
#define SAMPLER_SP	  7
#elif defined(__aarch64__)
#define SAMPLER_REGISTERS 33
#define SAMPLER_SP	  31
#else
#error "x86_64 and aarch64 only"
#endif
#define SAMPLER_PC (SAMPLER_REGISTERS - 1)

/* The user stack of a thread at one moment, from the stack pointer upwards. */
struct stack {
	uint64_t registers[SAMPLER_REGISTERS];
	bool partial; /* only the stack pointer and the program counter are known */
	uint32_t size;
	unsigned char bytes[];
};

struct mapping {
	uint64_t start, end, offset;
	char path[];
};

enum event_kind {
	EVENT_CLOCK, /* a tick of a CPU's clock, with the thread on it */
	EVENT_OUT_SAMPLE, /* the thread leaves its CPU, with its stack */
	EVENT_OUT, /* it left the CPU */
	EVENT_IN, /* it is on a CPU again */
	EVENT_FORK, /* a new thread, created by @parent or by the process itself */
	EVENT_EXIT,
	EVENT_EXEC,
	EVENT_MAP,
};

struct event {
	uint64_t time_ns;
	size_t order; /* of one moment */
	enum event_kind kind;
	pid_t pid, tid;
	pid_t parent; /* of a fork: its process */
	pid_t source; /* the thread whose event reported it, itself or an ancestor */
	bool preempted; /* of a departure: it could have gone on */
	union {
		struct stack *stack;
		struct mapping *mapping;
	};
};

/* ------------------------------------------- perf.c: the kernel's events */

struct recorder;

/*
 * A clock of @period_ns on every CPU, and a stack at every @every th switch there; 0: at
 * switches of the attached threads. NULL with errno and a message.
 */
struct recorder *sb_recorder_open(uint64_t period_ns, uint64_t every,
				  struct sb_error *err);
void sb_recorder_close(struct recorder *recorder);
/*
 * Report the switches and mappings of a thread, and of threads that it creates. 1; 0: it
 * has exited; -1 with errno and a message.
 */
int sb_recorder_attach(struct recorder *recorder, pid_t tid, struct sb_error *err);
/* Sample this process; descendants are included automatically. */
void sb_recorder_know(struct recorder *recorder, pid_t pid);
bool sb_recorder_knows(const struct recorder *recorder, pid_t pid);
/* Wait up to the given time for the buffers to fill, and read them. -1: ENOMEM. */
int sb_recorder_drain(struct recorder *recorder, int timeout_ms);
/* There was no room for some of the records that were read last. */
bool sb_recorder_is_full(const struct recorder *recorder);
/* Everything before that time has been read, if there was room. */
uint64_t sb_recorder_read_ns(const struct recorder *recorder);
/* The limit for stored events and their data, bytes; the tests set it. */
extern uint64_t sb_recorder_most_bytes __attribute__((visibility("hidden")));
/* Not a divisor of a millisecond, so that samples are not in step with the program. */
void sb_recorder_jitter(struct recorder *recorder);
/* Sorted by time. They belong to the recorder. */
struct event *sb_recorder_sort(struct recorder *recorder, size_t *count);
uint64_t sb_recorder_lost(const struct recorder *recorder);

/* ----------------------------------- unwind.c: whose code, and what called it */

struct functions;
struct image;

struct functions *sb_functions_new(void);
void sb_functions_free(struct functions *functions);
/* The number of the function; -1 with ENOMEM. @end 0: only the first byte. */
int sb_functions_add(struct functions *functions, dev_t dev, ino_t ino, uint64_t begin,
		     uint64_t end);
/* More code of an existing function. */
int sb_functions_add_part(struct functions *functions, int number, dev_t dev, ino_t ino,
			  uint64_t begin, uint64_t end);
int sb_functions_count(const struct functions *functions);

/* Mappings of code in a process; shared after a fork. NULL: ENOMEM. */
struct image *sb_image_new(pid_t pid);
struct image *sb_image_ref(struct image *image);
void sb_image_unref(struct image *image);
/*
 * A copy with one more mapping; takes ownership of the one given, unless it fails. NULL:
 * ENOMEM.
 */
struct image *sb_image_with(struct image *image, const struct mapping *mapping);
/* The mappings of a running process. NULL with errno. */
struct image *sb_image_of(pid_t pid);

#define UNWOUND_NOBODY (-1) /* it has no function that was added */
#define UNWOUND_NOT    (-2) /* it could not be unwound to its end */

/* The place of a frame's code in its file; @path NULL: in no file. */
struct kept_frame {
	const char *path; /* in the list in which it is stored */
	uint64_t offset;
};

/* Frames of stacks, and the paths of their files, each stored once. */
struct kept {
	struct kept_frame *frames;
	size_t count, room;
	bool whole; /* the last of them is the outermost of its stack */
	char **paths;
	size_t path_count, path_room;
};

void sb_kept_clear(struct kept *kept);

/*
 * The innermost added function on the stack: its number, or UNWOUND_. The known frames,
 * up to the outermost if possible, are added to @kept unless it is NULL.
 */
int sb_image_unwind(struct image *image, const struct functions *functions,
		    const struct stack *stack, struct kept *kept);

#endif
