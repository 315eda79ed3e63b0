// SPDX-License-Identifier: MIT
/* Adding a batch to a bank: all of it or nothing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "array.h"
#include "bpf/add.h"
#include "bpf/operations.h"
#include "bpf/persistent.h"
#include "bpf/session.h"
#include "bpf/switch.h"
#include "error.h"
#include "free.h"
#include "libsb-provisional.h"
#include "spin.h"

#define MIN_CAPACITY   256
#define MIN_LABEL_ROOM (64 << 10)
#define MIN_RECORDS    32

void sb_bpf_adding_free(struct sb_bpf_adding *adding)
{
	sb_free(adding->scopes);
	sb_free(adding->files);
	sb_free(adding->slots);
	sb_free(adding->links);
	sb_free(adding->link_of);
}

int sb_bpf_adding_init(struct sb_bpf_adding *adding)
{
	size_t n = adding->count;

	adding->has_ends = sb_bpf_has_ends(adding->targets, n);
	adding->scopes = calloc(n, sizeof(*adding->scopes));
	adding->files = calloc(n, sizeof(*adding->files));
	adding->slots = calloc(n, sizeof(*adding->slots));
	adding->links = calloc(n, sizeof(*adding->links));
	adding->link_of = calloc(n, sizeof(*adding->link_of));
	if (adding->scopes && adding->files && adding->slots && adding->links &&
	    adding->link_of)
		return 0;
	errno = ENOMEM;
	return -1;
}

bool sb_bpf_has_ends(const struct sb_target *targets, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (sb_target_has_end(&targets[i]))
			return true;
	return false;
}

static bool has_events(const struct sb_target *targets, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (targets[i].options.record == SB_RECORD_EVENTS)
			return true;
	return false;
}

static size_t count_records(const struct sb_target *targets, size_t count)
{
	size_t records = 0;

	for (size_t i = 0; i < count; i++)
		records += targets[i].options.record ? 1 : 0;
	return records;
}

struct sb_bpf_slot *sb_bpf_adding_slot(const struct sb_bpf_adding *adding, size_t i)
{
	return &adding->bank->slots.slot[adding->slots[i]];
}

/* ------------------------------------------------------------------ bank */

size_t sb_bpf_label_room(const struct sb_target *targets, size_t count)
{
	size_t room = 0;

	for (size_t i = 0; i < count; i++)
		room += strlen(targets[i].label);
	return room;
}

static bool has_room(const struct sb_bpf_bank_own *bank, size_t slots, size_t labels)
{
	return bank->free_count >= slots &&
	       bank->slots.label_room - bank->label_used >= labels;
}

/* A bank of the session that has room for @targets; loaded if there is none. */
static struct sb_bpf_bank_own *get_bank(struct sb_bpf *bpf,
					const struct sb_target *targets, size_t count)
{
	struct sb_error *err = bpf->backend.problem;
	size_t labels = sb_bpf_label_room(targets, count);
	size_t records = count_records(targets, count);
	struct sb_bpf_bank_options opts = {
		.kernel = &bpf->kernel,
		.first = sb_bpf_first_bank(bpf),
		.power_fd = -1,
		.threads_fd = -1,
		.has_ends = sb_bpf_has_ends(targets, count),
		.has_events = has_events(targets, count),
		.records = records ? records < MIN_RECORDS ? MIN_RECORDS : records : 0,
		.capacity = MIN_CAPACITY,
		.label_room = labels < MIN_LABEL_ROOM ? MIN_LABEL_ROOM : labels,
	};
	struct sb_bpf_bank_own *bank;

	for (uint32_t i = 0; i < bpf->bank_count; i++)
		if (has_room(bpf->banks[i], count, labels) &&
		    bpf->banks[i]->has_ends >= opts.has_ends &&
		    bpf->banks[i]->has_events >= opts.has_events &&
		    bpf->banks[i]->record_room - bpf->banks[i]->records >= records)
			return bpf->banks[i];
	if (bpf->bank_count)
		opts.capacity = bpf->banks[bpf->bank_count - 1]->slots.capacity * 2;
	while (opts.capacity < count)
		opts.capacity *= 2;
	bank = sb_bpf_bank_load(&opts, err);
	if (!bank)
		return NULL;
	if (!bpf->bank_count && sb_bpf_scope_own(bank)) {
		sb_error_set(err, errno, "can't follow the end of processes: %s",
			     strerror(errno));
		sb_bpf_bank_unload(bank);
		return NULL;
	}
	if (!bpf->bank_count)
		bpf->id = sb_bpf_bank_control_id(bank);
	bpf->banks[bpf->bank_count] = bank;
	__atomic_store_n(&bpf->bank_count, bpf->bank_count + 1, __ATOMIC_SEQ_CST);
	/* A change of the switch either happens after this or is seen here. */
	__atomic_store_n(&bank->power->enabled,
			 __atomic_load_n(&bpf->enabled, __ATOMIC_SEQ_CST),
			 __ATOMIC_SEQ_CST);
	return bank;
}

