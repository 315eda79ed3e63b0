// SPDX-License-Identifier: MIT
/* Targets that outlive their session: names in a BPF file system keep them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <bpf/libbpf.h>

#include "bpf/add.h"
#include "bpf/find.h"
#include "bpf/persistent.h"
#include "bpf/session.h"
#include "bpf/store.h"
#include "bpf/switch.h"
#include "delay.skel.h"
#include "error.h"
#include "free.h"

static void link_name(char name[16], uint32_t number)
{
	snprintf(name, 16, "%u", number);
}

/* Of the breakpoints at returns, where they are in a link of their own. */
static void end_name(char name[16], uint32_t number)
{
	snprintf(name, 16, "%u-end", number);
}

static void drop_link(uint32_t id, uint32_t number)
{
	char name[16];

	link_name(name, number);
	sb_bpf_store_drop(id, name);
	end_name(name, number);
	sb_bpf_store_drop(id, name);
}

static void drop_names(uint32_t id, size_t links)
{
	for (size_t i = 0; i < links; i++)
		drop_link(id, i);
	sb_bpf_store_drop(id, "fork");
	sb_bpf_store_drop(id, "exit");
	sb_bpf_store_drop(id, "end");
}

/* --------------------------------------------------------------------- add */

static int keep_link(uint32_t id, const char *what, struct bpf_link *link)
{
	return link ? sb_bpf_store_keep(id, what, bpf_link__fd(link)) : 0;
}

/* Pin all objects that have to stay. */
static int keep_all(const struct sb_bpf_adding *adding)
{
	uint32_t id = sb_bpf_bank_control_id(adding->bank);
	struct delay_bpf *skeleton = adding->bank->skeleton;
	int ret, code;
	char name[16];

	ret = keep_link(id, "fork", skeleton->links.sb_fork);
	if (!ret)
		ret = keep_link(id, "exit", skeleton->links.sb_exit);
	if (!ret)
		ret = keep_link(id, "end", skeleton->links.sb_end);
	for (size_t i = 0; !ret && i < adding->link_count; i++) {
		const struct sb_bpf_link *link = &adding->links[i];

		link_name(name, i);
		ret = sb_bpf_store_keep(id, name, link->fd);
		end_name(name, i);
		if (!ret && link->end_fd >= 0)
			ret = sb_bpf_store_keep(id, name, link->end_fd);
	}
	if (ret) {
		code = errno;
		drop_names(id, adding->link_count);
		errno = code;
	}
	return ret;
}

size_t sb_bpf_persistent_count(const struct sb_bpf_others *others)
{
	size_t count = 0;

	for (size_t i = 0; i < others->count; i++)
		for (uint32_t k = 0; k < others->other[i].banks; k++)
			for (uint32_t n = 0; n < others->other[i].slots[k].capacity; n++)
				count += others->other[i].control->persistent &&
					 sb_bpf_slot_state(
						 &others->other[i].slots[k].slot[n]) ==
						 SB_BPF_LIVE;
	return count;
}

/* Each batch gets a bank of its own. */
static int add_batch(struct sb_bpf *bpf, int power_fd, struct sb_bpf_others *others,
		     struct sb_bpf_adding *adding, size_t *failed)
{
	struct sb_bpf_bank_options opts = {
		.kernel = &bpf->kernel,
		.power_fd = power_fd,
		.threads_fd = sb_bpf_store_threads(),
		.persistent = true,
		.has_ends = sb_bpf_has_ends(adding->targets, adding->count),
		.capacity = adding->count,
		.label_room = sb_bpf_label_room(adding->targets, adding->count),
	};
	struct sb_bpf_switch *power;
	int ret = -1;

	if (sb_bpf_persistent_count(others) + adding->count >
	    bpf->backend.limits.max_targets) {
		errno = ENOSPC;
		goto out;
	}
	adding->bank = adding->first = sb_bpf_bank_load(&opts, bpf->backend.problem);
	if (!adding->bank || sb_bpf_adding_init(adding))
		goto out;
	if (opts.threads_fd < 0 && sb_bpf_store_keep_threads(bpf_map__fd(
					   adding->bank->skeleton->maps.sb_threads)))
		goto out;
	power = adding->bank->power;
	if (!sb_bpf_adding_prepare(adding, others, power->default_delay_ns, failed)) {
		for (size_t i = 0; i < adding->count; i++) {
			struct sb_bpf_slot *slot = sb_bpf_adding_slot(adding, i);

			slot->link = adding->link_of[i];
			slot->id = power->next_id + i;
		}
		ret = keep_all(adding);
	}
	if (!ret) {
		power->next_id += adding->count;
		sb_bpf_adding_go_live(adding);
		for (size_t i = 0; i < adding->count; i++)
			adding->targets[i].id = sb_bpf_adding_slot(adding, i)->id;
	}
out:
	if (opts.threads_fd >= 0)
		close(opts.threads_fd);
	return ret;
}

