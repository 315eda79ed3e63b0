// SPDX-License-Identifier: MIT
/*
 * The backend that needs no module: BPF programs on uprobes (../bpf/). What a session
 * has is held by its descriptors and ends with them; persistent targets are held by names
 * in a BPF file system.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/speed_bump.h>

#include "native/backend.h"
#include "bpf/bank.h"
#include "bpf/kernel.h"
#include "bpf/scope.h"
#include "bpf/store.h"
#include "delay.skel.h"
#include "error.h"
#include "native/status.h"
#include "native/target_list.h"

#define MAX_TARGETS 65536
/* To take one out of many takes kernels before 6.6 a tenth of a second. */
#define MAX_TARGETS_SINGLY 256
#define MAX_LABEL	   8448
#define LEAST_CAPACITY	   256
#define LEAST_LABEL_ROOM   (64 << 10)
#define DEFAULT_DELAY_NS   1000

/* Breakpoints that go together. */
struct link {
	int fd; /* -1: gone */
	uint32_t live; /* targets */
	size_t first, last; /* places between which those of its targets are */
};

/* Where the target with a serial number is. */
struct place {
	struct sb_bpf_bank_own *bank; /* NULL: removed, slot given back */
	uint32_t slot;
};

struct sb_bpf {
	struct sb_backend backend;
	struct sb_bpf_kernel kernel;
	pid_t pid; /* of who opened it */
	bool enabled;
	uint32_t id;
	struct sb_bpf_bank_own *banks[SB_BPF_MAX_BANKS];
	uint32_t bank_count;
	struct place *places; /* by serial number, from 1 */
	size_t place_count;
	struct link *links;
	size_t link_count;
	size_t target_count;
	bool planned;
};