/* ---------------------------------------------------------------- target */

static int check_target(struct sb_bpf_adding *adding, size_t i)
{
	const struct sb_target *target = &adding->targets[i];
	struct stat *st = &adding->files[i];

	if (i && adding->targets[i - 1].fd == target->fd)
		*st = st[-1];
	else if (fstat(target->fd, st))
		return -1;
	errno = 0;
	if (!S_ISREG(st->st_mode) || target->offset >= (uint64_t)st->st_size)
		errno = EINVAL;
	else if (target->options.delay_ns > SB_MAX_DELAY_NS)
		errno = ERANGE;
	else if (strlen(target->label) > SB_BPF_MAX_LABEL)
		errno = ENAMETOOLONG;
	return errno ? -1 : 0;
}

/*
 * Most targets of a batch name the same process: looking it up each time would take long.
 */
static int resolve(struct sb_bpf_adding *adding, size_t i)
{
	const struct sb_target_options *opts = &adding->targets[i].options;
	const struct sb_target_options *before = NULL;
	struct sb_bpf_tree *tree = adding->first->control->tree;

	if (i)
		before = &adding->targets[i - 1].options;
	if (!before || before->scope != opts->scope || before->scope_id != opts->scope_id)
		return sb_bpf_scope_get(adding->first, opts, &adding->scopes[i]);
	adding->scopes[i] = adding->scopes[i - 1];
	if (opts->scope == SB_SCOPE_TREE)
		tree[adding->scopes[i].id].references++;
	return 0;
}

static void fill_slot(struct sb_bpf_adding *adding, size_t i, uint64_t default_delay_ns)
{
	const struct sb_target *target = &adding->targets[i];
	const struct sb_target_options *opts = &target->options;
	const struct sb_bpf_scope *scope = &adding->scopes[i];
	struct sb_bpf_bank_own *bank = adding->bank;
	struct sb_bpf_slot *slot = sb_bpf_adding_slot(adding, i);
	uint32_t cpus = adding->first->control->cpus;

	*slot = (struct sb_bpf_slot){
		.delay_ns = opts->flags & SB_TARGET_DEFAULT_DELAY ? default_delay_ns :
								    opts->delay_ns,
		.scope = opts->scope,
		.scope_id = scope->id,
		.scope_start = scope->start,
		.scope_nr = scope->nr,
		.every = opts->every ? opts->every : 1,
		.enabled = !(opts->flags & SB_TARGET_DISABLED),
		.ppm = opts->delay_ppm,
		.group = bank->groups + target->group,
		.record = opts->record ? ++bank->records : 0,
		.events = opts->record == SB_RECORD_EVENTS,
		.timed_ns = target->timed_ns,
		.cost_ns = target->cost_ns,
		.over_ns = target->over_ns,
		.net_ns = opts->delay_ppm && opts->flags & SB_TARGET_NET ?
				  target->cost_ns :
				  0,
		.offset = target->offset,
		.dev = adding->files[i].st_dev,
		.ino = adding->files[i].st_ino,
		.label_at = bank->label_used,
		.label_length = strlen(target->label),
	};
	memcpy(bank->slots.labels + slot->label_at, target->label, slot->label_length);
	bank->label_used += slot->label_length;
	memset(&bank->slots.counts[(size_t)adding->slots[i] * cpus], 0,
	       sizeof(struct sb_bpf_counts) * cpus);
}

