// SPDX-License-Identifier: MIT
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include "bpf/scope.h"
#include "delay.skel.h"

/*
 * Run a program for every task of the machine, or for the task with the number @tid in
 * this process's pid namespace. @bank->control has the request.
 */
static int walk(struct sb_bpf_bank_own *bank, pid_t tid)
{
	union bpf_iter_link_info info = { .task.tid = tid };
	LIBBPF_OPTS(bpf_iter_attach_opts, opts, .link_info = &info,
		    .link_info_len = sizeof(info));
	struct bpf_link *link =
		bpf_program__attach_iter(bank->skeleton->progs.sb_walk, &opts);
	int fd = link ? bpf_iter_create(bpf_link__fd(link)) : -1, ret = -1;
	char byte;

	/* The program writes nothing, so reading ends at once. */
	if (fd >= 0) {
		do {
			ret = read(fd, &byte, sizeof(byte));
		} while (ret < 0 && (errno == EAGAIN || errno == EINTR));
		close(fd);
	}
	bpf_link__destroy(link);
	return ret < 0 ? -1 : 0;
}

/* Find the task with the number @nr in this pid namespace: *control->walk_*. */
static int find(struct sb_bpf_bank_own *bank, pid_t nr)
{
	struct sb_bpf_control *control = bank->control;

	control->walk = SB_BPF_WALK_FIND;
	control->walk_found = 0;
	if (nr > 0 && walk(bank, nr))
		return -1;
	if (control->walk_found)
		return 0;
	errno = ESRCH;
	return -1;
}

/*
 * The process of the task @tid, both as numbers in this pid namespace; -1: it has exited.
 */
static pid_t process_of(const struct sb_bpf_control *control, pid_t tid)
{
	char path[64], line[256];
	pid_t tgid = -1;
	FILE *file;

	if (control->walk_pid == control->walk_tgid)
		return tid;
	snprintf(path, sizeof(path), "/proc/%d/status", tid);
	file = fopen(path, "re");
	while (file && tgid < 0 && fgets(line, sizeof(line), file))
		if (sscanf(line, "Tgid: %d", &tgid) != 1)
			tgid = -1;
	if (file)
		fclose(file);
	if (tgid < 0)
		errno = ESRCH;
	return tgid;
}

int sb_bpf_scope_own(struct sb_bpf_bank_own *bank)
{
	struct delay_bpf *skeleton = bank->skeleton;

	bank->control->walk = SB_BPF_WALK_NONE;
	if (walk(bank, getpid()))
		return -1;
	bank->control->owner = bank->control->walk_reader;
	skeleton->links.sb_exit = bpf_program__attach(skeleton->progs.sb_exit);
	return skeleton->links.sb_exit ? 0 : -1;
}

/* ------------------------------------------------------------------- trees */

/* Fork and exit are traced from the first tree on. */
static int follow(struct sb_bpf_bank_own *bank)
{
	struct delay_bpf *skeleton = bank->skeleton;

	if (!skeleton->links.sb_fork)
		skeleton->links.sb_fork = bpf_program__attach(skeleton->progs.sb_fork);
	if (!skeleton->links.sb_exit)
		skeleton->links.sb_exit = bpf_program__attach(skeleton->progs.sb_exit);
	return skeleton->links.sb_fork && skeleton->links.sb_exit ? 0 : -1;
}

/* A map for the members of tree number @tree, initially without members. */
static int make_members(struct sb_bpf_bank_own *bank, uint32_t tree)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = BPF_F_MMAPABLE);
	int fd, ret;

	fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "sb_members", sizeof(uint32_t),
			    sizeof(uint64_t), SB_BPF_TREE_WORDS, &opts);
	if (fd < 0)
		return -1;
	ret = bpf_map_update_elem(bpf_map__fd(bank->skeleton->maps.sb_trees), &tree, &fd,
				  BPF_ANY);
	if (ret)
		close(fd);
	else
		bank->members[tree] = fd;
	return ret;
}

/*
 * A reused map is cleared, not replaced: before 6.8 a sleepable program could still be
 * using the old one. It is kept open, because CAP_BPF is not sufficient to open it again
 * by its id.
 */
static int clear_members(struct sb_bpf_bank_own *bank, uint32_t tree)
{
	struct sb_bpf_view view;

	if (bank->members[tree] < 0)
		return make_members(bank, tree);
	if (sb_bpf_view_open(&view, bank->members[tree]))
		return -1;
	memset(view.at, 0, view.size);
	sb_bpf_view_close(&view);
	return 0;
}

/*
 * Add all descendants of the root. Children of members become members until there are no
 * more; forks during this are traced, so none is missed.
 */
static int build(struct sb_bpf_bank_own *bank, uint32_t tree)
{
	struct sb_bpf_control *control = bank->control;

	control->walk = SB_BPF_WALK_TREE;
	control->walk_tree = tree;
	do {
		control->walk_added = 0;
		if (walk(bank, 0))
			return -1;
	} while (control->walk_added);
	return 0;
}