static struct sb_bpf *to_bpf(struct sb_backend *backend)
{
	return (struct sb_bpf *)backend;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

static uint64_t add_times(uint64_t a, uint64_t b)
{
	uint64_t sum;

	return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

static void set_state(struct sb_bpf_slot *slot, uint32_t state)
{
	__atomic_store_n(&slot->state, state, __ATOMIC_SEQ_CST);
}

static uint32_t get_state(const struct sb_bpf_slot *slot)
{
	return __atomic_load_n(&slot->state, __ATOMIC_SEQ_CST);
}

/* ----------------------------------------------------------------- closing */

struct closing {
	pthread_t thread;
	int *fds;
	size_t count;
};

static void *close_some(void *arg)
{
	struct closing *closing = arg;

	for (size_t i = 0; i < closing->count; i++)
		close(closing->fds[i]);
	return NULL;
}

/*
 * The kernel waits at the end of each link. Those of kernels that have many breakpoints
 * in one are few; where each has its own, several wait together.
 */
static void close_all(int *fds, size_t count)
{
	struct closing closings[32];
	size_t threads = count > 4 ? 32 : 1, share = (count + threads - 1) / threads;
	size_t started = 0, done = 0;

	for (; started < threads && done < count; started++) {
		struct closing *closing = &closings[started];
		size_t rest = count - done;

		*closing = (struct closing){ .fds = fds + done,
					     .count = rest < share ? rest : share };
		done += closing->count;
		if (threads == 1 ||
		    pthread_create(&closing->thread, NULL, close_some, closing)) {
			close_some(closing);
			closing->count = 0;
		}
	}
	for (size_t i = 0; i < started; i++)
		if (closings[i].count)
			pthread_join(closings[i].thread, NULL);
}

/* ------------------------------------------------------------------- banks */

static struct sb_bpf_bank_own *first_bank(const struct sb_bpf *bpf)
{
	return bpf->bank_count ? bpf->banks[0] : NULL;
}

static size_t label_room(const struct sb_target *targets, size_t count)
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

/* A bank of the session that has room for @targets, loaded where there is none. */
static struct sb_bpf_bank_own *get_bank(struct sb_bpf *bpf,
					const struct sb_target *targets, size_t count)
{
	struct sb_error *err = bpf->backend.problem;
	size_t labels = label_room(targets, count);
	struct sb_bpf_bank_options opts = {
		.kernel = &bpf->kernel,
		.first = first_bank(bpf),
		.power_fd = -1,
		.capacity = LEAST_CAPACITY,
		.label_room = labels < LEAST_LABEL_ROOM ? LEAST_LABEL_ROOM : labels,
	};
	struct sb_bpf_bank_own *bank;

	for (uint32_t i = 0; i < bpf->bank_count; i++)
		if (has_room(bpf->banks[i], count, labels))
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
	/* Whoever flips the switch meanwhile does so after us or is seen here. */
	__atomic_store_n(&bank->power->enabled,
			 __atomic_load_n(&bpf->enabled, __ATOMIC_SEQ_CST),
			 __ATOMIC_SEQ_CST);
	return bank;
}

/* --------------------------------------------------------------------- add */

/* A batch on its way into a bank. */
struct adding {
	const struct sb_bpf *bpf;
	struct sb_bpf_bank_own *bank;  /* where the targets go */
	struct sb_bpf_bank_own *first; /* of the same session: its trees */
	struct sb_target *targets;
	size_t count;
	struct sb_bpf_scope *scopes; /* of the first resolved ones */
	size_t resolved;
	struct stat *files;
	uint32_t *slots;
	size_t taken; /* slots */
	struct link *links;
	uint32_t *link_of; /* each target's */
	size_t link_count;
};

static void adding_free(struct adding *adding)
{
	free(adding->scopes);
	free(adding->files);
	free(adding->slots);
	free(adding->links);
	free(adding->link_of);
}

static int adding_init(struct adding *adding)
{
	size_t n = adding->count;

	adding->scopes = calloc(n, sizeof(*adding->scopes));
	adding->files = calloc(n, sizeof(*adding->files));
	adding->slots = calloc(n, sizeof(*adding->slots));
	adding->links = calloc(n, sizeof(*adding->links));
	adding->link_of = calloc(n, sizeof(*adding->link_of));
	if (adding->scopes && adding->files && adding->slots && adding->links &&
	    adding->link_of)
		return 0;
	adding_free(adding);
	errno = ENOMEM;
	return -1;
}

static struct sb_bpf_slot *slot_of(const struct adding *adding, size_t i)
{
	return &adding->bank->slots.slot[adding->slots[i]];
}

static int check_target(struct adding *adding, size_t i)
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
	else if (strlen(target->label) > MAX_LABEL)
		errno = ENAMETOOLONG;
	return errno ? -1 : 0;
}

/* To look for a process again and again would take long: most name one alone. */
static int resolve(struct adding *adding, size_t i)
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

/* What makes a target unique beside its owner. */
struct key {
	uint64_t dev, ino, offset;
	uint64_t scope, id, start;
	size_t index; /* in the batch; SIZE_MAX: it is there */
};

static void key_scope(struct key *key, const struct sb_bpf_control *control,
		      uint32_t scope, uint64_t id, uint64_t start)
{
	key->scope = scope;
	key->id = id;
	key->start = start;
	/* Every session numbers its trees by itself. */
	if (scope == SB_BPF_TREE && id < SB_BPF_MAX_TREES) {
		key->id = control->tree[id].root;
		key->start = control->tree[id].root_start;
	}
}

static int compare_keys(const void *a, const void *b)
{
	const struct key *x = a, *y = b;
	int order = memcmp(x, y, offsetof(struct key, index));

	if (order)
		return order;
	/* What is there first, then in the order of the batch. */
	if (x->index == y->index)
		return 0;
	return x->index + 1 < y->index + 1 ? -1 : 1;
}

struct keys {
	struct key *key;
	size_t count, room;
};

static int keys_add(struct keys *keys, const struct key *key)
{
	if (keys->count == keys->room) {
		size_t room = keys->room ? keys->room * 2 : 256;
		struct key *more = reallocarray(keys->key, room, sizeof(*more));

		if (!more)
			return -1;
		keys->key = more;
		keys->room = room;
	}
	keys->key[keys->count++] = *key;
	return 0;
}

static int keys_add_slots(struct keys *keys, const struct sb_bpf_control *control,
			  const struct sb_bpf_slots *slots)
{
	for (uint32_t i = 0; i < slots->capacity; i++) {
		const struct sb_bpf_slot *slot = &slots->slot[i];
		struct key key = { .dev = slot->dev,
				   .ino = slot->ino,
				   .offset = slot->offset,
				   .index = SIZE_MAX };

		if (get_state(slot) != SB_BPF_LIVE)
			continue;
		key_scope(&key, control, slot->scope, slot->scope_id, slot->scope_start);
		if (keys_add(keys, &key))
			return -1;
	}
	return 0;
}

/* The targets with the same owner as those that are to be added. */
static int keys_add_present(struct keys *keys, const struct adding *adding,
			    const struct sb_bpf_others *others)
{
	const struct sb_bpf *bpf = adding->bpf;

	for (size_t i = 0; others && i < others->count; i++)
		for (uint32_t k = 0; k < others->other[i].banks; k++)
			if (others->other[i].control->persistent &&
			    keys_add_slots(keys, others->other[i].control,
					   &others->other[i].slots[k]))
				return -1;
	for (uint32_t i = 0; !others && i < bpf->bank_count; i++)
		if (keys_add_slots(keys, bpf->banks[0]->control, &bpf->banks[i]->slots))
			return -1;
	return 0;
}

/* EEXIST, and the first of the batch that is there or was named before. */
static int check_unique(const struct adding *adding, const struct sb_bpf_others *others,
			size_t *failed)
{
	struct keys keys = { 0 };
	int ret = keys_add_present(&keys, adding, others);

	for (size_t i = 0; !ret && i < adding->count; i++) {
		const struct sb_bpf_scope *scope = &adding->scopes[i];
		struct key key = { .dev = adding->files[i].st_dev,
				   .ino = adding->files[i].st_ino,
				   .offset = adding->targets[i].offset,
				   .index = i };

		key_scope(&key, adding->first->control, adding->targets[i].options.scope,
			  scope->id, scope->start);
		ret = keys_add(&keys, &key);
	}
	if (!ret) {
		size_t first = SIZE_MAX;

		qsort(keys.key, keys.count, sizeof(*keys.key), compare_keys);
		for (size_t i = 1; i < keys.count; i++)
			if (!memcmp(&keys.key[i - 1], &keys.key[i],
				    offsetof(struct key, index)) &&
			    keys.key[i].index < first)
				first = keys.key[i].index;
		if (first != SIZE_MAX) {
			*failed = first;
			errno = EEXIST;
			ret = -1;
		}
	}
	free(keys.key);
	return ret;
}

static void fill_slot(struct adding *adding, size_t i, uint64_t default_delay_ns)
{
	const struct sb_target *target = &adding->targets[i];
	const struct sb_target_options *opts = &target->options;
	const struct sb_bpf_scope *scope = &adding->scopes[i];
	struct sb_bpf_bank_own *bank = adding->bank;
	struct sb_bpf_slot *slot = slot_of(adding, i);
	uint32_t cpus = adding->first->control->cpus;

	*slot = (struct sb_bpf_slot){
		.delay_ns = opts->flags & SB_TARGET_DEFAULT_DELAY ? default_delay_ns
								  : opts->delay_ns,
		.scope = opts->scope,
		.scope_id = scope->id,
		.scope_start = scope->start,
		.scope_nr = scope->nr,
		.every = opts->every ? opts->every : 1,
		.enabled = !(opts->flags & SB_TARGET_DISABLED),
		.offset = target->offset,
		.dev = adding->files[i].st_dev,
		.ino = adding->files[i].st_ino,
		.label_at = bank->label_used,
		.label_length = strlen(target->label),
	};
	memcpy(bank->slots.labels + slot->label_at, target->label, slot->label_length);
	bank->label_used += slot->label_length;
	memset(&bank->slots.stats[(size_t)adding->slots[i] * cpus], 0,
	       sizeof(struct sb_bpf_stats) * cpus);
}

/* Put the breakpoints of some targets of one file in; they are @index[0..count). */
static int attach_some(const struct adding *adding, const size_t *index, size_t count)
{
	const struct sb_target *target = &adding->targets[index[0]];
	uint64_t *offsets = calloc(count, sizeof(*offsets));
	uint64_t *cookies = calloc(count, sizeof(*cookies));
	uint64_t *counters = calloc(count, sizeof(*counters));
	struct sb_bpf_points points = { .offsets = offsets,
					.cookies = cookies,
					.count = count };
	int fd = -1, code;

	for (size_t i = 0; offsets && cookies && counters && i < count; i++) {
		offsets[i] = adding->targets[index[i]].offset;
		cookies[i] = adding->slots[index[i]];
		counters[i] = adding->targets[index[i]].ref_ctr_offset;
		if (counters[i])
			points.counters = counters;
	}
	if (offsets && cookies && counters)
		fd = sb_bpf_kernel_attach(&adding->bpf->kernel,
					  sb_bpf_bank_program(adding->bank), target->fd,
					  &points, adding->scopes[index[0]].pid);
	code = errno;
	free(offsets);
	free(cookies);
	free(counters);
	if (fd < 0 && code == EACCES && !adding->bpf->kernel.has_multi)
		sb_error_set(adding->bpf->backend.problem, code,
			     "not allowed: before Linux 6.6 uprobes by BPF need root "
			     "(CAP_SYS_ADMIN)");
	errno = code;
	return fd;
}

/* The kernel does not say which it was: the first that can't be had. */
static size_t find_culprit(const struct adding *adding, const size_t *index, size_t count)
{
	size_t good = 0, bad = count;
	int code = errno;

	/* All up to @good can be had, all up to @bad can't. */
	while (bad - good > 1) {
		size_t middle = good + (bad - good) / 2;
		int fd = attach_some(adding, index + good, middle - good);

		if (fd < 0) {
			bad = middle;
			code = errno;
		} else {
			good = middle;
			close(fd);
		}
	}
	errno = code;
	return index[good];
}

static bool goes_with(const struct adding *adding, size_t a, size_t b)
{
	return adding->bpf->kernel.has_multi &&
	       adding->targets[a].fd == adding->targets[b].fd &&
	       adding->scopes[a].pid == adding->scopes[b].pid;
}

/* A link for the targets from @first on that go together and have none yet. */
static int attach_group(struct adding *adding, size_t first, size_t *index,
			size_t *failed)
{
	struct link *link = &adding->links[adding->link_count];
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
	*link = (struct link){ .live = count,
			       .first = first,
			       .last = index[count - 1] };
	link->fd = attach_some(adding, index, count);
	if (link->fd >= 0) {
		adding->link_count++;
		return 0;
	}
	*failed = count > 1 ? find_culprit(adding, index, count) : first;
	return -1;
}

static void detach_links(struct link *links, size_t count)
{
	int *fds = calloc(count ? count : 1, sizeof(*fds));
	size_t open = 0;

	for (size_t i = 0; i < count; i++) {
		if (links[i].fd < 0)
			continue;
		if (fds)
			fds[open++] = links[i].fd;
		else
			close(links[i].fd);
		links[i].fd = -1;
	}
	if (fds)
		close_all(fds, open);
	free(fds);
}

static int attach_all(struct adding *adding, size_t *failed)
{
	size_t *index = calloc(adding->count, sizeof(*index));
	int ret = index ? 0 : -1, code;

	memset(adding->link_of, 0xff, adding->count * sizeof(*adding->link_of));
	for (size_t i = 0; !ret && i < adding->count; i++)
		if (adding->link_of[i] == UINT32_MAX)
			ret = attach_group(adding, i, index, failed);
	code = errno;
	free(index);
	if (ret) {
		detach_links(adding->links, adding->link_count);
		adding->link_count = 0;
	}
	errno = code;
	return ret;
}

/* All windows begin at the same moment. */
static void go_live(struct adding *adding)
{
	uint64_t now = now_ns();

	for (size_t i = 0; i < adding->count; i++) {
		const struct sb_target_options *opts = &adding->targets[i].options;
		struct sb_bpf_slot *slot = slot_of(adding, i);

		if (opts->start_ns || opts->duration_ns)
			slot->start_ns = add_times(now, opts->start_ns);
		if (opts->duration_ns)
			slot->end_ns = add_times(slot->start_ns, opts->duration_ns);
		set_state(slot, SB_BPF_LIVE);
	}
}

static void adding_undo(struct adding *adding)
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
 * Everything but making the targets live and known. With @others they are persistent;
 * 0, or -1 with errno, *@failed and nothing done.
 */
static int adding_prepare(struct adding *adding, const struct sb_bpf_others *others,
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
	if (check_unique(adding, others, failed))
		goto fail;
	for (; adding->taken < adding->count; adding->taken++)
		adding->slots[adding->taken] = bank->free[--bank->free_count];
	for (size_t i = 0; i < adding->count; i++)
		fill_slot(adding, i, default_delay_ns);
	*failed = 0;
	if (!attach_all(adding, failed))
		return 0;
fail:
	bank->label_used = labels_before;
	adding_undo(adding);
	return -1;
}

static uint64_t get_default_delay(void)
{
	int store = sb_bpf_store_open(false);
	int fd = store < 0 ? -1 : sb_bpf_store_switch(false);
	struct sb_bpf_switch power = { .default_delay_ns = DEFAULT_DELAY_NS };
	uint32_t zero = 0;

	if (fd >= 0) {
		bpf_map_lookup_elem(fd, &zero, &power);
		close(fd);
	}
	sb_bpf_store_close(store);
	return power.default_delay_ns;
}

/* Room in the session's own tables; what is not used does no harm. */
static int make_room(struct sb_bpf *bpf, const struct adding *adding)
{
	struct place *places = reallocarray(
		bpf->places, bpf->place_count + adding->count, sizeof(*places));
	struct link *links;

	if (!places)
		return -1;
	bpf->places = places;
	links = reallocarray(bpf->links, bpf->link_count + adding->count, sizeof(*links));
	if (!links)
		return -1;
	bpf->links = links;
	return 0;
}

static void take_over(struct sb_bpf *bpf, struct adding *adding)
{
	size_t first = bpf->place_count;

	for (size_t i = 0; i < adding->count; i++) {
		struct sb_bpf_slot *slot = slot_of(adding, i);

		bpf->places[bpf->place_count++] = (struct place){
			.bank = adding->bank,
			.slot = adding->slots[i],
		};
		slot->link = bpf->link_count + adding->link_of[i];
		slot->id = (uint64_t)bpf->id << 32 | bpf->place_count;
		adding->targets[i].id = slot->id;
	}
	for (size_t i = 0; i < adding->link_count; i++) {
		struct link *link = &bpf->links[bpf->link_count++];

		*link = adding->links[i];
		link->first += first;
		link->last += first;
	}
	bpf->target_count += adding->count;
}

static int add_own(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
		   size_t *failed)
{
	struct adding adding = { .bpf = bpf, .targets = targets, .count = count };
	int ret = -1, code;

	if (bpf->target_count + count > bpf->backend.limits.max_targets) {
		*failed = bpf->backend.limits.max_targets - bpf->target_count;
		errno = ENOSPC;
		return -1;
	}
	adding.bank = get_bank(bpf, targets, count);
	if (!adding.bank || adding_init(&adding))
		return -1;
	adding.first = first_bank(bpf);
	if (!make_room(bpf, &adding))
		ret = adding_prepare(&adding, NULL, get_default_delay(), failed);
	code = errno;
	if (!ret) {
		take_over(bpf, &adding);
		go_live(&adding);
	}
	adding_free(&adding);
	errno = code;
	return ret;
}

/* -------------------------------------------------------------- persistent */

static void link_name(char name[16], uint32_t number)
{
	snprintf(name, 16, "%u", number);
}

static void drop_names(uint32_t id, size_t links)
{
	char name[16];

	for (size_t i = 0; i < links; i++) {
		link_name(name, i);
		sb_bpf_store_drop(id, name);
	}
	sb_bpf_store_drop(id, "fork");
	sb_bpf_store_drop(id, "exit");
}

static int keep_link(uint32_t id, const char *what, struct bpf_link *link)
{
	return link ? sb_bpf_store_keep(id, what, bpf_link__fd(link)) : 0;
}

/* Give names to all that has to stay. */
static int keep_all(const struct adding *adding)
{
	uint32_t id = sb_bpf_bank_control_id(adding->bank);
	struct delay_bpf *skeleton = adding->bank->skeleton;
	int ret, code;
	char name[16];

	ret = keep_link(id, "fork", skeleton->links.sb_fork);
	if (!ret)
		ret = keep_link(id, "exit", skeleton->links.sb_exit);
	for (size_t i = 0; !ret && i < adding->link_count; i++) {
		link_name(name, i);
		ret = sb_bpf_store_keep(id, name, adding->links[i].fd);
	}
	if (ret) {
		code = errno;
		drop_names(id, adding->link_count);
		errno = code;
	}
	return ret;
}

static size_t count_persistent(const struct sb_bpf_others *others)
{
	size_t count = 0;

	for (size_t i = 0; i < others->count; i++)
		for (uint32_t k = 0; k < others->other[i].banks; k++)
			for (uint32_t n = 0; n < others->other[i].slots[k].capacity; n++)
				count += others->other[i].control->persistent &&
					 get_state(&others->other[i].slots[k].slot[n]) ==
						 SB_BPF_LIVE;
	return count;
}

/* A bank of its own for each batch. */
static int add_batch(struct sb_bpf *bpf, int power_fd, struct sb_bpf_others *others,
		     struct adding *adding, size_t *failed)
{
	struct sb_bpf_bank_options opts = {
		.kernel = &bpf->kernel,
		.power_fd = power_fd,
		.persistent = true,
		.capacity = adding->count,
		.label_room = label_room(adding->targets, adding->count),
	};
	struct sb_bpf_switch *power;
	int ret = -1;

