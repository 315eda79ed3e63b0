/* SPDX-License-Identifier: MIT */
/**
 * @file libsb-provisional.h
 * What of libsb may still change.
 *
 * Site tables, plans of experiments, the view of all that is slowed and the sampler are young:
 * each version of libsb may change or remove them. A program that uses them is built for one
 * version. Their symbols are of the node LIBSB_PROVISIONAL, so that nm(1) and packages show
 * which programs depend on them; all others are in libsb.h, whose rules hold here too. Most
 * lines are comments, which become the manual pages of each function: hence the length.
 *
 * Threads, as in libsb.h:
 *
 *   always   sb_site_table_create sb_site_table_open sb_site_table_set_enabled
 *            sb_site_table_set_target_enabled sb_site_table_set_target_delay
 *            sb_site_table_set_function_enabled sb_site_table_set_function_delay
 *            sb_site_seed sb_site_get sb_site_hit sb_site_note_code sb_progress_add
 *            sb_plan_report sb_plan_end_slot sb_plan_rank_look sb_plan_waited
 *            sb_sampler_new sb_sampler_stop
 *
 *   reading  sb_site_table_enabled sb_site_list_* sb_control_* sb_plan_functions
 *            sb_plan_units sb_plan_number sb_plan_slowest sb_plan_ranks sb_plan_away_ns
 *            sb_plan_lost sb_sampler_self_ns sb_sampler_looks sb_sampler_stack_count
 *            sb_sampler_stack sb_sampler_frame sb_sampler_value
 *
 *   alone    sb_site_table_close sb_site_table_show sb_site_table_hide
 *            sb_site_table_set_overhead_ns sb_site_table_set_concurrent sb_site_table_read
 *            sb_site_list_free sb_control_read sb_control_free sb_control_set_enabled
 *            sb_control_set_delay sb_control_remove sb_plan_* sb_session_plan
 *            sb_session_durations sb_session_events sb_sampler_*
 */
#ifndef LIBSB_PROVISIONAL_H
#define LIBSB_PROVISIONAL_H

#include "libsb.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------- site */

/**
 * The engine for targets that a language runtime reports (the first is CPython).
 *
 * A *table* holds the *sites* of all processes of a workload: for each matching function
 * in each process its name, policy and counters. A table can be a file that several
 * processes map, so that an experiment can read the counters and switch delays from
 * outside while the workload runs.
 *
 * Only its own process writes a site. After a fork, the child gets sites of its own under
 * its own pid; sb_site_hit() does that. (Forks are noticed by pthread_atfork(3), which
 * does not see a bare clone(2) or _Fork(3).) Slots of processes that have exited keep
 * their counts. When the table is full, and all processes are in one pid namespace, these
 * counts are added up by function, under pid 0, and the slots are reused.
 */
struct sb_site_table;
struct sb_site;

/** Options of sb_site_table_create(). Set unused fields to zero. */
struct sb_site_table_options {
	size_t sz; /**< sizeof(struct sb_site_table_options) */
	SB_FILL(sz)
	const char *path; /**< file to create (must not exist); NULL: private to this
			   * process and its forks */
	SB_FILL(path)
	uint32_t capacity; /**< maximal number of sites; 0 is 16384 */
	uint32_t enabled; /**< master switch at the start, 0 or 1 */
	uint32_t planned; /**< 1: with a plan (see there), which takes 20 MB more */
	uint32_t reserved;
	uint64_t flags; /**< SB_SITE_TABLE_* */
};

/** For a table without a path: sb_site_table_show() can be used. Uses a descriptor. */
#define SB_SITE_TABLE_VISIBLE UINT64_C(1)

/**
 * A new table. NULL with EEXIST, ENOSPC, EACCES, ENOMEM, EINVAL (capacity over 1,048,576, an
 * unknown flag, or what is 0 or 1 is neither). A file is readable and writable by its owner
 * only and takes about 700 bytes a site. Close with _close().
 */
SB_API struct sb_site_table *sb_site_table_create(const struct sb_site_table_options *opts,
						  struct sb_error *err);
/** Map the table in the file @p path. NULL with ENOENT, EINVAL (not a table). */
SB_API struct sb_site_table *sb_site_table_open(const char *path, struct sb_error *err);
/** Unmap the table; its sites must not be used any more. The file stays. */
SB_API void sb_site_table_close(struct sb_site_table *table);
/**
 * Publish that this process delays as the table says: from now on sb_control_read() finds
 * it, in all processes that may trace this one, until sb_site_table_hide() has been
 * called as often or the process has exited. Uses a descriptor, which forked children
 * inherit; if a program closes it, the process is not found any more.
 * @param label how the table came into force, for display, such as "environment"; a line
 *   of at most 63 bytes
 * @return 0, or -1 with EOPNOTSUPP (a table that is not visible), EINVAL (label), EMFILE,
 *   ENOMEM
 */
