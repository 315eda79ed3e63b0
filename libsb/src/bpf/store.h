/* SPDX-License-Identifier: MIT */
/*
 * Targets of others: sessions of other processes, and persistent targets, which are held
 * by names in a BPF file system. There is no register: a process with the right to do so
 * reads all maps of the kernel and recognises those of this backend by their name.
 */
#ifndef SB_BPF_STORE_H
#define SB_BPF_STORE_H

#include "bpf/bank.h"

/* A session of another process, or a batch of persistent targets. */
struct sb_bpf_other {
	uint32_t id; /* of its control map */
	struct sb_bpf_view view;
	struct sb_bpf_control *control;
	uint32_t banks;
	struct sb_bpf_slots slots[SB_BPF_MAX_BANKS];
};

struct sb_bpf_others {
	struct sb_bpf_other *other;
	size_t count, room;
};

/*
 * All except @own. Without the right to list maps (CAP_SYS_ADMIN) none is found. 0, or -1
 * with errno; free in any case.
 */
int sb_bpf_others_read(struct sb_bpf_others *others, uint32_t own);
void sb_bpf_others_free(struct sb_bpf_others *others);

/*
 * The directory of persistent objects: /sys/fs/bpf/speed_bump, or that in
 * SPEED_BUMP_BPF_STORE. Users of different directories do not see each other's targets.
 * It is created if @make is set, with the file system mounted at the usual place; one
 * process at a time can have it open. -1 with ENOENT if it does not exist, EMEDIUMTYPE if
 * it can't be in that file system, or errno.
 */
int sb_bpf_store_open(bool make);
void sb_bpf_store_close(int store);
uint64_t sb_bpf_store_hash(void);

/* While the store is open: the switch in it, a map; -1 with errno. */
int sb_bpf_store_switch(bool make);
/* Likewise the map of threads that persistent targets share. */
int sb_bpf_store_threads(void);
int sb_bpf_store_keep_threads(int fd);
/* Pin the BPF object @fd of batch @id under the name that keeps it; remove the name. */
int sb_bpf_store_keep(uint32_t id, const char *what, int fd);
void sb_bpf_store_drop(uint32_t id, const char *what);

#endif