	if (count_persistent(others) + adding->count >
	    bpf->backend.limits.max_targets) {
		errno = ENOSPC;
		return -1;
	}
	adding->bank = adding->first =
		sb_bpf_bank_load(&opts, bpf->backend.problem);
	if (!adding->bank || adding_init(adding))
		return -1;
	power = adding->bank->power;
	if (!adding_prepare(adding, others, power->default_delay_ns, failed)) {
		for (size_t i = 0; i < adding->count; i++) {
			struct sb_bpf_slot *slot = slot_of(adding, i);

			slot->link = adding->link_of[i];
			slot->id = power->next_id + i;
		}
		ret = keep_all(adding);
	}
	if (!ret) {
		power->next_id += adding->count;
		go_live(adding);
		for (size_t i = 0; i < adding->count; i++)
			adding->targets[i].id = slot_of(adding, i)->id;
	}
	return ret;
}

static void explain_store(struct sb_bpf *bpf)
{
	if (errno == EPERM || errno == EACCES) {
		sb_error_set(bpf->backend.problem, errno,
			     "not allowed to keep persistent targets: run as root (BPF wants "
			     "CAP_SYS_ADMIN for them)");
		return;
	}
	sb_error_set(bpf->backend.problem, errno,
		     "persistent targets need a BPF file system (mount -t bpf bpf "
		     "/sys/fs/bpf): %s",
		     strerror(errno));
}

static int add_persistent(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
			  size_t *failed)
{
	struct adding adding = { .bpf = bpf, .targets = targets, .count = count };
	int store = sb_bpf_store_open(true), power_fd, ret = -1, code;
	struct sb_bpf_others others = { 0 };

	if (store < 0)
		explain_store(bpf);
	power_fd = store < 0 ? -1 : sb_bpf_store_switch(true);
	if (power_fd >= 0 && sb_bpf_others_read(&others, 0))
		explain_store(bpf);
	else if (power_fd >= 0)
		ret = add_batch(bpf, power_fd, &others, &adding, failed);
	code = errno;
	/* Names hold what has to stay. */
	detach_links(adding.links, adding.link_count);
	adding_free(&adding);
	sb_bpf_bank_unload(adding.bank);
	sb_bpf_others_free(&others);
	if (power_fd >= 0)
		close(power_fd);
	sb_bpf_store_close(store);
	errno = code;
	return ret;
}

static int bpf_add(struct sb_backend *backend, struct sb_target *targets, size_t count,
		   size_t *failed)
{
	struct sb_bpf *bpf = to_bpf(backend);

	*failed = 0;
	/* Whoever adds both adds them in two calls. */
	for (size_t i = 1; i < count; i++) {
		if (!((targets[i].options.flags ^ targets[0].options.flags) &
		      SB_TARGET_PERSISTENT))
			continue;
		*failed = i;
		errno = EINVAL;
		return -1;
	}
	if (targets[0].options.flags & SB_TARGET_PERSISTENT)
		return add_persistent(bpf, targets, count, failed);
	return add_own(bpf, targets, count, failed);
}

/* -------------------------------------------------------------------- find */

/* A target that can be changed. */
struct found {
	struct sb_bpf_slot *slot;
	struct sb_bpf_other *other; /* NULL: ours */
	size_t place;
};

struct search {
	struct sb_bpf *bpf;
	struct sb_bpf_others others;
	bool has_others;
	struct found *persistent; /* by id */
	size_t count;
};

static int compare_found(const void *a, const void *b)
{
	uint64_t x = ((const struct found *)a)->slot->id;
	uint64_t y = ((const struct found *)b)->slot->id;

	return x < y ? -1 : x > y;
}

static int search_others(struct search *search)
{
	size_t room;

	if (search->has_others)
		return 0;
	if (sb_bpf_others_read(&search->others, search->bpf->id))
		return -1;
	search->has_others = true;
	room = count_persistent(&search->others);
	search->persistent = calloc(room ? room : 1, sizeof(*search->persistent));
	if (!search->persistent)
		return -1;
	for (size_t i = 0; i < search->others.count; i++) {
		struct sb_bpf_other *other = &search->others.other[i];

		for (uint32_t k = 0; other->control->persistent && k < other->banks; k++)
			for (uint32_t n = 0; n < other->slots[k].capacity; n++) {
				struct sb_bpf_slot *slot = &other->slots[k].slot[n];

				if (get_state(slot) != SB_BPF_LIVE ||
				    search->count == room)
					continue;
				search->persistent[search->count++] =
					(struct found){ .slot = slot, .other = other };
			}
	}
	qsort(search->persistent, search->count, sizeof(*search->persistent),
	      compare_found);
	return 0;
}

static void search_end(struct search *search)
{
	int code = errno;

	sb_bpf_others_free(&search->others);
	free(search->persistent);
	errno = code;
}

static bool find_own(const struct sb_bpf *bpf, uint64_t id, struct found *found)
{
	size_t place = (uint32_t)id;
	const struct place *at;

	if (!bpf->id || id >> 32 != bpf->id || !place || place > bpf->place_count)
		return false;
	at = &bpf->places[place - 1];
	*found = (struct found){ .place = place - 1 };
	if (!at->bank)
		return false;
	found->slot = &at->bank->slots.slot[at->slot];
	return get_state(found->slot) == SB_BPF_LIVE;
}

static int find_target(struct search *search, uint64_t id, struct found *found)
{
	struct sb_bpf_slot slot = { .id = id };
	struct found key = { .slot = &slot }, *at;

	if (find_own(search->bpf, id, found))
		return 0;
	if (search_others(search))
		return -1;
	at = bsearch(&key, search->persistent, search->count, sizeof(key), compare_found);
	if (!at) {
		errno = ENOENT;
		return -1;
	}
	*found = *at;
	return 0;
}

/* ---------------------------------------------------------- remove, update */

/* Its slots can be used anew once nobody can come by any more. */
static void link_end(struct sb_bpf *bpf, uint32_t number)
{
	struct link *link = &bpf->links[number];

	for (size_t i = link->first; i <= link->last; i++) {
		struct place *place = &bpf->places[i];
		struct sb_bpf_slot *slot;

		if (!place->bank)
			continue;
		slot = &place->bank->slots.slot[place->slot];
		if (slot->link != number)
			continue;
		sb_bpf_scope_put(bpf->banks[0], slot);
		set_state(slot, SB_BPF_FREE);
		place->bank->free[place->bank->free_count++] = place->slot;
		if (place->bank->free_count == place->bank->slots.capacity)
			place->bank->label_used = 0;
		place->bank = NULL;
	}
}

/* Take the breakpoints out that nobody has a target at any more. */
static void end_links(struct sb_bpf *bpf)
{
	int *fds = calloc(bpf->link_count ? bpf->link_count : 1, sizeof(*fds));
	size_t count = 0;

	for (size_t i = 0; i < bpf->link_count; i++) {
		if (bpf->links[i].live || bpf->links[i].fd < 0)
			continue;
		if (fds)
			fds[count++] = bpf->links[i].fd;
		else
			close(bpf->links[i].fd);
	}
	if (fds)
		close_all(fds, count);
	free(fds);
	for (size_t i = 0; i < bpf->link_count; i++) {
		if (bpf->links[i].live || bpf->links[i].fd < 0)
			continue;
		bpf->links[i].fd = -1;
		link_end(bpf, i);
	}
}

static void remember(struct sb_bpf_switch *power, const struct sb_bpf_stats *stats)
{
	uint64_t hits = stats->delayed + stats->skipped_frequency +
			stats->skipped_window + stats->skipped_disabled;

	__atomic_fetch_add(&power->past_hits, hits, __ATOMIC_RELAXED);
	__atomic_fetch_add(&power->past_delay_ns, stats->measured_ns, __ATOMIC_RELAXED);
}

/* The switch of the persistent targets, mapped; false where there is none. */
static bool power_open(struct sb_bpf_view *view, int store, bool make)
{
	int fd = store < 0 ? -1 : sb_bpf_store_switch(make), ret, code;

	*view = (struct sb_bpf_view){ 0 };
	if (fd < 0)
		return false;
	ret = sb_bpf_view_open(view, fd);
	code = errno;
	close(fd);
	errno = code;
	return !ret;
}

/* What is left of a batch that nothing is left of goes. */
static void other_end(struct sb_bpf_other *other)
{
	uint32_t links = 0, live = 0;
	uint32_t *lives;

	for (uint32_t n = 0; n < other->slots[0].capacity; n++)
		if (other->slots[0].slot[n].link >= links)
			links = other->slots[0].slot[n].link + 1;
	lives = calloc(links ? links : 1, sizeof(*lives));
	if (!lives)
		return;
	for (uint32_t n = 0; n < other->slots[0].capacity; n++) {
		const struct sb_bpf_slot *slot = &other->slots[0].slot[n];

		if (get_state(slot) != SB_BPF_LIVE)
			continue;
		lives[slot->link]++;
		live++;
	}
	for (uint32_t i = 0; i < links; i++) {
		char name[16];

		link_name(name, i);
		if (!lives[i])
			sb_bpf_store_drop(other->id, name);
	}
	free(lives);
	if (!live) {
		__atomic_store_n(&other->control->dying, 1, __ATOMIC_SEQ_CST);
		drop_names(other->id, links);
	}
}

static void remove_persistent(struct sb_bpf_others *others, struct found *found,
			      size_t count)
{
	int store = sb_bpf_store_open(false);
	struct sb_bpf_view power;
	bool has_power = power_open(&power, store, false);

	for (size_t i = 0; i < count; i++) {
		struct sb_bpf_other *other = found[i].other;
		struct sb_bpf_stats stats;

		if (!other || get_state(found[i].slot) != SB_BPF_LIVE)
			continue;
		set_state(found[i].slot, SB_BPF_DEAD);
		sb_bpf_slots_read(&other->slots[0],
				  found[i].slot - other->slots[0].slot,
				  other->control->cpus, &stats);
		if (has_power)
			remember(power.at, &stats);
	}
	for (size_t i = 0; i < others->count; i++)
		if (others->other[i].control->persistent)
			other_end(&others->other[i]);
	sb_bpf_view_close(&power);
	sb_bpf_store_close(store);
}

static int bpf_remove(struct sb_backend *backend, const uint64_t *ids, size_t count,
		      size_t *failed)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct found *found = calloc(count, sizeof(*found));
	struct search search = { .bpf = bpf };
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = find_target(&search, ids[i], &found[i]);
	}
	for (size_t i = 0; !ret && i < count; i++) {
		if (found[i].other || get_state(found[i].slot) != SB_BPF_LIVE)
			continue;
		/* A delay under way ends. */
		set_state(found[i].slot, SB_BPF_DEAD);
		bpf->links[found[i].slot->link].live--;
		bpf->target_count--;
	}
	if (!ret) {
		end_links(bpf);
		if (search.has_others)
			remove_persistent(&search.others, found, count);
	}
	search_end(&search);
	free(found);
	return ret;
}

