// SPDX-License-Identifier: MIT
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/bank.h"
#include "bpf/store.h"
#include "delay.skel.h"
#include "effects.h"
#include "error.h"
#include "free.h"

/* ------------------------------------------------------------------- views */

int sb_bpf_view_open(struct sb_bpf_view *view, int fd)
{
	struct bpf_map_info info = { 0 };
	size_t page = sysconf(_SC_PAGESIZE), value;
	__u32 length = sizeof(info);

	if (bpf_obj_get_info_by_fd(fd, &info, &length))
		return -1;
	value = (info.value_size + 7) / 8 * 8;
	view->size = (value * info.max_entries + page - 1) / page * page;
	view->at = mmap(NULL, view->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (view->at != MAP_FAILED)
		return 0;
	view->at = NULL;
	return -1;
}

void sb_bpf_view_close(struct sb_bpf_view *view)
{
	if (view->at)
		munmap(view->at, view->size);
	view->at = NULL;
}

static int open_by_id(struct sb_bpf_view *view, uint32_t id)
{
	int fd = bpf_map_get_fd_by_id(id), ret, code;

	if (fd < 0)
		return -1;
	ret = sb_bpf_view_open(view, fd);
	code = errno;
	close(fd);
	errno = code;
	return ret;
}

static void use_views(struct sb_bpf_slots *slots)
{
	slots->slot = slots->views[0].at;
	slots->counts = slots->views[1].at;
	slots->labels = slots->views[2].at;
}

int sb_bpf_slots_open(struct sb_bpf_slots *slots, const struct sb_bpf_bank *bank,
		      uint32_t cpus)
{
	uint32_t ids[] = { bank->slots_id, bank->stats_id, bank->labels_id };
	size_t sizes[] = { sizeof(struct sb_bpf_slot),
			   sizeof(struct sb_bpf_counts) * cpus, 0 };

	*slots = (struct sb_bpf_slots){ .capacity = bank->capacity };
	slots->label_room = (size_t)bank->label_pages * SB_BPF_LABEL_PAGE;
	for (int i = 0; i < 3; i++) {
		size_t least = i == 2 ? slots->label_room : sizes[i] * bank->capacity;

		if (open_by_id(&slots->views[i], ids[i]))
			goto fail;
		if (slots->views[i].size < least) {
			errno = EPROTO;
			goto fail;
		}
	}
	use_views(slots);
	return 0;

fail:
	sb_bpf_slots_close(slots);
	return -1;
}

void sb_bpf_slots_close(struct sb_bpf_slots *slots)
{
	int code = errno;

	for (int i = 0; i < 3; i++)
		sb_bpf_view_close(&slots->views[i]);
	errno = code;
}

static uint64_t add_times(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

void sb_bpf_slot_set_window(struct sb_bpf_slot *slot, uint64_t now, uint64_t start_ns,
			    uint64_t duration_ns)
{
	uint64_t start = start_ns || duration_ns ? add_times(now, start_ns) : 0;

	/* While the end changes there is no window: a hit never sees one half of each. */
	__atomic_store_n(&slot->start_ns, UINT64_MAX, __ATOMIC_SEQ_CST);
	__atomic_store_n(&slot->end_ns, duration_ns ? add_times(start, duration_ns) : 0,
			 __ATOMIC_SEQ_CST);
	__atomic_store_n(&slot->start_ns, start, __ATOMIC_SEQ_CST);
}

static uint64_t load(__u64 *counter)
{
	return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

static uint64_t take(__u64 *counter)
{
	return __atomic_exchange_n(counter, 0, __ATOMIC_RELAXED);
}

static void add_up(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		   struct sb_bpf_stats *sums, uint64_t (*get)(__u64 *counter))
{
	*sums = (struct sb_bpf_stats){ .unreturned = get(&slots->slot[slot].unreturned),
				       .missed = get(&slots->slot[slot].missed) };
	for (uint32_t cpu = 0; cpu < cpus; cpu++) {
		struct sb_bpf_counts *counts = &slots->counts[(size_t)slot * cpus + cpu];
		uint64_t max = get(&counts->max_overshoot_ns);

		sums->delayed += get(&counts->delayed);
		sums->skipped_every += get(&counts->skipped_every);
		sums->skipped_window += get(&counts->skipped_window);
		sums->skipped_disabled += get(&counts->skipped_disabled);
		sums->cut += get(&counts->cut);
		sums->requested_ns += get(&counts->requested_ns);
		sums->delivered_ns += get(&counts->delivered_ns);
		if (max > sums->max_overshoot_ns)
			sums->max_overshoot_ns = max;
	}
}

void sb_bpf_slots_read(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		       struct sb_bpf_stats *sums)
{
	add_up(slots, slot, cpus, sums, load);
}

void sb_bpf_slots_take(const struct sb_bpf_slots *slots, uint32_t slot, uint32_t cpus,
		       struct sb_bpf_stats *sums)
{
	add_up(slots, slot, cpus, sums, take);
	__atomic_fetch_add(&slots->slot[slot].generation, 1, __ATOMIC_RELAXED);
}

/* ---------------------------------------------------------------- messages */

/*
 * libbpf prints its errors through a function that is set for the whole process. During a load
 * it is that below, if SB_EFFECT_PRINT allows it: output of the loading thread is kept for the
 * message of the error, and that of other threads goes to the function before.
 */
static pthread_mutex_t print_lock = PTHREAD_MUTEX_INITIALIZER;
static libbpf_print_fn_t print_before; /* read by all threads */
static __thread char *kept_line; /* of the loading thread; NULL in others */

#define KEPT_SIZE 256

static int keep_line(enum libbpf_print_level level, const char *fmt, va_list args)
{
	libbpf_print_fn_t before;

	if (!kept_line) {
		before = __atomic_load_n(&print_before, __ATOMIC_ACQUIRE);
		return before ? before(level, fmt, args) : 0;
	}
	/* The verifier's log has many lines; the error comes before it. */
	if (level == LIBBPF_WARN && !*kept_line) {
		vsnprintf(kept_line, KEPT_SIZE, fmt, args);
		kept_line[strcspn(kept_line, "\n")] = '\0';
	}
	return 0;
}

static int explain_load(struct sb_error *err, int code, const char *line)
{
	if (code == EPERM || code == EACCES)
		return sb_error_set(err, code,
				    "not allowed to load BPF programs: run as root or "
				    "with CAP_BPF and CAP_PERFMON");
	return sb_error_set(err, code, "the kernel refuses the BPF programs: %s%s%s",
			    strerror(code), *line ? ": " : "", line);
}

static int load_programs(struct delay_bpf *skeleton, struct sb_error *err)
{
	char line[KEPT_SIZE] = "";
	libbpf_print_fn_t before;
	int ret;

	if (!sb_may(SB_EFFECT_PRINT)) {
		ret = delay_bpf__load(skeleton);
		if (ret)
			explain_load(err, -ret, "");
		errno = -ret;
		return ret;
	}
	pthread_mutex_lock(&print_lock);
	kept_line = line;
	/* The previous function is known before this one can be called. */
	before = libbpf_set_print(NULL);
	__atomic_store_n(&print_before, before, __ATOMIC_RELEASE);
	libbpf_set_print(keep_line);
	ret = delay_bpf__load(skeleton);
	libbpf_set_print(before);
	kept_line = NULL;
	if (ret)
		explain_load(err, -ret, line);
	pthread_mutex_unlock(&print_lock);
	errno = -ret;
	return ret;
}

/* ------------------------------------------------------------------- banks */

/* The highest possible CPU number plus 1. */
static int count_cpus(void)
{
	FILE *file = fopen("/sys/devices/system/cpu/possible", "re");
	char line[4096], *last;
	int count = 0;

	/* "0-3" or "0,2-5" */
	if (file && fgets(line, sizeof(line), file)) {
		last = line + strcspn(line, "\n");
		while (last > line && last[-1] >= '0' && last[-1] <= '9')
			last--;
		count = atoi(last) + 1;
	}
	if (file)
		fclose(file);
	return count;
}

static int set_sizes(struct delay_bpf *skeleton, const struct sb_bpf_bank_options *opts,
		     uint32_t cpus)
{
	size_t pages = opts->label_room / SB_BPF_LABEL_PAGE + 1;

	skeleton->rodata->cpu_count = cpus;
	skeleton->rodata->may_read = opts->kernel->may_read;
	skeleton->rodata->has_events = opts->has_events;
	return bpf_map__set_max_entries(skeleton->maps.sb_slots, opts->capacity) ||
	       bpf_map__set_max_entries(skeleton->maps.sb_stats, opts->capacity * cpus) ||
	       bpf_map__set_max_entries(skeleton->maps.sb_labels, pages) ||
	       bpf_map__set_max_entries(skeleton->maps.sb_durations,
					opts->records ? opts->records : 1);
}

/* The programs for both ends of calls. */
static int choose_call_programs(struct delay_bpf *skeleton,
				const struct sb_bpf_bank_options *opts)
{
	bool both = opts->has_ends && opts->kernel->has_session;
	bool singly = opts->has_ends && !both;
	int single = sb_bpf_kernel_attach_type(opts->kernel, SB_BPF_ENTRY);
	int session = sb_bpf_kernel_attach_type(opts->kernel, SB_BPF_BOTH);

	bpf_program__set_expected_attach_type(skeleton->progs.sb_enter,
					      (enum bpf_attach_type)single);
	bpf_program__set_expected_attach_type(skeleton->progs.sb_leave,
					      (enum bpf_attach_type)single);
	bpf_program__set_expected_attach_type(skeleton->progs.sb_call,
					      (enum bpf_attach_type)session);
	return bpf_program__set_autoload(skeleton->progs.sb_enter, singly) ||
	       bpf_program__set_autoload(skeleton->progs.sb_leave, singly) ||
	       bpf_program__set_autoload(skeleton->progs.sb_call, both) ||
	       bpf_program__set_autoload(skeleton->progs.sb_end, opts->has_ends) ||
	       bpf_map__set_autocreate(skeleton->maps.sb_calls, opts->has_ends) ||
	       bpf_map__set_autocreate(skeleton->maps.sb_durations, opts->has_ends) ||
	       bpf_map__set_autocreate(skeleton->maps.sb_events, opts->has_events);
}

/* The programs that the session has already. */
static int share(struct delay_bpf *skeleton, const struct sb_bpf_bank_options *opts)
{
	const struct delay_bpf *first = opts->first ? opts->first->skeleton : NULL;

	if (opts->power_fd >= 0 &&
	    bpf_map__reuse_fd(skeleton->maps.sb_switch, opts->power_fd))
		return -1;
	if (opts->threads_fd >= 0 &&
	    bpf_map__reuse_fd(skeleton->maps.sb_threads, opts->threads_fd))
		return -1;
	if (!first)
		return 0;
	bpf_program__set_autoload(skeleton->progs.sb_fork, false);
	bpf_program__set_autoload(skeleton->progs.sb_exit, false);
	bpf_program__set_autoload(skeleton->progs.sb_walk, false);
	return bpf_map__reuse_fd(skeleton->maps.sb_control,
				 bpf_map__fd(first->maps.sb_control)) ||
	       bpf_map__reuse_fd(skeleton->maps.sb_trees,
				 bpf_map__fd(first->maps.sb_trees)) ||
	       bpf_map__reuse_fd(skeleton->maps.sb_plans,
				 bpf_map__fd(first->maps.sb_plans)) ||
	       bpf_map__reuse_fd(skeleton->maps.sb_clocks,
				 bpf_map__fd(first->maps.sb_clocks)) ||
	       (opts->threads_fd < 0 &&
		bpf_map__reuse_fd(skeleton->maps.sb_threads,
				  bpf_map__fd(first->maps.sb_threads))) ||
	       (opts->power_fd < 0 &&
		bpf_map__reuse_fd(skeleton->maps.sb_switch,
				  bpf_map__fd(first->maps.sb_switch)));
}

/*
 * No program uses the labels; the reference keeps them alive as long as a program that a
 * breakpoint runs.
 */
static int bind_labels(const struct delay_bpf *skeleton)
{
	const struct bpf_program *programs[] = { skeleton->progs.sb_hit,
						 skeleton->progs.sb_enter,
						 skeleton->progs.sb_call };
	int labels = bpf_map__fd(skeleton->maps.sb_labels);

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++) {
		int program = bpf_program__fd(programs[i]);

		if (program >= 0 && bpf_prog_bind_map(program, labels, NULL))
			return -1;
	}
	return 0;
}

static int map_all(struct sb_bpf_bank_own *bank)
{
	struct delay_bpf *skeleton = bank->skeleton;
	int labels = bpf_map__fd(skeleton->maps.sb_labels);

	if (sb_bpf_view_open(&bank->control_view, bpf_map__fd(skeleton->maps.sb_control)) ||
	    sb_bpf_view_open(&bank->power_view, bpf_map__fd(skeleton->maps.sb_switch)) ||
	    sb_bpf_view_open(&bank->slots.views[0], bpf_map__fd(skeleton->maps.sb_slots)) ||
	    sb_bpf_view_open(&bank->slots.views[1], bpf_map__fd(skeleton->maps.sb_stats)) ||
	    sb_bpf_view_open(&bank->slots.views[2], labels))
		return -1;
	use_views(&bank->slots);
	if (bank->record_room &&
	    sb_bpf_view_open(&bank->durations, bpf_map__fd(skeleton->maps.sb_durations)))
		return -1;
	if (bank->has_events &&
	    sb_bpf_events_open(bank, bpf_map__fd(skeleton->maps.sb_events)))
		return -1;
	bank->control = bank->control_view.at;
	bank->power = bank->power_view.at;
	return bind_labels(skeleton);
}

static uint32_t id_of(const struct bpf_map *map)
{
	struct bpf_map_info info = { 0 };
	__u32 length = sizeof(info);

	return bpf_obj_get_info_by_fd(bpf_map__fd(map), &info, &length) ? 0 : info.id;
}

static int register_bank(struct sb_bpf_bank_own *bank,
			 const struct sb_bpf_bank_options *opts, uint32_t cpus)
{
	const struct delay_bpf *skeleton = bank->skeleton;
	struct sb_bpf_control *control = bank->control;

	if (control->banks >= SB_BPF_MAX_BANKS) {
		errno = ENOSPC;
		return -1;
	}
	control->bank[control->banks] = (struct sb_bpf_bank){
		.slots_id = id_of(skeleton->maps.sb_slots),
		.stats_id = id_of(skeleton->maps.sb_stats),
		.labels_id = id_of(skeleton->maps.sb_labels),
		.capacity = opts->capacity,
		.label_pages = opts->label_room / SB_BPF_LABEL_PAGE + 1,
	};
	if (!opts->first) {
		control->cpus = cpus;
		control->store = sb_bpf_store_hash();
		control->persistent = opts->persistent;
		if (opts->power_fd < 0)
			bank->power->enabled = 1;
	}
	if (opts->has_ends)
		__atomic_store_n(&bank->power->has_parts, 1, __ATOMIC_SEQ_CST);
	/* From here on other processes can find it. */
	__atomic_store_n(&control->banks, control->banks + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&control->magic, SB_BPF_MAGIC, __ATOMIC_RELEASE);
	return 0;
}

struct sb_bpf_bank_own *sb_bpf_bank_load(const struct sb_bpf_bank_options *opts,
					 struct sb_error *err)
{
	struct sb_bpf_bank_own *bank = calloc(1, sizeof(*bank));
	int cpus = count_cpus(), code;

	for (int i = 0; bank && i < SB_BPF_MAX_TREES; i++)
		bank->members[i] = -1;
	if (bank)
		bank->free = calloc(opts->capacity, sizeof(*bank->free));
	if (bank && bank->free && cpus > 0)
		bank->skeleton = delay_bpf__open();
	if (!bank || !bank->skeleton) {
		sb_error_set(err, errno, "can't prepare the BPF programs: %s",
			     strerror(errno));
		goto fail;
	}
	bpf_program__set_expected_attach_type(
		bank->skeleton->progs.sb_hit,
		(enum bpf_attach_type)sb_bpf_kernel_attach_type(opts->kernel,
								SB_BPF_ENTRY));
	if (choose_call_programs(bank->skeleton, opts) ||
	    set_sizes(bank->skeleton, opts, cpus) || share(bank->skeleton, opts)) {
		sb_error_set(err, errno, "can't prepare the BPF maps: %s",
			     strerror(errno));
		goto fail;
	}
	if (load_programs(bank->skeleton, err))
		goto fail;
	bank->has_ends = opts->has_ends;
	bank->record_room = opts->records;
	bank->has_events = opts->has_events;
	if (map_all(bank) || register_bank(bank, opts, cpus)) {
		sb_error_set(err, errno, "can't set the BPF maps up: %s", strerror(errno));
		goto fail;
	}
	bank->slots.capacity = opts->capacity;
	bank->slots.label_room = opts->label_room;
	while (bank->free_count < opts->capacity) {
		bank->free[bank->free_count] = opts->capacity - 1 - bank->free_count;
		bank->free_count++;
	}
	return bank;

fail:
	code = errno;
	sb_bpf_bank_unload(bank);
	errno = code;
	return NULL;
}

void sb_bpf_bank_unload(struct sb_bpf_bank_own *bank)
{
	if (!bank)
		return;
	sb_bpf_slots_close(&bank->slots);
	sb_bpf_view_close(&bank->control_view);
	sb_bpf_view_close(&bank->power_view);
	sb_bpf_view_close(&bank->durations);
	sb_bpf_events_close(bank);
	for (int i = 0; i < SB_BPF_MAX_TREES; i++)
		if (bank->members[i] >= 0)
			close(bank->members[i]);
	delay_bpf__destroy(bank->skeleton);
	sb_free(bank->free);
	sb_free(bank);
}

int sb_bpf_bank_program(const struct sb_bpf_bank_own *bank)
{
	return bpf_program__fd(bank->skeleton->progs.sb_hit);
}

int sb_bpf_bank_call_program(const struct sb_bpf_bank_own *bank, enum sb_bpf_ends ends)
{
	const struct delay_bpf *skeleton = bank->skeleton;

	if (ends == SB_BPF_BOTH)
		return bpf_program__fd(skeleton->progs.sb_call);
	return bpf_program__fd(ends == SB_BPF_ENTRY ? skeleton->progs.sb_enter :
						      skeleton->progs.sb_leave);
}

int sb_bpf_bank_follow_threads(struct sb_bpf_bank_own *bank)
{
	struct delay_bpf *skeleton = bank->skeleton;

	if (!skeleton->links.sb_end)
		skeleton->links.sb_end = bpf_program__attach(skeleton->progs.sb_end);
	return skeleton->links.sb_end ? 0 : -1;
}

int sb_bpf_bank_set_plan(struct sb_bpf_bank_own *bank, int plan)
{
	uint32_t zero = 0;

	return bpf_map_update_elem(bpf_map__fd(bank->skeleton->maps.sb_plans), &zero,
				   &plan, BPF_ANY);
}

uint32_t sb_bpf_bank_control_id(const struct sb_bpf_bank_own *bank)
{
	return id_of(bank->skeleton->maps.sb_control);
}