SB_API int sb_site_table_show(struct sb_site_table *table, const char *label);
/** Take back one sb_site_table_show(). */
SB_API void sb_site_table_hide(struct sb_site_table *table);
/**
 * Set the master switch, which takes effect in all processes at their next call.
 * Thread-safe.
 */
SB_API void sb_site_table_set_enabled(struct sb_site_table *table, bool enabled);
/** Whether the master switch is on. */
SB_API bool sb_site_table_enabled(const struct sb_site_table *table);
/**
 * Set the cost of the runtime's hook for a call, apart from the spin; it is subtracted
 * from each delay. For this process only.
 */
SB_API void sb_site_table_set_overhead_ns(struct sb_site_table *table, uint64_t ns);
/**
 * Set whether several threads of this process may call the function of a site at the same time (a
 * runtime without a global lock), so that counters are incremented atomically.
 */
SB_API void sb_site_table_set_concurrent(struct sb_site_table *table, bool concurrent);

/** As a delay: restore each site's own delay. */
#define SB_SITE_OWN_DELAY UINT64_MAX

/**
 * Switch the sites of a target number or of a function name ("module:qualname"), or
 * change their delay, in all processes: existing sites from their next call on, and future
 * sites. A setting for a function takes precedence over one for its target, which takes
 * precedence over the policy of the site; if the master switch is off, nothing is
 * delayed. The cost does not grow with the number of sites. Thread-safe.
 * @return 0, or -1 with ERANGE (target number not below the capacity of the table, delay
 *   over SB_MAX_DELAY_NS), EINVAL or ENAMETOOLONG (name), ENOSPC (no room for the name)
 */
SB_API int sb_site_table_set_target_enabled(struct sb_site_table *table, uint32_t target,
					    bool enabled);
SB_API int sb_site_table_set_target_delay(struct sb_site_table *table, uint32_t target,
					  uint64_t delay_ns);
SB_API int sb_site_table_set_function_enabled(struct sb_site_table *table,
					      const char *name, bool enabled);
SB_API int sb_site_table_set_function_delay(struct sb_site_table *table, const char *name,
					    uint64_t delay_ns);

/** The policy of a site. Set unused fields to zero. */
struct sb_site_policy {
	size_t sz; /**< sizeof(struct sb_site_policy) */
	SB_FILL(sz)
	uint64_t delay_ns; /**< net delay of each delayed call */
	uint64_t start_ns; /**< no delay before this; CLOCK_MONOTONIC, 0: no limit */
	uint64_t end_ns; /**< no delay from then on; 0: no limit */
	uint32_t every; /**< delay every Nth call; 0 and 1 delay each */
	uint32_t target; /**< the caller's number for the pattern */
	uint32_t disabled; /**< 1: counts, does not delay */
	/**
	 * Instead of delay_ns, which is 0 then: millionths of the duration of each
	 * delayed call, at its end. 0: none. A call that sb_site_hit() counts has no end,
	 * and is not delayed.
	 */
	uint32_t delay_ppm;
	/**
	 * Count and delay only calls by threads whose names match this glob; NULL: all
	 * threads. The text is copied.
	 */
	const char *thread;
	SB_FILL(thread)
	double sigma; /**< of SB_DELAY_LOGNORMAL: over 0, at most SB_MAX_SIGMA */
	/** SB_DELAY_*; SB_DELAY_WAIT sleeps where no runtime is known here */
	uint32_t mode;
	/** SB_DELAY_FIXED and following; a delay that is drawn is at most SB_MAX_DELAY_NS */
	uint32_t dist;
};

/**
 * Seed the random delays (sb_site_policy.dist) of all threads of this process and of the
 * processes that it forks from now on. Each thread has random numbers of its own, in the
 * order in which threads first use them, and so does each child, in the order of forks.
 * Without this call the seed is 0. Thread-safe.
 */
SB_API void sb_site_seed(uint64_t seed);

/**
 * The site @p name ("module:qualname") of this process: the same site for the same name
 * and target, with @p policy from now on. It belongs to the table and is valid as long as
 * the table. @p policy may be NULL: count only. NULL with ENOSPC (table full), ENOMEM,
 * EINVAL (no name, no such mode or distribution, both delays), ENAMETOOLONG (name of 32
 * KiB), ERANGE (delay over SB_MAX_DELAY_NS). Thread-safe.
 */