static int clear_persistent(struct sb_bpf *bpf)
{
	struct search search = { .bpf = bpf };
	int ret = search_others(&search);

	if (!ret)
		remove_persistent(&search.others, search.persistent, search.count);
	search_end(&search);
	return ret;
}

static int bpf_clear(struct sb_backend *backend, bool persistent)
{
	struct sb_bpf *bpf = to_bpf(backend);

	if (persistent)
		return clear_persistent(bpf);
	for (size_t i = 0; i < bpf->place_count; i++) {
		struct place *place = &bpf->places[i];

		if (place->bank)
			set_state(&place->bank->slots.slot[place->slot], SB_BPF_DEAD);
	}
	for (size_t i = 0; i < bpf->link_count; i++)
		bpf->links[i].live = 0;
	bpf->target_count = 0;
	end_links(bpf);
	return 0;
}

static int bpf_update(struct sb_backend *backend, const struct sb_change *changes,
		      size_t count, size_t *failed)
{
	struct found *found = calloc(count, sizeof(*found));
	struct search search = { .bpf = to_bpf(backend) };
	int ret = found ? 0 : -1;

	*failed = 0;
	for (size_t i = 0; !ret && i < count; i++) {
		*failed = i;
		ret = find_target(&search, changes[i].id, &found[i]);
		if (!ret && changes[i].mask & SB_CHANGE_DELAY &&
		    changes[i].delay_ns > SB_MAX_DELAY_NS) {
			errno = ERANGE;
			ret = -1;
		}
	}
	for (size_t i = 0; !ret && i < count; i++) {
		struct sb_bpf_slot *slot = found[i].slot;

		if (changes[i].mask & SB_CHANGE_DELAY)
			__atomic_store_n(&slot->delay_ns, changes[i].delay_ns,
					 __ATOMIC_RELAXED);
		if (changes[i].mask & SB_CHANGE_EVERY) {
			__atomic_store_n(&slot->turns, 0, __ATOMIC_RELAXED);
			__atomic_store_n(&slot->every, changes[i].every,
					 __ATOMIC_RELAXED);
		}
		if (changes[i].mask & SB_CHANGE_ENABLED)
			__atomic_store_n(&slot->enabled, changes[i].enabled,
					 __ATOMIC_RELAXED);
	}
	search_end(&search);
	free(found);
	return ret;
}

