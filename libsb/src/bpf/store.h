/* SPDX-License-Identifier: MIT */
/*
 * What others have: sessions of other processes, and the persistent targets, which are
 * held by names in a BPF file system. Nobody keeps a register: whoever may asks the
 * kernel for all maps and knows those that are ours by their name.
 */
#ifndef SB_BPF_STORE_H
#define SB_BPF_STORE_H

#include "bpf/bank.h"

/* A session that is not ours, or a batch of persistent targets. */
struct sb_bpf_other {
	uint32_t id; /* of its control map */
	struct sb_bpf_view view;
	struct sb_bpf_control *control;
	uint32_t banks;
	struct sb_bpf_slots slots[SB_BPF_MAX_BANKS];
};

struct sb_bpf_others {
	struct sb_bpf_other *other;
	size_t count;
};

/*
 * All there are but @own. Who may not ask (CAP_SYS_ADMIN) finds none. 0, or -1 with
 * errno; free in any case.
 */
int sb_bpf_others_read(struct sb_bpf_others *others, uint32_t own);
void sb_bpf_others_free(struct sb_bpf_others *others);

/*
 * The place of what is persistent: the directory /sys/fs/bpf/speed_bump, or the one that
 * SPEED_BUMP_BPF_STORE names. Those with different ones know nothing of each other.
 * Made, with the file system mounted where that is usual, if @make says so; one process at
 * a time has it open. -1 with ENOENT where it is not, EMEDIUMTYPE where it can't be in
 * that file system, or errno.
 */
int sb_bpf_store_open(bool make);
void sb_bpf_store_close(int store);
uint64_t sb_bpf_store_hash(void);

/* While it is open: the switch in it, a map; -1 with errno. */
int sb_bpf_store_switch(bool make);
/* Give the BPF object @fd of batch @id the name that keeps it; take the name away. */
int sb_bpf_store_keep(uint32_t id, const char *what, int fd);
void sb_bpf_store_drop(uint32_t id, const char *what);

#endif