static void explain_store(struct sb_bpf *bpf)
{
	if (errno == EPERM || errno == EACCES) {
		sb_error_set(bpf->backend.problem, errno,
			     "not allowed to keep persistent targets: run as root (BPF needs "
			     "CAP_SYS_ADMIN for them)");
		return;
	}
	sb_error_set(bpf->backend.problem, errno,
		     "persistent targets need a BPF file system (mount -t bpf bpf "
		     "/sys/fs/bpf): %s",
		     strerror(errno));
}

int sb_bpf_persistent_add(struct sb_bpf *bpf, struct sb_target *targets, size_t count,
			  size_t *failed)
{
	struct sb_bpf_adding adding = { .bpf = bpf, .targets = targets, .count = count };
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
	/* The objects that have to stay are pinned. */
	sb_bpf_links_end(adding.links, adding.link_count);
	sb_bpf_adding_free(&adding);
	sb_bpf_bank_unload(adding.bank);
	sb_bpf_others_free(&others);
	if (power_fd >= 0)
		close(power_fd);
	sb_bpf_store_close(store);
	errno = code;
	return ret;
}

/* ------------------------------------------------------------------ remove */

int sb_bpf_totals_open(struct sb_bpf_totals *totals)
{
	totals->store = sb_bpf_store_open(false);
	if (sb_bpf_switch_open(&totals->power, totals->store, false) || errno == ENOENT)
		return 0;
	sb_bpf_totals_close(totals);
	return -1;
}

void sb_bpf_totals_add(const struct sb_bpf_totals *totals, uint64_t calls,
		       uint64_t delivered_ns)
{
	struct sb_bpf_switch *power = totals->power.at;

	if (!power)
		return;
	__atomic_fetch_add(&power->past_calls, calls, __ATOMIC_RELAXED);
	__atomic_fetch_add(&power->past_delivered_ns, delivered_ns, __ATOMIC_RELAXED);
}

void sb_bpf_totals_close(struct sb_bpf_totals *totals)
{
	int code = errno;

	sb_bpf_view_close(&totals->power);
	sb_bpf_store_close(totals->store);
	*totals = SB_BPF_TOTALS_NONE;
	errno = code;
}

/* A batch of which no target is left is removed. */
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

		if (sb_bpf_slot_state(slot) != SB_BPF_LIVE)
			continue;
		lives[slot->link]++;
		live++;
	}
	for (uint32_t i = 0; i < links; i++)
		if (!lives[i])
			drop_link(other->id, i);
	sb_free(lives);
	if (!live) {
		__atomic_store_n(&other->control->dying, 1, __ATOMIC_SEQ_CST);
		drop_names(other->id, links);
	}
}

void sb_bpf_persistent_remove(struct sb_bpf_others *others, struct sb_bpf_found *found,
			      size_t count)
{
	struct sb_bpf_totals totals;
	bool has_totals = !sb_bpf_totals_open(&totals);

	for (size_t i = 0; i < count; i++) {
		struct sb_bpf_other *other = found[i].other;
		struct sb_bpf_stats stats;

		if (!other || sb_bpf_slot_state(found[i].slot) != SB_BPF_LIVE)
			continue;
		sb_bpf_slot_set_state(found[i].slot, SB_BPF_DEAD);
		sb_bpf_slots_read(&other->slots[0], found[i].slot - other->slots[0].slot,
				  other->control->cpus, &stats);
		if (has_totals)
			sb_bpf_totals_add(&totals, sb_bpf_stats_calls(&stats),
					  stats.delivered_ns);
	}
	for (size_t i = 0; i < others->count; i++)
		if (others->other[i].control->persistent)
			other_end(&others->other[i]);
	sb_bpf_totals_close(&totals);
}