/* -------------------------------------------------------------------- list */

static void info_of(struct sb_target_info *info, const struct sb_bpf_control *control,
		    const struct sb_bpf_slots *slots, uint32_t n, unsigned int owner)
{
	const struct sb_bpf_slot *slot = &slots->slot[n];
	struct sb_bpf_stats stats;
	uint64_t *counters = info->counters;

	*info = (struct sb_target_info){
		.id = slot->id,
		.offset = slot->offset,
		.delay_ns = slot->delay_ns,
		.every = slot->every,
		.scope = slot->scope,
		.scope_id = sb_bpf_scope_nr(control, slot),
		.enabled = slot->enabled,
		.owner = owner,
	};
	sb_bpf_slots_read(slots, n, control->cpus, &stats);
	counters[SB_COUNTER_HITS] = stats.delayed + stats.skipped_frequency +
				    stats.skipped_window + stats.skipped_disabled;
	counters[SB_COUNTER_DELAYED] = stats.delayed;
	counters[SB_COUNTER_SKIPPED_FREQUENCY] = stats.skipped_frequency;
	counters[SB_COUNTER_SKIPPED_WINDOW] = stats.skipped_window;
	counters[SB_COUNTER_SKIPPED_DISABLED] = stats.skipped_disabled;
	counters[SB_COUNTER_CUT] = stats.cut;
	counters[SB_COUNTER_REQUESTED_NS] = stats.requested_ns;
	counters[SB_COUNTER_MEASURED_NS] = stats.measured_ns;
	counters[SB_COUNTER_MAX_OVERSHOOT_NS] = stats.max_overshoot_ns;
}

