// SPDX-License-Identifier: MIT
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "site_table.h"
#include "spin.h"
#include "window_pressure.h"

#define MOST_EXTENSION	4 /* a window waits so many lengths for its units */
#define MOST_WASHOUT	8 /* and as many washouts for those before it */
#define LEAST_REST_NS	50000U
#define LOOKS_A_UNIT	32 /* where units leave no time stamps, */
#define LEAST_LOOK_NS	25000U /* not more often than that */
#define LONGEST_UNIT	4 /* of their mean */
#define STABLE_READINGS 4

#define load(object)	    atomic_load_explicit(object, memory_order_relaxed)
#define store(object, with) atomic_store_explicit(object, with, memory_order_relaxed)

/* The slots that the sites of one function have, of all processes. */
struct slot_list {
	struct site_slot **slots;
	size_t count, room;
};

/* A function of the table, or with @function NULL the native target @id. */
struct control {
	struct site_function *function;
	uint64_t id;
	struct slot_list slots;
	/* What the kernel was told last, so that it is told changes only. */
	enum sb_window_mode mode;
	uint64_t delay_ns;
};

struct action {
	int control;
	enum sb_window_mode mode;
	uint64_t delay_ns;
	uint32_t every;
};

struct window {
	uint64_t washout_ns, length_ns;
	unsigned int washout_units, units;
	size_t first_action, actions;
	uint64_t values[SB_WINDOW_STEAL_NS + 1];
};

/* What a slot's function is to us: bits of index_of_function. */
#define IS_POINT    (1U << 31)
#define IS_FUNCTION (1U << 30)
#define INDEX_MASK  (IS_FUNCTION - 1)

struct sb_windows {
	struct sb_site_table *table;
	struct sb_session *session;
	struct pressure *pressure;

	struct control *controls;
	size_t control_count, control_room;
	/* For each function of the table its control + 1, and whether it is progress. */
	uint32_t *index_of_function;
	bool *seen; /* of each slot */
	size_t first_unseen;
	struct slot_list progress;
	uint64_t *progress_ids;
	size_t progress_id_count;
	uint64_t unit_ns; /* how long theirs were the last time */

	pid_t *pids;
	size_t pid_count, pid_room;

	struct action *actions;
	size_t action_count, action_room;
	struct window *windows;
	size_t window_count, window_room, done;
};

struct reading {
	uint64_t clock_ns, units, last_ns;
	uint64_t hits, delayed, requested_ns, measured_ns;
	struct pressure_reading pressure;
};

/* Make room for one more in an array. */
static int grow(void *array, size_t count, size_t *room, size_t size)
{
	void **place = array;
	size_t more = *room ? 2 * *room : 16;
	void *larger;

	if (count < *room)
		return 0;
	larger = realloc(*place, more * size);
	if (!larger)
		return -1;
	*place = larger;
	*room = more;
	return 0;
}

struct sb_windows *sb_windows_new(struct sb_site_table *table, struct sb_session *session)
{
	struct sb_windows *windows = calloc(1, sizeof(*windows));

	if (!windows)
		return NULL;
	windows->table = table;
	windows->session = session;
	windows->pressure = sb_pressure_open();
	windows->index_of_function =
		calloc(table->function_mask + 1, sizeof(*windows->index_of_function));
	windows->seen = calloc(table->capacity, sizeof(*windows->seen));
	if (windows->pressure && windows->index_of_function && windows->seen)
		return windows;
	sb_windows_free(windows);
	errno = ENOMEM;
	return NULL;
}

void sb_windows_free(struct sb_windows *windows)
{
	if (!windows)
		return;
	sb_pressure_close(windows->pressure);
	for (size_t i = 0; i < windows->control_count; i++)
		free(windows->controls[i].slots.slots);
	free(windows->controls);
	free(windows->index_of_function);
	free(windows->seen);
	free(windows->progress.slots);
	free(windows->progress_ids);
	free(windows->pids);
	free(windows->actions);
	free(windows->windows);
	free(windows);
}

/* ------------------------------------------------------------------ controls */

static struct site_function *function_named(struct sb_windows *windows, const char *name)
{
	size_t length = strlen(name);

	if (!length || length >= SITE_MAX_NAME) {
		errno = length ? ENAMETOOLONG : EINVAL;
		return NULL;
	}
	return sb_site_table_function(windows->table, name, true);
}

/* Its index among the functions; slots that are there already are looked at again. */
static uint32_t *note_of(struct sb_windows *windows, const struct site_function *function)
{
	memset(windows->seen, 0, windows->table->capacity * sizeof(*windows->seen));
	windows->first_unseen = 0;
	windows->progress.count = 0;
	for (size_t i = 0; i < windows->control_count; i++)
		windows->controls[i].slots.count = 0;
	return &windows->index_of_function[function - windows->table->functions];
}