SB_API struct sb_site *sb_site_get(struct sb_site_table *table, const char *name,
				   const struct sb_site_policy *policy,
				   struct sb_error *err);

/**
 * Count a call, and delay it as the site's policy says. This is the hot path.
 *
 * In a child process the first call allocates a slot for the site. If the table is full,
 * the site still delays but is not counted: sb_site_list_lost().
 * @param entry sb_spin_ticks() as early in the runtime's hook as possible: the time from
 *   there on is part of the delay. Or 0: the counter is read when a delay is due, so that
 *   a call without a delay costs no reading; the time of the hook before that then belongs
 *   into sb_site_table_set_overhead_ns()
 *
 * Thread-safe, async-signal-safe, never fails, keeps errno.
 */
SB_API void sb_site_hit(struct sb_site *site, uint64_t entry);

/** The number of code addresses per site. */
#define SB_SITE_CODES 4

/**
 * Record a code address of the function of @p site in this process, for a reader that
 * samples from outside which function runs. The runtime defines what the address is. Of
 * several addresses the first SB_SITE_CODES are kept. Thread-safe.
 */
SB_API void sb_site_note_code(struct sb_site *site, uint64_t address);

/**
 * Add @p n units of work to the progress point @p name of this process. -1 with
 * errno as sb_site_get(). Thread-safe.
 */
SB_API int sb_progress_add(struct sb_site_table *table, const char *name, uint64_t n);

/** A snapshot of all sites of a table. */
struct sb_site_list;

enum sb_site_kind {
	SB_SITE_FUNCTION = 1,
	SB_SITE_PROGRESS = 2, /**< its calls are units of work */
};

/** Free with sb_site_list_free(). NULL with ENOMEM. */
SB_API struct sb_site_list *sb_site_table_read(struct sb_site_table *table);
SB_API void sb_site_list_free(struct sb_site_list *list);
/** How many there are. */
SB_API size_t sb_site_list_count(const struct sb_site_list *list);
/**
 * How many functions are missing in some process because the table was full, each counted
 * once. A larger table avoids this.
 */
SB_API uint64_t sb_site_list_lost(const struct sb_site_list *list);
/** A function or a progress point. */
SB_API enum sb_site_kind sb_site_list_kind(const struct sb_site_list *list, size_t i);
/** Its name, as passed to sb_site_get() or sb_progress_add(). */
SB_API const char *sb_site_list_name(const struct sb_site_list *list, size_t i);
/** The process that it belongs to; 0: the sum over processes that have exited. */
SB_API pid_t sb_site_list_pid(const struct sb_site_list *list, size_t i);
/** The number of its target, from its policy. */
SB_API uint32_t sb_site_list_target(const struct sb_site_list *list, size_t i);
/** The delay in force, ns: that of its function, its target, or its own. */
SB_API uint64_t sb_site_list_delay_ns(const struct sb_site_list *list, size_t i);
/** Whether the switches of the table, its function and its target are on. */
SB_API bool sb_site_list_enabled(const struct sb_site_list *list, size_t i);
/** The @p n th recorded address of its code, 0 if there is none. */
SB_API uint64_t sb_site_list_code(const struct sb_site_list *list, size_t i,
				  unsigned int n);
/** Calls. */
SB_API uint64_t sb_site_list_calls(const struct sb_site_list *list, size_t i);
/** Calls that were delayed. */
SB_API uint64_t sb_site_list_delayed(const struct sb_site_list *list, size_t i);
/** Sum of the requested delays, ns. */
SB_API uint64_t sb_site_list_requested_ns(const struct sb_site_list *list, size_t i);
/**
 * Sum of the delivered delays (hook included), ns: CPU time if a delay spins, else
 * elapsed time.
 */
SB_API uint64_t sb_site_list_delivered_ns(const struct sb_site_list *list, size_t i);

/* ---------------------------------------------------------------- control */

/**
 * All targets that the caller can see, whatever added them, and their switches: functions of
 * language runtimes in every process that shows its table (sb_site_table_show()), and the
 * native targets of a session's backend. There is no register of tables: the kernel is asked
 * which processes show one. So the targets of a process end with it, and tables of processes
 * that the caller may not trace (ptrace(2), PTRACE_MODE_READ) are not found.
 *
 * A snapshot; its switches change the targets that it lists. Processes and targets are
 * numbered from 0, in no order; the numbers are those of this snapshot. Text that is returned
 * lives as long as the snapshot.
 */