static int list_slots(struct sb_target_list *list, const struct sb_bpf_control *control,
		      const struct sb_bpf_slots *slots, unsigned int owner,
		      const struct stat *file)
{
	for (uint32_t n = 0; n < slots->capacity; n++) {
		const struct sb_bpf_slot *slot = &slots->slot[n];
		struct sb_target_info info;

		if (get_state(slot) != SB_BPF_LIVE ||
		    (file && (slot->dev != file->st_dev || slot->ino != file->st_ino)))
			continue;
		if (slot->label_at > slots->label_room ||
		    slot->label_length > slots->label_room - slot->label_at)
			continue;
		info_of(&info, control, slots, n, owner);
		if (sb_target_list_append(list, &info, slots->labels + slot->label_at,
					  slot->label_length))
			return -1;
	}
	return 0;
}

static int compare_infos(const void *a, const void *b)
{
	uint64_t x = ((const struct sb_target_info *)a)->id;
	uint64_t y = ((const struct sb_target_info *)b)->id;

	return x < y ? -1 : x > y;
}

static int list_others(struct sb_bpf *bpf, unsigned int which, const struct stat *file,
		       struct sb_target_list *list)
{
	struct sb_bpf_others others;
	int ret = sb_bpf_others_read(&others, bpf->id);

	for (size_t i = 0; !ret && i < others.count; i++) {
		const struct sb_bpf_other *other = &others.other[i];
		unsigned int owner = other->control->persistent ? SB_LIST_PERSISTENT
								: SB_LIST_OTHERS;

		for (uint32_t k = 0; which & owner && !ret && k < other->banks; k++)
			ret = list_slots(list, other->control, &other->slots[k], owner,
					 file);
	}
	sb_bpf_others_free(&others);
	return ret;
}

static int bpf_list(struct sb_backend *backend, unsigned int which, int fd,
		    struct sb_target_list *list)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct stat st, *file = fd < 0 ? NULL : &st;
	size_t first = list->count;
	int ret = file ? fstat(fd, file) : 0;

	for (uint32_t i = 0; which & SB_LIST_SESSION && !ret && i < bpf->bank_count; i++)
		ret = list_slots(list, bpf->banks[0]->control, &bpf->banks[i]->slots,
				 SB_LIST_SESSION, file);
	if (!ret && which & (SB_LIST_PERSISTENT | SB_LIST_OTHERS))
		ret = list_others(bpf, which, file, list);
	if (!ret)
		qsort(list->infos + first, list->count - first, sizeof(*list->infos),
		      compare_infos);
	return ret;
}