static int add_control(struct sb_windows *windows, struct control control)
{
	if (grow(&windows->controls, windows->control_count, &windows->control_room,
		 sizeof(*windows->controls)))
		return -1;
	windows->controls[windows->control_count] = control;
	return (int)windows->control_count++;
}

int sb_windows_add_function(struct sb_windows *windows, const char *name)
{
	struct site_function *function = function_named(windows, name);
	uint32_t *note;
	int number;

	if (!function)
		return -1;
	note = &windows->index_of_function[function - windows->table->functions];
	if (*note & INDEX_MASK)
		return (int)(*note & INDEX_MASK) - 1;
	number = add_control(windows, (struct control){ .function = function });
	if (number < 0)
		return -1;
	note = note_of(windows, function);
	*note |= (uint32_t)number + 1;
	site_control_set_state(&function->control, SITE_OFF);
	site_table_changed(windows->table);
	return number;
}

int sb_windows_add_target(struct sb_windows *windows, uint64_t id)
{
	if (!windows->session) {
		errno = EINVAL;
		return -1;
	}
	for (size_t i = 0; i < windows->control_count; i++)
		if (!windows->controls[i].function && windows->controls[i].id == id)
			return (int)i;
	/* As it was added, which nobody told us: the first change is always told. */
	return add_control(windows, (struct control){ .id = id,
						      .mode = SB_WINDOW_SLEEP,
						      .delay_ns = UINT64_MAX });
}

int sb_windows_count_point(struct sb_windows *windows, const char *name)
{
	struct site_function *function = function_named(windows, name);

	if (!function)
		return -1;
	*note_of(windows, function) |= IS_POINT;
	return 0;
}

int sb_windows_count_function(struct sb_windows *windows, const char *name)
{
	struct site_function *function = function_named(windows, name);

	if (!function)
		return -1;
	atomic_fetch_or(&function->control.state, SITE_STAMP);
	site_table_changed(windows->table);
	*note_of(windows, function) |= IS_FUNCTION;
	return 0;
}

int sb_windows_count_target(struct sb_windows *windows, uint64_t id)
{
	uint64_t *ids;

	if (!windows->session) {
		errno = EINVAL;
		return -1;
	}
	ids = realloc(windows->progress_ids,
		      (windows->progress_id_count + 1) * sizeof(*ids));
	if (!ids)
		return -1;
	windows->progress_ids = ids;
	ids[windows->progress_id_count++] = id;
	return 0;
}

static int add_pid(struct sb_windows *windows, pid_t pid)
{
	for (size_t i = 0; i < windows->pid_count; i++)
		if (windows->pids[i] == pid)
			return 0;
	if (grow(&windows->pids, windows->pid_count, &windows->pid_room,
		 sizeof(*windows->pids)))
		return -1;
	windows->pids[windows->pid_count++] = pid;
	return 0;
}

int sb_windows_add_process(struct sb_windows *windows, pid_t pid)
{
	return add_pid(windows, pid);
}

/* ------------------------------------------------------------------- reading */

static int append_slot(struct slot_list *list, struct site_slot *slot)
{
	if (grow(&list->slots, list->count, &list->room, sizeof(struct site_slot *)))
		return -1;
	list->slots[list->count++] = slot;
	return 0;
}

/* See what a new slot is to us. */
static int note_slot(struct sb_windows *windows, struct site_slot *slot, uint32_t kind)
{
	uint32_t function = *(volatile uint32_t *)&slot->function, note;

	if (function > windows->table->function_mask)
		return 0;
	note = windows->index_of_function[function];
	if (add_pid(windows, (pid_t)slot->pid))
		return -1;
	if (kind == SB_SITE_PROGRESS)
		return note & IS_POINT ? append_slot(&windows->progress, slot) : 0;
	if (note & IS_FUNCTION && append_slot(&windows->progress, slot))
		return -1;
	if (!(note & INDEX_MASK))
		return 0;
	return append_slot(&windows->controls[(note & INDEX_MASK) - 1].slots, slot);
}

/* Look for slots that were given out since. */
static int find_slots(struct sb_windows *windows)
{
	uint32_t used = site_slots_used(windows->table);
	bool hole = false;

	for (size_t i = windows->first_unseen; i < used; i++) {
		struct site_slot *slot = &windows->table->slots[i];
		uint32_t kind;

		if (!windows->seen[i]) {
			kind = atomic_load_explicit(&slot->kind, memory_order_acquire);
			if (kind && note_slot(windows, slot, kind))
				return -1;
			windows->seen[i] = kind;
		}
		/* Given out and not yet, or never, what it is to be. */
		hole = hole || !windows->seen[i];
		if (!hole)
			windows->first_unseen = i + 1;
	}
	return 0;
}