struct sb_control;

/** What a target is. */
enum sb_control_kind {
	SB_CONTROL_FUNCTION = 1, /**< of a language runtime */
	SB_CONTROL_NATIVE = 2, /**< of the kernel module, or BPF */
};

/**
 * Take a snapshot.
 * @param session its backend lists and changes native targets; it must outlive the
 *   result. NULL: no native targets are listed
 * @return free with sb_control_free(); NULL with ENOMEM, EMFILE, ENFILE, errno of
 *   opendir("/proc"), or of sb_session_list()
 */
SB_API struct sb_control *sb_control_read(struct sb_session *session,
					  struct sb_error *err);
SB_API void sb_control_free(struct sb_control *control);
/** How many processes publish a table; one that publishes several counts as often. */
SB_API size_t sb_control_process_count(const struct sb_control *control);
/** The @p p th, by its number in the caller's pid namespace. */
SB_API pid_t sb_control_process_pid(const struct sb_control *control, size_t p);
/** How its table came into force, as it says itself. */
SB_API const char *sb_control_process_label(const struct sb_control *control, size_t p);
/**
 * A number that processes have in common whose functions are switched together, as after a
 * fork. Not 0.
 */
SB_API uint64_t sb_control_process_group(const struct sb_control *control, size_t p);
/**
 * The number of processes of which something was left out, because they publish more than
 * the limits: 64 tables or 16 MB of functions in one process, 4,096 tables or 256 MB in
 * all. The rest of their data is included.
 */
SB_API size_t sb_control_left_out(const struct sb_control *control);
/**
 * How many targets there are: functions that were called since their table was shown, and
 * native targets.
 */
SB_API size_t sb_control_count(const struct sb_control *control);
/** What kind it is. */
SB_API enum sb_control_kind sb_control_kind(const struct sb_control *control, size_t i);
/** "module:qualname", or the label of a native target. */
SB_API const char *sb_control_name(const struct sb_control *control, size_t i);
/** The process; for a native target the root of its tree, or the thread; 0: all. */
SB_API pid_t sb_control_pid(const struct sb_control *control, size_t i);
/** As sb_control_process_label(); for a native target "persistent" or "session". */
SB_API const char *sb_control_label(const struct sb_control *control, size_t i);
/** The delay in force, ns; for functions under an experiment, their delay without it. */
SB_API uint64_t sb_control_delay_ns(const struct sb_control *control, size_t i);
/** Every Nth call is delayed; 0: unknown. */
SB_API uint32_t sb_control_every(const struct sb_control *control, size_t i);
/** Whether it is on, including all switches above it. */
SB_API bool sb_control_enabled(const struct sb_control *control, size_t i);
/**
 * Whether an experiment controls it, or it belongs to another session: it can't be
 * changed then.
 */
SB_API bool sb_control_is_ruled(const struct sb_control *control, size_t i);
/** Calls; of a function those in this process. */
SB_API uint64_t sb_control_calls(const struct sb_control *control, size_t i);
/** Calls that were delayed. */
SB_API uint64_t sb_control_delayed(const struct sb_control *control, size_t i);
/** Sum of the delivered delays, ns. */
SB_API uint64_t sb_control_delivered_ns(const struct sb_control *control, size_t i);

/**
 * Switch those of @p which, which are indices, on or off. A function is switched in all
 * processes of its group, and as long as its table is in force.
 * @return 0, or -1 with EBUSY (one is ruled) or ERANGE (index, or delay over
 *   SB_MAX_DELAY_NS): then none is switched. Or with what the first met that could not be
 *   switched, such as EACCES or EPERM (another user's), ENOSPC (no room for the name in its
 *   table), or what sb_session_update() fails with; all others are. ESRCH if none is there
 *   any more
 */
SB_API int sb_control_set_enabled(struct sb_control *control, const size_t *which,
				  size_t count, bool enabled, struct sb_error *err);
/** The same for their delay. */
SB_API int sb_control_set_delay(struct sb_control *control, const size_t *which,
				size_t count, uint64_t delay_ns, struct sb_error *err);
/**
 * Remove the native ones, likewise; functions are switched off and get their original
 * delay back.
 */
SB_API int sb_control_remove(struct sb_control *control, const size_t *which,
			     size_t count, struct sb_error *err);

/* ------------------------------------------------------------------- plan */

