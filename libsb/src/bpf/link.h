/* SPDX-License-Identifier: MIT */
#ifndef SB_BPF_LINK_H
#define SB_BPF_LINK_H

#include <stddef.h>
#include <stdint.h>

/* Breakpoints that go together. */
struct sb_bpf_link {
	int fd;		    /* -1: gone */
	uint32_t live;	    /* targets */
	size_t first, last; /* places between which those of its targets are */
};

/* Close descriptors, several at a time: the kernel waits at the end of each link. */
void sb_bpf_close_all(int *fds, size_t count);
/* Take out the breakpoints of all of @links that have any. */
void sb_bpf_links_end(struct sb_bpf_link *links, size_t count);

#endif