/* ----------------------------------------------------------- breakpoints */

/*
 * Set the breakpoints of some targets of one file, those in @index[0..count): @program
 * runs at @ends of their calls.
 */
static int attach_points(const struct sb_bpf_adding *adding, const size_t *index,
			 size_t count, int program, enum sb_bpf_ends ends)
{
	const struct sb_target *target = &adding->targets[index[0]];
	uint64_t *offsets = calloc(count, sizeof(*offsets));
	uint64_t *cookies = calloc(count, sizeof(*cookies));
	uint64_t *counters = calloc(count, sizeof(*counters));
	struct sb_bpf_points points = {
		.offsets = offsets, .cookies = cookies, .count = count, .ends = ends
	};
	int fd = -1, code;

	for (size_t i = 0; offsets && cookies && counters && i < count; i++) {
		offsets[i] = adding->targets[index[i]].offset;
		cookies[i] = adding->slots[index[i]];
		counters[i] = adding->targets[index[i]].ref_ctr_offset;
		if (counters[i])
			points.counters = counters;
	}
	if (offsets && cookies && counters)
		fd = sb_bpf_kernel_attach(&adding->bpf->kernel, program, target->fd,
					  &points, adding->scopes[index[0]].pid);
	code = errno;
	sb_free(offsets);
	sb_free(cookies);
	sb_free(counters);
	if (fd < 0 && code == EACCES && !adding->bpf->kernel.has_multi)
		sb_error_set(adding->bpf->backend.problem, code,
			     "not allowed: before Linux 6.6 uprobes by BPF need root "
			     "(CAP_SYS_ADMIN)");
	errno = code;
	return fd;
}

/* Both ends of the calls: the kernel catches returns only where entries are caught. */
static int attach_calls(const struct sb_bpf_adding *adding, const size_t *index,
			size_t count, struct sb_bpf_link *link)
{
	const struct sb_bpf_bank_own *bank = adding->bank;
	enum sb_bpf_ends ends = adding->bpf->kernel.has_session ? SB_BPF_BOTH :
								  SB_BPF_ENTRY;
	int code;

	link->fd = attach_points(adding, index, count,
				 sb_bpf_bank_call_program(bank, ends), ends);
	if (link->fd < 0 || ends == SB_BPF_BOTH)
		return link->fd < 0 ? -1 : 0;
	link->end_fd = attach_points(adding, index, count,
				     sb_bpf_bank_call_program(bank, SB_BPF_RETURN),
				     SB_BPF_RETURN);
	if (link->end_fd >= 0)
		return 0;
	code = errno;
	sb_bpf_links_end(link, 1);
	errno = code;
	return -1;
}

static int attach_some(const struct sb_bpf_adding *adding, const size_t *index,
		       size_t count, struct sb_bpf_link *link)
{
	link->fd = link->end_fd = -1;
	if (sb_target_has_end(&adding->targets[index[0]]))
		return attach_calls(adding, index, count, link);
	link->fd = attach_points(adding, index, count, sb_bpf_bank_program(adding->bank),
				 SB_BPF_ENTRY);
	return link->fd < 0 ? -1 : 0;
}

/* The kernel does not report which target failed: find the first one by bisection. */
static size_t find_culprit(const struct sb_bpf_adding *adding, const size_t *index,
			   size_t count)
{
	size_t good = 0, bad = count;
	int code = errno;

	/* All up to @good succeed, and up to @bad one fails. */
	while (bad - good > 1) {
		size_t middle = good + (bad - good) / 2;
		struct sb_bpf_link link;

		if (attach_some(adding, index + good, middle - good, &link)) {
			bad = middle;
			code = errno;
		} else {
			good = middle;
			sb_bpf_links_end(&link, 1);
		}
	}
	errno = code;
	return index[good];
}