/**
 * An experiment inside a run. Time is cut into *slots* of a few units of work; which
 * functions are delayed in which slot is written ahead, into memory that the program
 * shares, and each call looks it up there. So delays of all kinds of functions are
 * switched at the ends of units, in all processes at once, without the one that wrote it
 * having to be quick, or to be there: what is planned expires with the lease.
 *
 * This object is the tool's side of it.
 */
struct sb_plan;

/** The recommended length of a lease, and how many slots can be planned ahead. */
#define SB_PLAN_LEASE_NS 500000000U
#define SB_PLAN_AHEAD	 3072U
/** The maximal numbers of arms of a plan and of levels of a dose. */
#define SB_PLAN_ARMS   48
#define SB_PLAN_LEVELS 7
/** Instead of an arm: never delayed. */
#define SB_PLAN_NO_ARM UINT32_MAX

/** How a slot ended. */
struct sb_plan_slot {
	uint64_t number; /**< from 0 */
	uint64_t end_ns; /**< CLOCK_MONOTONIC; 0: the record is lost */
	uint64_t units; /**< since the program began */
	uint64_t cpu_ns; /**< CPU time of the thread that ended it, since the thread began */
	uint64_t wait_ns; /**< its time waiting for a CPU */
	uint32_t tid; /**< that thread; 0: unknown, as are its times */
	uint32_t complete; /**< 0: counts of some function are missing */
	uint64_t waited_ns; /**< time that a rank waited for others, since its process began */
};

/** A process that reports units of work. Unknown values are -1. */
struct sb_plan_rank {
	uint32_t index; /**< for sb_plan_read_rank() */
	uint32_t pid;
	int32_t rank, world, local, node;
	int32_t attempt; /**< how often the rank was started before */
	int32_t begun; /**< 0: it has no slot yet */
	const char *launcher; /**< for display, static; "" if there is none */
	SB_FILL(launcher)
	uint64_t units; /**< reported so far */
	uint64_t number; /**< of the slot that it is in */
};

/**
 * The plan of a table that was created with one. It must outlive the result.
 * @return free with sb_plan_free(); NULL with EINVAL (the table has none), ENOMEM
 */
SB_API struct sb_plan *sb_plan_new(struct sb_site_table *table, struct sb_error *err);
SB_API void sb_plan_free(struct sb_plan *plan);
/**
 * Use memory shared by the kernel (sb_session_plan()) for the plan; call this before the
 * program starts. @p fd is mapped, and can be closed. Processes of the program request it
 * at the socket "PATH.plan" beside the table, where the caller has to send it to them.
 */
SB_API int sb_plan_use_memory(struct sb_plan *plan, int fd, struct sb_error *err);
/**
 * Let the plan control a function of the table, called yet or not: only the plan delays
 * it.
 * @return its number, the same for the same name; -1 with errno as
 *   sb_site_table_set_function_enabled()
 */
SB_API int sb_plan_add_function(struct sb_plan *plan, const char *name);
/** Rule the @p index th target of the plan of sb_session_plan(). */
SB_API int sb_plan_add_target(struct sb_plan *plan, uint32_t index);
/** How many functions and targets the plan controls. */
SB_API size_t sb_plan_functions(const struct sb_plan *plan);
/** Units are those of a progress point. -1 as above. */
SB_API int sb_plan_count_point(struct sb_plan *plan, const char *name);
/** Units are the calls of a function of the table. -1 as above. */
SB_API int sb_plan_count_function(struct sb_plan *plan, const char *name);
/** Report units from here, for a program that can't. Thread-safe. */
SB_API void sb_plan_report(struct sb_plan *plan, uint64_t units);
/**
 * End the slot that runs, for slots of time: with slot units of 0 nothing else does.
 * Thread-safe.
 * @param units that were done since the last report, 0 too
 * @param end_ns CLOCK_MONOTONIC at which they were counted, which may be a little ago; 0: what
 *   was done is not known, and the record of the slot is lost
 * @return the number of the slot
 */
SB_API uint64_t sb_plan_end_slot(struct sb_plan *plan, uint64_t units, uint64_t end_ns);
/** Set the number of units per slot; 0 (initially): units do not end slots. */
SB_API void sb_plan_set_slot_units(struct sb_plan *plan, uint64_t units);
/** Units reported so far. */
SB_API uint64_t sb_plan_units(const struct sb_plan *plan);
/** The number of the current slot. */
SB_API uint64_t sb_plan_number(const struct sb_plan *plan);
/**
 * Set the delays of a function when its arm is on, by level of dose; only while nothing
 * is planned. @p delay_ns and @p every have @p levels entries; @p every may be NULL.
 * @return 0, or -1 with ERANGE (no such function, arm or level, delay over
 *   SB_MAX_DELAY_NS)
 */