static void read_progress_once(const struct slot_list *list, uint64_t *units,
			       uint64_t *last_ns)
{
	*units = *last_ns = 0;
	for (size_t i = 0; i < list->count; i++) {
		for (int j = 0; j < SITE_STRIPES; j++) {
			struct site_counters *counters = &list->slots[i]->counters[j];
			uint64_t last = atomic_load_explicit(&counters->last_ns,
							     memory_order_acquire);

			*units += load(&counters->hits);
			if (last > *last_ns)
				*last_ns = last;
		}
	}
}

/* Units and the stamp of the last, of one moment. */
static void read_progress(const struct slot_list *list, uint64_t *units,
			  uint64_t *last_ns)
{
	uint64_t again, last_again;

	read_progress_once(list, units, last_ns);
	for (int i = 0; i < STABLE_READINGS; i++) {
		read_progress_once(list, &again, &last_again);
		if (again == *units && last_again == *last_ns)
			return;
		*units = again;
		*last_ns = last_again;
	}
}

static void read_functions(struct sb_windows *windows, const struct window *window,
			   struct reading *reading)
{
	for (size_t i = 0; i < window->actions; i++) {
		int number = windows->actions[window->first_action + i].control;
		struct slot_list *list = &windows->controls[number].slots;

		for (size_t j = 0; j < list->count * SITE_STRIPES; j++) {
			struct site_counters *counters =
				&list->slots[j / SITE_STRIPES]->counters[j % SITE_STRIPES];

			reading->hits += load(&counters->hits);
			reading->delayed += load(&counters->delayed);
			reading->requested_ns += load(&counters->requested_ns);
			reading->measured_ns += load(&counters->measured_ns);
		}
	}
}

/* Whether a window has native targets, which only the kernel can read. */
static bool has_targets(const struct sb_windows *windows, const struct window *window)
{
	for (size_t i = 0; window && i < window->actions; i++)
		if (!windows->controls[windows->actions[window->first_action + i].control]
			     .function)
			return true;
	return false;
}

static bool is_in(const struct sb_windows *windows, const struct window *window,
		  uint64_t id)
{
	for (size_t i = 0; window && i < window->actions; i++) {
		const struct control *control =
			&windows->controls[windows->actions[window->first_action + i]
						   .control];

		if (!control->function && control->id == id)
			return true;
	}
	return false;
}

static int read_targets(struct sb_windows *windows, const struct window *window,
			struct reading *reading, struct sb_error *err)
{
	struct sb_target_list *list;

	if (!windows->progress_id_count && !has_targets(windows, window))
		return 0;
	list = sb_session_list(windows->session, SB_LIST_SESSION, NULL, err);
	if (!list)
		return -1;
	for (size_t i = 0; i < sb_target_list_count(list); i++) {
		uint64_t id = sb_target_list_id(list, i);

		for (size_t j = 0; j < windows->progress_id_count; j++)
			if (windows->progress_ids[j] == id)
				reading->units += sb_target_list_counter(
					list, i, SB_COUNTER_HITS);
		if (!is_in(windows, window, id))
			continue;
		reading->hits += sb_target_list_counter(list, i, SB_COUNTER_HITS);
		reading->delayed += sb_target_list_counter(list, i, SB_COUNTER_DELAYED);
		reading->requested_ns +=
			sb_target_list_counter(list, i, SB_COUNTER_REQUESTED_NS);
		reading->measured_ns +=
			sb_target_list_counter(list, i, SB_COUNTER_MEASURED_NS);
	}
	sb_target_list_free(list);
	return 0;
}

/* Progress alone where @window is NULL. */
static int read_all(struct sb_windows *windows, const struct window *window,
		    struct reading *reading, struct sb_error *err)
{
	memset(reading, 0, sizeof(*reading));
	if (find_slots(windows))
		return sb_error_set(err, ENOMEM, "out of memory");
	read_progress(&windows->progress, &reading->units, &reading->last_ns);
	reading->clock_ns = sb_clock_gettime();
	if (window)
		read_functions(windows, window, reading);
	/* Units without a stamp among others: then none counts. */
	if (windows->progress_id_count)
		reading->last_ns = 0;
	if (read_targets(windows, window, reading, err))
		return -1;
	if (window)
		reading->pressure = sb_pressure_read(windows->pressure);
	return 0;
}