static bool goes_with(const struct sb_bpf_adding *adding, size_t a, size_t b)
{
	return adding->bpf->kernel.has_multi &&
	       adding->targets[a].fd == adding->targets[b].fd &&
	       sb_target_has_end(&adding->targets[a]) ==
		       sb_target_has_end(&adding->targets[b]) &&
	       adding->scopes[a].pid == adding->scopes[b].pid;
}

/* A link for the targets from @first on that belong together and have none yet. */
static int attach_group(struct sb_bpf_adding *adding, size_t first, size_t *index,
			size_t *failed)
{
	struct sb_bpf_link *link = &adding->links[adding->link_count];
	size_t count = 0;

	for (size_t i = first; i < adding->count; i++) {
		if (adding->link_of[i] != UINT32_MAX ||
		    (i != first && !goes_with(adding, first, i)))
			continue;
		adding->link_of[i] = adding->link_count;
		index[count++] = i;
		if (!adding->bpf->kernel.has_multi)
			break;
	}
	*link = (struct sb_bpf_link){ .live = count,
				      .first = first,
				      .last = index[count - 1] };
	if (!attach_some(adding, index, count, link)) {
		adding->link_count++;
		return 0;
	}
	*failed = count > 1 ? find_culprit(adding, index, count) : first;
	return -1;
}

static int attach_all(struct sb_bpf_adding *adding, size_t *failed)
{
	size_t *index = calloc(adding->count, sizeof(*index));
	int ret = index ? 0 : -1, code;

	memset(adding->link_of, 0xff, adding->count * sizeof(*adding->link_of));
	for (size_t i = 0; !ret && i < adding->count; i++)
		if (adding->link_of[i] == UINT32_MAX)
			ret = attach_group(adding, i, index, failed);
	code = errno;
	sb_free(index);
	if (ret) {
		sb_bpf_links_end(adding->links, adding->link_count);
		adding->link_count = 0;
	}
	errno = code;
	return ret;
}

/* ----------------------------------------------------------------- batch */

/* All windows begin at the same time. */
void sb_bpf_adding_go_live(struct sb_bpf_adding *adding)
{
	uint64_t now = sb_clock_gettime();

	for (size_t i = 0; i < adding->count; i++) {
		const struct sb_target_options *opts = &adding->targets[i].options;
		struct sb_bpf_slot *slot = sb_bpf_adding_slot(adding, i);

		sb_bpf_slot_set_window(slot, now, opts->start_ns, opts->duration_ns);
		sb_bpf_slot_set_state(slot, SB_BPF_LIVE);
	}
}

static void adding_undo(struct sb_bpf_adding *adding)
{
	int code = errno;
	struct sb_bpf_slot slot = { 0 };

	for (size_t i = 0; i < adding->resolved; i++) {
		slot.scope = adding->targets[i].options.scope;
		slot.scope_id = adding->scopes[i].id;
		sb_bpf_scope_put(adding->first, &slot);
	}
	while (adding->taken)
		adding->bank->free[adding->bank->free_count++] =
			adding->slots[--adding->taken];
	errno = code;
}

/*
 * Everything except making the targets visible and active. With @others they are
 * persistent. 0, or -1 with errno and *@failed, and nothing is changed.
 */