SB_API int sb_plan_set(struct sb_plan *plan, int number, uint32_t arm,
		       const uint64_t *delay_ns, const uint32_t *every, size_t levels);
/**
 * On the @p index th rank, add @p first_arm to the arm of each function, so that
 * functions can be delayed there in other slots than elsewhere. It is 0 for a rank that
 * joins.
 * @return 0, or -1 with ERANGE (no such rank, or none of its arms would be left)
 */
SB_API int sb_plan_set_rank_arms(struct sb_plan *plan, uint32_t index, uint32_t first_arm);
/**
 * Plan slots from @p first on: in each, the arms of a mask are on, at a level.
 * @return how many were planned: not those that have begun (less than two slots ahead),
 *   nor those over SB_PLAN_AHEAD ahead. Slots that are not planned have no delays
 */
SB_API size_t sb_plan_schedule(struct sb_plan *plan, uint64_t first,
			       const uint64_t *masks, const uint8_t *levels, size_t count);
/** Cancel what is planned from two slots ahead on; returns the first free number. */
SB_API uint64_t sb_plan_cancel(struct sb_plan *plan);
/** Keep delays in force for @p ns from now; 0: end them. */
SB_API void sb_plan_renew(struct sb_plan *plan, uint64_t ns);
/**
 * Read slots that have ended, in order, each once.
 * @param calls, delivered_ns @p room rows of sb_plan_functions() numbers each: the counts
 *   of each function in the slot
 * @return how many were read
 */
SB_API size_t sb_plan_read(struct sb_plan *plan, struct sb_plan_slot *slots,
			   uint64_t *calls, uint64_t *delivered_ns, size_t room);
/**
 * The processes that have reported units, in the order of their first report.
 * @return how many are in @p ranks, at most @p room
 */
SB_API size_t sb_plan_ranks(const struct sb_plan *plan, struct sb_plan_rank *ranks,
			    size_t room);
/**
 * The rank of this process according to its launcher and environment; index, units and
 * number are 0. 0, or -1 with ENOENT: none.
 */
SB_API int sb_plan_rank_look(struct sb_plan_rank *rank);
/**
 * From now on each rank counts its own units, which determine its slot: the same slot on
 * all ranks after the same units. sb_plan_number() is that of the rank that is furthest
 * ahead; sb_plan_read() reads nothing any more. Not for native targets, for which there
 * is only one number. Before calling it again, cancel what was planned.
 * @param first_unit of each rank, with which slots begin; ranks that come later begin in
 *   the slot of the others. No rank should have reported it yet
 * @param by_attempt slots begin with the first unit of each process, and those of attempt
 *   a have the numbers from a << 20 on
 */
SB_API void sb_plan_set_pace(struct sb_plan *plan, uint64_t first_unit,
			     uint64_t slot_units, int by_attempt);
/** Like sb_plan_number(), for the last rank that still keeps up with the others. */
SB_API uint64_t sb_plan_slowest(const struct sb_plan *plan);
/**
 * Like sb_plan_read(), for slots of the @p index th rank and its worker processes.
 * Missing numbers are slots that it did not have.
 * @param last its process has exited: its last slot is read too
 */
SB_API size_t sb_plan_read_rank(struct sb_plan *plan, uint32_t index, int last,
				struct sb_plan_slot *slots, uint64_t *calls,
				uint64_t *delivered_ns, size_t room);
/**
 * In a process of the program: @p ns of its time was waiting for other ranks. Thread-safe.
 * @return 0, or -1 with errno: EINVAL (the table has no plan), ENOSPC
 */
SB_API int sb_plan_waited(struct sb_site_table *table, uint64_t ns);
/**
 * How much longer than delivered the delays of a function took in total, ns: their
 * threads were preempted. 0 for native targets, for which it is unknown.
 */
SB_API uint64_t sb_plan_away_ns(const struct sb_plan *plan, int number);
/** Number of slots since the plan was made whose records or counts were lost. */
SB_API uint64_t sb_plan_lost(const struct sb_plan *plan);