uint64_t sb_windows_units(struct sb_windows *windows)
{
	struct reading reading;

	return read_all(windows, NULL, &reading, NULL) ? 0 : reading.units;
}

/* ---------------------------------------------------------------------- plan */

void sb_windows_clear(struct sb_windows *windows)
{
	windows->done = windows->window_count = windows->action_count = 0;
}

int sb_windows_plan(struct sb_windows *windows, uint64_t washout_ns,
		    unsigned int washout_units, uint64_t length_ns, unsigned int units)
{
	if (windows->done) /* what the last run left */
		sb_windows_clear(windows);
	if (grow(&windows->windows, windows->window_count, &windows->window_room,
		 sizeof(*windows->windows)))
		return -1;
	windows->windows[windows->window_count++] = (struct window){
		.washout_ns = washout_ns,
		.washout_units = washout_units,
		.length_ns = length_ns,
		.units = units,
		.first_action = windows->action_count,
	};
	return 0;
}

int sb_windows_set(struct sb_windows *windows, int number, enum sb_window_mode mode,
		   uint64_t delay_ns, uint32_t every)
{
	if (number < 0 || (size_t)number >= windows->control_count || windows->done ||
	    !windows->window_count ||
	    (mode != SB_WINDOW_OFF && mode != SB_WINDOW_SPIN &&
	     (mode != SB_WINDOW_SLEEP || !windows->controls[number].function))) {
		errno = EINVAL;
		return -1;
	}
	if (delay_ns > SB_MAX_DELAY_NS) {
		errno = ERANGE;
		return -1;
	}
	if (grow(&windows->actions, windows->action_count, &windows->action_room,
		 sizeof(*windows->actions)))
		return -1;
	windows->actions[windows->action_count++] = (struct action){
		.control = number, .mode = mode, .delay_ns = delay_ns, .every = every
	};
	windows->windows[windows->window_count - 1].actions++;
	return 0;
}

/* ----------------------------------------------------------------------- run */

static void switch_function(struct sb_windows *windows, struct control *control,
			    const struct action *action)
{
	static const enum site_state states[] = {
		[SB_WINDOW_OFF] = SITE_OFF,
		[SB_WINDOW_SPIN] = SITE_ON,
		[SB_WINDOW_SLEEP] = SITE_SLEEP,
	};
	struct site_control *its = &control->function->control;

	store(&its->delay, action->delay_ns + 1);
	store(&its->every, action->every);
	site_control_set_state(its, states[action->mode]);
	site_table_changed(windows->table);
}

static int switch_target(struct sb_windows *windows, struct control *control,
			 const struct action *action, struct sb_error *err)
{
	struct sb_session *session = windows->session;
	bool on = action->mode != SB_WINDOW_OFF;

	if (on && control->delay_ns != action->delay_ns) {
		if (sb_session_set_delay(session, &control->id, 1, action->delay_ns, err))
			return -1;
		control->delay_ns = action->delay_ns;
	}
	if (control->mode == action->mode)
		return 0;
	if (sb_session_set_targets_enabled(session, &control->id, 1, on, err))
		return -1;
	control->mode = action->mode;
	return 0;
}

static int apply(struct sb_windows *windows, const struct window *window,
		 struct sb_error *err)
{
	for (size_t i = 0; i < window->actions; i++) {
		const struct action *action = &windows->actions[window->first_action + i];
		struct control *control = &windows->controls[action->control];

		if (control->function)
			switch_function(windows, control, action);
		else if (switch_target(windows, control, action, err))
			return -1;
	}
	return 0;
}

/* Whatever the last windows left on is off. */
static int switch_off(struct sb_windows *windows, struct sb_error *err)
{
	const struct action off = { .mode = SB_WINDOW_OFF };
	int rc = 0;

	for (size_t i = 0; i < windows->action_count; i++) {
		struct control *control = &windows->controls[windows->actions[i].control];

		if (control->function)
			switch_function(windows, control, &off);
		else if (switch_target(windows, control, &off, err))
			rc = -1;
	}
	return rc;
}