/* ---------------------------------------------------------------- settings */

static int bpf_set_enabled(struct sb_backend *backend, bool enabled)
{
	struct sb_bpf *bpf = to_bpf(backend);

	__atomic_store_n(&bpf->enabled, enabled, __ATOMIC_SEQ_CST);
	/* Banks share one switch. */
	if (__atomic_load_n(&bpf->bank_count, __ATOMIC_SEQ_CST))
		__atomic_store_n(&bpf->banks[0]->power->enabled, enabled,
				 __ATOMIC_SEQ_CST);
	return 0;
}

static void add_up(struct sb_status *status, const struct sb_bpf_control *control,
		   const struct sb_bpf_slots *slots)
{
	for (uint32_t n = 0; n < slots->capacity; n++) {
		struct sb_bpf_stats stats;

		if (get_state(&slots->slot[n]) != SB_BPF_LIVE)
			continue;
		sb_bpf_slots_read(slots, n, control->cpus, &stats);
		status->total_hits += stats.delayed + stats.skipped_frequency +
				      stats.skipped_window + stats.skipped_disabled;
		status->total_delay_ns += stats.measured_ns;
		status->targets++;
		status->persistent += control->persistent;
	}
}

static int bpf_status(struct sb_backend *backend, struct sb_status *status)
{
	struct sb_bpf *bpf = to_bpf(backend);
	int store = sb_bpf_store_open(false);
	struct sb_bpf_others others;
	struct sb_bpf_view view;
	int ret;

	*status = (struct sb_status){ .default_delay_ns = DEFAULT_DELAY_NS,
				      .sessions = 1 };
	if (power_open(&view, store, false)) {
		const struct sb_bpf_switch *power = view.at;

		status->enabled = power->enabled;
		status->default_delay_ns = power->default_delay_ns;
		status->total_hits = power->past_hits;
		status->total_delay_ns = power->past_delay_ns;
	}
	sb_bpf_view_close(&view);
	sb_bpf_store_close(store);
	for (uint32_t i = 0; i < bpf->bank_count; i++)
		add_up(status, bpf->banks[0]->control, &bpf->banks[i]->slots);
	ret = sb_bpf_others_read(&others, bpf->id);
	for (size_t i = 0; !ret && i < others.count; i++) {
		const struct sb_bpf_other *other = &others.other[i];

		for (uint32_t k = 0; k < other->banks; k++)
			add_up(status, other->control, &other->slots[k]);
		status->sessions += !other->control->persistent;
	}
	sb_bpf_others_free(&others);
	return ret;
}

static int set_power(size_t offset, uint64_t value)
{
	int store = sb_bpf_store_open(true);
	struct sb_bpf_view view;
	int ret = -1;

	if (power_open(&view, store, true)) {
		__atomic_store_n((__u64 *)((char *)view.at + offset), value,
				 __ATOMIC_SEQ_CST);
		ret = 0;
	}
	sb_bpf_view_close(&view);
	sb_bpf_store_close(store);
	return ret;
}

static int bpf_set_global_enabled(struct sb_backend *backend, bool enabled)
{
	(void)backend;
	return set_power(offsetof(struct sb_bpf_switch, enabled), enabled);
}

static int bpf_set_default_delay(struct sb_backend *backend, uint64_t delay_ns)
{
	(void)backend;
	return set_power(offsetof(struct sb_bpf_switch, default_delay_ns), delay_ns);
}

/* -------------------------------------------------------------------- plan */

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours)
#define SAME_WORD(ours, structure, member) \
	SAME((ours) * sizeof(__u64), offsetof(struct structure, member))
#define SAME_SIZE(ours, structure) \
	SAME((ours) * sizeof(__u64), sizeof(struct structure))
SAME_WORD(SB_BPF_PLAN_NUMBER, speed_bump_plan, number);
SAME_WORD(SB_BPF_PLAN_CHANGES, speed_bump_plan, changes);
SAME_WORD(SB_BPF_PLAN_LEASE, speed_bump_plan, lease_ns);
SAME_WORD(SB_BPF_PLAN_SLOT_UNITS, speed_bump_plan, slot_units);
SAME_WORD(SB_BPF_PLAN_UNITS, speed_bump_plan, units);
SAME_WORD(SB_BPF_PLAN_DELAY, speed_bump_plan_target, delay_ns);
SAME_WORD(SB_BPF_PLAN_EVERY, speed_bump_plan_target, every);
SAME_WORD(1, speed_bump_slot, end_ns);
SAME_WORD(2, speed_bump_slot, units);
SAME_WORD(3, speed_bump_slot, cpu_ns);
SAME_WORD(4, speed_bump_slot, wait_ns);
SAME_WORD(5, speed_bump_slot, tid);
SAME_WORD(1, speed_bump_cell, delivered);
SAME_SIZE(SB_BPF_PLAN_SCHEDULE, speed_bump_plan);
SAME_SIZE(SB_BPF_PLAN_END_WORDS, speed_bump_slot);
SAME_SIZE(SB_BPF_PLAN_TARGET_WORDS, speed_bump_plan_target);
SAME_SIZE(SB_BPF_PLAN_CELL_WORDS, speed_bump_cell);
SAME(SB_BPF_PLAN_SLOTS, SPEED_BUMP_PLAN_SLOTS);
SAME(SB_BPF_PLAN_CELL_COUNT, SPEED_BUMP_PLAN_CELLS);
SAME(SB_BPF_PLAN_MAX_TARGETS, SPEED_BUMP_PLAN_TARGETS);
SAME(SB_BPF_PLAN_ARMS, SPEED_BUMP_PLAN_ARMS);
SAME(SB_BPF_PLAN_LEVELS, SPEED_BUMP_PLAN_LEVELS);

/* The memory of a plan for @count targets: a map, as its descriptor, or -1 with errno. */
static int plan_make(size_t count)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE | BPF_F_INNER_MAP);
	size_t words = SB_BPF_PLAN_CELLS +
		       count * SB_BPF_PLAN_CELL_COUNT * SB_BPF_PLAN_CELL_WORDS;
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "sb_plan", sizeof(__u32), sizeof(__u64),
				words, &opts);
	struct sb_bpf_view view;
	int code;

	if (fd < 0)
		return -1;
	if (sb_bpf_view_open(&view, fd)) {
		code = errno;
		close(fd);
		errno = code;
		return -1;
	}
	*(struct speed_bump_plan *)view.at = (struct speed_bump_plan){
		.size = sizeof(struct speed_bump_plan),
		.targets = count,
		.schedule = SB_BPF_PLAN_SCHEDULE * sizeof(__u64),
		.ends = SB_BPF_PLAN_ENDS * sizeof(__u64),
		.target = SB_BPF_PLAN_TARGETS * sizeof(__u64),
		.cells = SB_BPF_PLAN_CELLS * sizeof(__u64),
		.changes = 1,
	};
	sb_bpf_view_close(&view);
	return fd;
}