/**
 * Create the plan of an experiment, of which a session has at most one: memory that the
 * kernel and any number of processes share, with the layout of struct speed_bump_plan in
 * the uapi header. The plan says in advance what is delayed in which slot
 * (sb_plan_use_memory()), and targets look it up at each call.
 * @param ids targets of the session that the plan controls, at most 1024: target i of the
 *   plan is @p ids [i]. Their own delays and switches have no effect any more
 * @param unit_ids targets of which each call is a unit of work; they may be among @p ids
 * @return a descriptor for mmap(2), which the caller closes: the memory exists as long as
 *   the descriptor, the session, or a mapping. -1 with EEXIST (the session has a plan),
 *   ENOENT (no such target of this session), EINVAL (too many, or one twice in a list),
 *   EOPNOTSUPP (the module is older than plans), EMFILE, ENOMEM
 */
SB_API int sb_session_plan(struct sb_session *session, const uint64_t *ids, size_t count,
			   const uint64_t *unit_ids, size_t unit_count,
			   struct sb_error *err);

/**
 * Buckets of a histogram of durations: one for each ns below 128 ns; from there on each power
 * of two has 64, up to 2^40 ns; the last has all longer ones.
 */
#define SB_DURATION_BUCKETS 2241

/**
 * How long the calls of a target of the session lasted that have ended so far: a target with
 * the option record.
 * @param buckets SB_DURATION_BUCKETS numbers of calls; histograms of several targets are
 *   added up bucket by bucket
 * @param sum_ns their sum
 * @param max_ns the longest
 * @return 0, or -1 with ENOENT (no such target of this session), EINVAL (it does not record),
 *   EOPNOTSUPP (no SB_FEATURE_DURATIONS)
 */
SB_API int sb_session_durations(struct sb_session *session, uint64_t id, uint64_t *buckets,
				uint64_t *sum_ns, uint64_t *max_ns, struct sb_error *err);

/** As the option record of a target: each call is also an event (sb_session_events()). */
#define SB_RECORD_EVENTS 2U

/** A call that has ended. */
struct sb_call_event {
	uint64_t begin_ns; /**< when it began, CLOCK_MONOTONIC */
	uint64_t duration_ns; /**< how long it lasted, as sb_session_durations() has it */
	uint64_t id; /**< the target */
	uint32_t pid; /**< the process, by its number in the initial pid namespace */
	uint32_t reserved; /**< 0 */
};

/**
 * Take the calls that have ended of targets of the session with SB_RECORD_EVENTS, each once.
 * Does not wait. What is not taken is kept for a while: 32,767 calls of each time that
 * targets were added (those of 100 ms, at 300,000 a second). While there is no room, events
 * of new calls are lost; sb_session_durations() has all calls.
 * @param events the caller's, for @p room events; calls are in the order in which they ended,
 *   except for those that end at the same moment
 * @param count how many there are; if it is @p room, there may be more
 * @param lost how many were lost since the session was opened
 * @return 0, or -1 with EOPNOTSUPP (no SB_FEATURE_EVENTS)
 */
SB_API int sb_session_events(struct sb_session *session, struct sb_call_event *events,
			     size_t room, size_t *count, uint64_t *lost,
			     struct sb_error *err);

/* ---------------------------------------------------------------- sampler */

/**
 * Self time of native functions: how long threads are in them, observed from outside. The
 * kernel's perf events (perf_event_open(2)) sample the user stacks of the program's
 * threads. The stacks are unwound afterwards with the unwind tables of the program's
 * files (.eh_frame), so that frame pointers are not needed. A stack counts for the
 * innermost function on it that was added: the time of a function is its own and that of
 * its callees, without the time of other added functions in it.
 *
 * All time counts, not only CPU time: the places of a thread at ticks of a CPU's clock
 * (at most 1000 per second on each) divide its time on CPUs and the time for which others
 * had them, and the place where it blocked gets the time until it is back. So the sum over
 * a function's threads, divided by the elapsed time, is the average number of threads in
 * it. Needs root, or CAP_PERFMON (before Linux 5.8, and if kernel.perf_event_paranoid of
 * some Debian kernels is above 2, CAP_SYS_ADMIN), and CAP_SYS_PTRACE for programs of
 * other users.
 */
struct sb_sampler;

/** Totals of the last run. Times are ns. */
enum sb_sampler_value {
	SB_SAMPLER_CLOCK_NS = 1, /**< its duration */
	SB_SAMPLER_CPU_NS, /**< CPU time of all threads together */
	SB_SAMPLER_OFF_NS, /**< time off the CPU of all threads together */
	SB_SAMPLER_UNSEEN_NS, /**< the part of both whose place is unknown, because no
			       * unwind table covers it */
	SB_SAMPLER_STACKS, /**< unwound stacks */
	SB_SAMPLER_LOST, /**< records that the kernel dropped, and stacks that were not unwound */
};