int sb_bpf_adding_prepare(struct sb_bpf_adding *adding, const struct sb_bpf_others *others,
			  uint64_t default_delay_ns, size_t *failed)
{
	struct sb_bpf_bank_own *bank = adding->bank;
	size_t labels_before = bank->label_used;

	for (size_t i = 0; i < adding->count; i++) {
		*failed = i;
		if (check_target(adding, i) || resolve(adding, i))
			goto fail;
		adding->resolved++;
	}
	*failed = 0;
	if (sb_bpf_check_unique(adding, others, failed))
		goto fail;
	if (adding->has_ends && sb_bpf_bank_follow_threads(bank))
		goto fail;
	for (; adding->taken < adding->count; adding->taken++)
		adding->slots[adding->taken] = bank->free[--bank->free_count];
	for (size_t i = 0; i < adding->count; i++)
		fill_slot(adding, i, default_delay_ns);
	for (size_t i = 0, first = bank->groups; adding->has_ends && i < adding->count;
	     i++)
		if (first + adding->targets[i].group >= bank->groups)
			bank->groups = first + adding->targets[i].group + 1;
	*failed = 0;
	if (!attach_all(adding, failed))
		return 0;
fail:
	bank->label_used = labels_before;
	adding_undo(adding);
	return -1;
}

/* Reserve room in the session's tables; unused room does no harm. */
static int make_room(struct sb_bpf *bpf, const struct sb_bpf_adding *adding)
{
	struct sb_bpf_place *places = sb_array_grow(bpf->places, &bpf->place_room,
						    bpf->place_count + adding->count,
						    sizeof(*places));
	struct sb_bpf_link *links;

	if (!places)
		return -1;
	bpf->places = places;
	links = sb_array_grow(bpf->links, &bpf->link_room,
			      bpf->link_count + adding->count, sizeof(*links));
	if (!links)
		return -1;
	bpf->links = links;
	return 0;
}

static void take_over(struct sb_bpf *bpf, struct sb_bpf_adding *adding)
{
	size_t first = bpf->place_count;

	for (size_t i = 0; i < adding->count; i++) {
		struct sb_bpf_slot *slot = sb_bpf_adding_slot(adding, i);

		bpf->places[bpf->place_count++] = (struct sb_bpf_place){
			.bank = adding->bank,
			.slot = adding->slots[i],
		};
		slot->link = bpf->link_count + adding->link_of[i];
		slot->id = (uint64_t)bpf->id << 32 | bpf->place_count;
		adding->targets[i].id = slot->id;
	}
	for (size_t i = 0; i < adding->link_count; i++) {
		struct sb_bpf_link *link = &bpf->links[bpf->link_count++];

		*link = adding->links[i];
		link->first += first;
		link->last += first;
	}
	bpf->target_count += adding->count;
}

static int add_own(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
		   size_t *failed)
{
	struct sb_bpf_adding adding = { .bpf = bpf, .targets = targets, .count = count };
	int ret = -1, code;

	if (bpf->target_count + count > bpf->backend.limits.max_targets) {
		*failed = bpf->backend.limits.max_targets - bpf->target_count;
		errno = ENOSPC;
		return -1;
	}
	*failed = count;
	adding.bank = get_bank(bpf, targets, count);
	if (!adding.bank)
		return -1;
	adding.first = sb_bpf_first_bank(bpf);
	if (!sb_bpf_adding_init(&adding) && !make_room(bpf, &adding))
		ret = sb_bpf_adding_prepare(&adding, NULL, sb_bpf_switch_default_delay(),
					    failed);
	code = errno;
	if (!ret) {
		take_over(bpf, &adding);
		sb_bpf_adding_go_live(&adding);
	}
	sb_bpf_adding_free(&adding);
	errno = code;
	return ret;
}

int sb_bpf_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
	       size_t *failed)
{
	struct sb_bpf *bpf = to_bpf(backend);

	*failed = 0;
	/* A caller with both kinds makes two calls. */
	for (size_t i = 1; i < count; i++) {
		if (!((targets[i].options.flags ^ targets[0].options.flags) &
		      SB_TARGET_PERSISTENT))
			continue;
		*failed = i;
		errno = EINVAL;
		return -1;
	}
	if (targets[0].options.flags & SB_TARGET_PERSISTENT)
		return sb_bpf_persistent_add(bpf, targets, count, failed);
	return add_own(bpf, targets, count, failed);
}