/* The slots of targets that are ours, none twice: an array to be freed, or NULL. */
static struct sb_bpf_slot **plan_slots(const struct sb_bpf *bpf, const uint64_t *ids,
				       size_t count)
{
	struct sb_bpf_slot **slots = calloc(count ? count : 1, sizeof(struct sb_bpf_slot *));
	struct found found;

	for (size_t i = 0; slots && i < count; i++) {
		errno = find_own(bpf, ids[i], &found) ? 0 : ENOENT;
		for (size_t k = 0; !errno && k < i; k++)
			if (ids[k] == ids[i])
				errno = EINVAL;
		if (errno) {
			free(slots);
			return NULL;
		}
		slots[i] = found.slot;
	}
	return slots;
}

static void plan_rule(struct sb_bpf_slot **targets, size_t count, struct sb_bpf_slot **units,
		      size_t unit_count)
{
	for (size_t i = 0; i < count; i++)
		__atomic_fetch_or(&targets[i]->plan, i + 1, __ATOMIC_SEQ_CST);
	for (size_t i = 0; i < unit_count; i++)
		__atomic_fetch_or(&units[i]->plan, SB_BPF_PLAN_UNIT, __ATOMIC_SEQ_CST);
}

static int bpf_plan(struct sb_backend *backend, const uint64_t *ids, size_t count,
		    const uint64_t *unit_ids, size_t unit_count)
{
	struct sb_bpf *bpf = to_bpf(backend);
	struct sb_bpf_slot **targets, **units;
	int fd = -1, code;

	if (bpf->planned) {
		errno = EEXIST;
		return -1;
	}
	if (count > SPEED_BUMP_PLAN_TARGETS || unit_count > SPEED_BUMP_PLAN_TARGETS) {
		errno = EINVAL;
		return -1;
	}
	targets = plan_slots(bpf, ids, count);
	units = targets ? plan_slots(bpf, unit_ids, unit_count) : NULL;
	if (units)
		fd = plan_make(count);
	code = errno;
	/* Without a bank there is no target that could look anything up. */
	if (fd >= 0 && bpf->bank_count && sb_bpf_bank_set_plan(bpf->banks[0], fd)) {
		code = errno;
		close(fd);
		fd = -1;
	}
	if (fd >= 0) {
		plan_rule(targets, count, units, unit_count);
		bpf->planned = true;
	}
	free(units);
	free(targets);
	errno = code;
	return fd;
}

/* ------------------------------------------------------------ open and close */

static void bpf_close(struct sb_backend *backend)
{
	struct sb_bpf *bpf = to_bpf(backend);

	/* In a forked child everything goes on: it is the parent's. */
	if (bpf->bank_count && bpf->pid == getpid())
		__atomic_store_n(&bpf->banks[0]->control->dying, 1, __ATOMIC_SEQ_CST);
	detach_links(bpf->links, bpf->link_count);
	while (bpf->bank_count)
		sb_bpf_bank_unload(bpf->banks[--bpf->bank_count]);
	sb_error_free(bpf->backend.problem);
	free(bpf->links);
	free(bpf->places);
	free(bpf);
}

static const char *bpf_caveat(const struct sb_backend *backend, size_t index)
{
	static const char *const caveats[] = {
		"unless it is for one thread, a target puts its breakpoint into every "
		"process that uses the file: those outside its scope are not delayed, but "
		"pay for each call",
		"children of a process one thread of which is delayed keep its breakpoints",
		"what is removed keeps its breakpoint until all that was added with it is "
		"removed",
		"a delay burns the CPU, and neither suspend nor the freezer of cgroup v1 "
		"ends it",
		/* With kernels that have no breakpoints in bulk only. */
		"before Linux 6.6 each target takes some hundredths of a second to remove",
	};
	size_t count = sizeof(caveats) / sizeof(caveats[0]);

	if (((const struct sb_bpf *)backend)->kernel.has_multi)
		count--;
	return index < count ? caveats[index] : NULL;
}

static const struct sb_backend_ops bpf_ops = {
	.name = "bpf",
	.caveat = bpf_caveat,
	.close = bpf_close,
	.add = bpf_add,
	.update = bpf_update,
	.remove = bpf_remove,
	.clear = bpf_clear,
	.list = bpf_list,
	.set_enabled = bpf_set_enabled,
	.status = bpf_status,
	.set_global_enabled = bpf_set_global_enabled,
	.set_default_delay = bpf_set_default_delay,
	.plan = bpf_plan,
};

struct sb_backend *sb_bpf_open(struct sb_error *err)
{
	struct sb_bpf *bpf = calloc(1, sizeof(*bpf));
	int code;

	if (bpf)
		bpf->backend.problem = sb_error_new();
	if (!bpf || !bpf->backend.problem) {
		free(bpf);
		sb_error_set(err, ENOMEM, "out of memory");
		return NULL;
	}
	if (sb_bpf_kernel_probe(&bpf->kernel, err)) {
		code = errno;
		sb_error_free(bpf->backend.problem);
		free(bpf);
		errno = code;
		return NULL;
	}
	bpf->backend.ops = &bpf_ops;
	bpf->backend.limits = (struct sb_limits){
		.features = SPEED_BUMP_FEATURE_SCOPE_SYSTEM |
			    SPEED_BUMP_FEATURE_SCOPE_TREE |
			    SPEED_BUMP_FEATURE_SCOPE_THREAD |
			    SPEED_BUMP_FEATURE_SCOPE_CGROUP | SPEED_BUMP_FEATURE_FREQUENCY |
			    SPEED_BUMP_FEATURE_WINDOW | SPEED_BUMP_FEATURE_PLAN,
		.max_delay_ns = SB_MAX_DELAY_NS,
		.max_targets = bpf->kernel.has_multi ? MAX_TARGETS : MAX_TARGETS_SINGLY,
		.max_batch = MAX_TARGETS,
		.max_label = MAX_LABEL,
	};
	bpf->pid = getpid();
	bpf->enabled = true;
	return &bpf->backend;
}