/**
 * A sampler without functions and processes.
 * @return free with sb_sampler_free(); NULL with ENOSYS (libsb was built without libdw),
 *   ENOMEM
 */
SB_API struct sb_sampler *sb_sampler_new(struct sb_error *err);
SB_API void sb_sampler_free(struct sb_sampler *sampler);
/**
 * Add a function, which contains @p offset in the file of @p elf; parts that the compiler
 * moved elsewhere ("NAME.cold") belong to it.
 * @return its number, the same for the same function; -1 with ENOENT (no symbol gives its
 *   size), ENOMEM
 */
SB_API int sb_sampler_add_function(struct sb_sampler *sampler, struct sb_elf *elf,
				   uint64_t offset, struct sb_error *err);
/**
 * Sample a process and its descendants, including later ones, in the next run only: by
 * the run after that, the number may have been reused. -1 with ENOMEM.
 */
SB_API int sb_sampler_add_process(struct sb_sampler *sampler, pid_t pid);
/**
 * Leave out a thread of these processes in the next run, as if it did not exist: one of a
 * tool, for example. -1 with ENOMEM.
 */
SB_API int sb_sampler_leave_out_thread(struct sb_sampler *sampler, pid_t tid);
/**
 * Look for @p ns, or until 256 MiB of stacks or of events are kept, and then follow the
 * stacks, which takes no longer than that again; what was known of an earlier run is
 * forgotten. Blocks meanwhile, in which other threads may use the rest of the library;
 * opens an event for each thread and CPU: SB_EFFECT_NOFILE is for programs with more than some
 * hundred. On a busy machine the thread that looks is late and loses records, unless it goes
 * before others: SB_EFFECT_SCHED.
 * @return 0, or -1 with EACCES or EPERM (perf events are refused: the message says what
 *   to do), ENOENT (the kernel has none), EMFILE (too many threads), ENOMEM
 */
SB_API int sb_sampler_run(struct sb_sampler *sampler, uint64_t ns, struct sb_error *err);
/**
 * End the current run, or else the next one, with the samples so far: at once, except for
 * unwinding, which takes at most 100 ms. Thread-safe, and safe in a signal handler.
 */
SB_API void sb_sampler_stop(struct sb_sampler *sampler);
/** The self time of a function in the last run, of all threads together, ns. */
SB_API uint64_t sb_sampler_self_ns(const struct sb_sampler *sampler, int number);
/**
 * The number of independent samples that the self time is worth: its error is that of as
 * many coin tosses. Long stays count as few samples.
 */
SB_API uint64_t sb_sampler_looks(const struct sb_sampler *sampler, int number);
/**
 * Also store the stacks of the next runs: of all code, not only of the added functions.
 * They are kept until the following run.
 */
SB_API void sb_sampler_keep_stacks(struct sb_sampler *sampler, bool keep);
/** The number of stored stacks of the last run. */
SB_API size_t sb_sampler_stack_count(const struct sb_sampler *sampler);

/** The properties of a stack. */
enum sb_stack_value {
	SB_STACK_TID = 1, /**< the thread's id to the kernel */
	SB_STACK_TIME_NS, /**< when it was first seen, CLOCK_MONOTONIC */
	SB_STACK_NS, /**< how long it was there; on a CPU, the time that a sample stands for */
	SB_STACK_OFF_CPU, /**< 1: it was off the CPU */
	SB_STACK_DEPTH, /**< number of known frames, from the innermost */
	SB_STACK_WHOLE, /**< 1: these are all; 0: it could not be followed to its end, as
			 *   code there does not say what called it */
};

/** A value of the @p index th stack. */
SB_API uint64_t sb_sampler_stack(const struct sb_sampler *sampler, size_t index,
				 enum sb_stack_value value);
/**
 * The file of a frame's code, as the process mapped it, and the offset in it.
 * @param frame 0 is the innermost
 * @param offset is set; that of a caller is inside its call instruction
 * @return valid until the next run; NULL: there is no such frame, or its code is in no
 *   file
 */
SB_API const char *sb_sampler_frame(const struct sb_sampler *sampler, size_t index,
				    size_t frame, uint64_t *offset);
/** A value of the last run. */
SB_API uint64_t sb_sampler_value(const struct sb_sampler *sampler,
				 enum sb_sampler_value value);

#ifdef __cplusplus
}
#endif

#endif /* LIBSB_PROVISIONAL_H */