static void rest_until(uint64_t ns)
{
	struct timespec until = { .tv_sec = (time_t)(ns / 1000000000),
				  .tv_nsec = (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

/*
 * Units of native targets leave no time stamps: look until the next one is done, so that
 * windows begin and end with a unit, in time and in all that is counted. Units shorter
 * than can be looked for are a small part of a window; one that does not come is left.
 */
static int wait_for_unit(struct sb_windows *windows, const struct window *window,
			 const struct reading *from, struct reading *now,
			 struct sb_error *err)
{
	uint64_t units = now->units - from->units, before = now->units;
	uint64_t begin = now->clock_ns, step, took;

	if (!windows->progress_id_count)
		return 0;
	if (units)
		windows->unit_ns = (now->clock_ns - from->clock_ns) / units;
	step = windows->unit_ns / LOOKS_A_UNIT;
	if (step < LEAST_LOOK_NS)
		return 0;
	while (now->units == before &&
	       now->clock_ns - begin < LONGEST_UNIT * windows->unit_ns) {
		/* Many targets take long to list: no more than a fifth of the time. */
		took = sb_clock_gettime() - now->clock_ns;
		rest_until(now->clock_ns + (5 * took > step ? 5 * took : step));
		if (read_all(windows, window, now, err))
			return -1;
	}
	return 0;
}

/*
 * Wait @length_ns, and for @units more units than @from has, but not longer than
 * @most lengths. A reading costs a wake-up, so there are a few only.
 */
static int wait_for(struct sb_windows *windows, const struct window *window,
		    const struct reading *from, uint64_t length_ns, unsigned int units,
		    unsigned int most, struct reading *now, struct sb_error *err)
{
	uint64_t until = from->clock_ns + length_ns;
	uint64_t end = from->clock_ns + most * length_ns;
	uint64_t step = length_ns / 4 > LEAST_REST_NS ? length_ns / 4 : LEAST_REST_NS;

	for (;;) {
		rest_until(until);
		if (read_all(windows, window, now, err))
			return -1;
		if (now->units - from->units >= units || now->clock_ns >= end)
			return wait_for_unit(windows, window, from, now, err);
		until = now->clock_ns + step;
	}
}

static void keep(struct window *window, const struct reading *a, const struct reading *b)
{
	uint64_t *values = window->values;

	values[SB_WINDOW_BEGIN_NS] = a->clock_ns;
	values[SB_WINDOW_CLOCK_NS] = b->clock_ns - a->clock_ns;
	values[SB_WINDOW_UNITS] = b->units - a->units;
	values[SB_WINDOW_TIME_NS] = a->last_ns && b->last_ns ?
					    b->last_ns - a->last_ns :
					    b->clock_ns - a->clock_ns;
	values[SB_WINDOW_HITS] = b->hits - a->hits;
	values[SB_WINDOW_DELAYED] = b->delayed - a->delayed;
	values[SB_WINDOW_REQUESTED_NS] = b->requested_ns - a->requested_ns;
	values[SB_WINDOW_MEASURED_NS] = b->measured_ns - a->measured_ns;
	values[SB_WINDOW_RUN_DELAY_NS] =
		b->pressure.run_delay_ns - a->pressure.run_delay_ns;
	values[SB_WINDOW_STALL_NS] = b->pressure.stall_ns - a->pressure.stall_ns;
	values[SB_WINDOW_STEAL_NS] = b->pressure.steal_ns - a->pressure.steal_ns;
}

static int run_window(struct sb_windows *windows, struct window *window,
		      struct sb_error *err)
{
	struct reading switched, begin, end;

	if (apply(windows, window, err) || read_all(windows, NULL, &switched, err) ||
	    wait_for(windows, window, &switched, window->washout_ns,
		     window->washout_units, MOST_WASHOUT, &begin, err) ||
	    wait_for(windows, window, &begin, window->length_ns, window->units,
		     MOST_EXTENSION, &end, err))
		return -1;
	keep(window, &begin, &end);
	return 0;
}

int sb_windows_run(struct sb_windows *windows, struct sb_error *err)
{
	size_t i;
	int code = 0;

	if (windows->done) { /* nothing was planned since */
		sb_windows_clear(windows);
		return 0;
	}
	if (find_slots(windows))
		return sb_error_set(err, ENOMEM, "out of memory");
	sb_pressure_watch(windows->pressure, windows->pids, windows->pid_count);
	for (i = 0; i < windows->window_count; i++) {
		if (run_window(windows, &windows->windows[i], err)) {
			code = errno;
			break;
		}
	}
	windows->done = i;
	if (switch_off(windows, code ? NULL : err) && !code)
		code = errno;
	if (!windows->done)
		sb_windows_clear(windows);
	errno = code;
	return code ? -1 : 0;
}

size_t sb_windows_done(const struct sb_windows *windows)
{
	return windows->done;
}

uint64_t sb_windows_value(const struct sb_windows *windows, size_t window,
			  enum sb_window_value value)
{
	if (window >= windows->done || (unsigned int)value > SB_WINDOW_STEAL_NS)
		return 0;
	return windows->windows[window].values[value];
}