static int tree_make(struct sb_bpf_bank_own *bank, uint32_t number, pid_t nr)
{
	struct sb_bpf_control *control = bank->control;
	struct sb_bpf_tree *tree = &control->tree[number];

	*tree = (struct sb_bpf_tree){ .root = control->walk_tgid,
				      .root_start = control->walk_start,
				      .nr = nr };
	if (follow(bank) || clear_members(bank, number))
		return -1;
	if (number >= control->trees)
		__atomic_store_n(&control->trees, number + 1, __ATOMIC_SEQ_CST);
	if (build(bank, number))
		return -1;
	if (!tree->root_is_dead)
		return 0;
	errno = ESRCH;
	return -1;
}

static int tree_get(struct sb_bpf_bank_own *bank, struct sb_bpf_scope *scope)
{
	struct sb_bpf_control *control = bank->control;
	uint32_t unused = SB_BPF_MAX_TREES;

	for (uint32_t i = 0; i < SB_BPF_MAX_TREES; i++) {
		struct sb_bpf_tree *tree = &control->tree[i];

		if (!tree->references) {
			unused = unused < i ? unused : i;
			continue;
		}
		if (tree->root != control->walk_tgid || tree->root_is_dead)
			continue;
		tree->references++;
		scope->id = i;
		return 0;
	}
	if (unused == SB_BPF_MAX_TREES) {
		errno = ENOSPC;
		return -1;
	}
	if (tree_make(bank, unused, scope->nr))
		return -1;
	control->tree[unused].references = 1;
	scope->id = unused;
	return 0;
}

void sb_bpf_scope_put(struct sb_bpf_bank_own *bank, const struct sb_bpf_slot *slot)
{
	struct sb_bpf_tree *tree = bank->control->tree;

	if (slot->scope != SB_BPF_TREE || slot->scope_id >= SB_BPF_MAX_TREES)
		return;
	/* A tree without members can't get members by a fork. */
	if (!--tree[slot->scope_id].references)
		clear_members(bank, slot->scope_id);
}

/* ----------------------------------------------------------------- cgroups */

/* Its id is the content of its file handle. */
static int cgroup_get(int fd, struct sb_bpf_scope *scope)
{
	union {
		struct file_handle handle;
		char room[sizeof(struct file_handle) + sizeof(uint64_t)];
	} h = { .handle.handle_bytes = sizeof(uint64_t) };
	struct statfs fs;
	int mount;

	if (fstatfs(fd, &fs))
		return -1;
	if ((unsigned long)fs.f_type != CGROUP2_SUPER_MAGIC ||
	    name_to_handle_at(fd, "", &h.handle, &mount, AT_EMPTY_PATH) ||
	    h.handle.handle_bytes != sizeof(uint64_t)) {
		errno = EINVAL;
		return -1;
	}
	memcpy(&scope->id, h.handle.f_handle, sizeof(scope->id));
	return 0;
}

/* --------------------------------------------------------------------- any */

int sb_bpf_scope_get(struct sb_bpf_bank_own *bank, const struct sb_target_options *opts,
		     struct sb_bpf_scope *scope)
{
	*scope = (struct sb_bpf_scope){ .nr = opts->scope_id };
	switch (opts->scope) {
	case SB_SCOPE_ALL:
		if (!opts->scope_id)
			return 0;
		errno = EINVAL;
		return -1;
	case SB_SCOPE_TREE:
		if (find(bank, opts->scope_id))
			return -1;
		scope->nr = process_of(bank->control, opts->scope_id);
		return scope->nr < 0 ? -1 : tree_get(bank, scope);
	case SB_SCOPE_THREAD:
		if (find(bank, opts->scope_id))
			return -1;
		scope->id = bank->control->walk_pid;
		scope->start = bank->control->walk_start;
		scope->pid = process_of(bank->control, opts->scope_id);
		return scope->pid < 0 ? -1 : 0;
	case SB_SCOPE_CGROUP:
		return cgroup_get(opts->scope_id, scope);
	}
	errno = EINVAL;
	return -1;
}

/* A thread has no tree in which its exit would be noticed. */
static bool thread_is_there(const struct sb_bpf_slot *slot)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d", slot->scope_nr);
	return !access(path, F_OK);
}

pid_t sb_bpf_scope_nr(const struct sb_bpf_control *control, const struct sb_bpf_slot *slot)
{
	if (slot->scope == SB_BPF_TREE && slot->scope_id < SB_BPF_MAX_TREES)
		return control->tree[slot->scope_id].root_is_dead ? 0 : slot->scope_nr;
	if (slot->scope == SB_BPF_THREAD && thread_is_there(slot))
		return slot->scope_nr;
	return 0;
}
