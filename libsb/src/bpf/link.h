/* SPDX-License-Identifier: MIT */
#ifndef SB_BPF_LINK_H
#define SB_BPF_LINK_H

#include <stddef.h>
#include <stdint.h>

/* Breakpoints that belong together. */
struct sb_bpf_link {
	int fd; /* -1: gone */
	int end_fd; /* of the returns of calls, where they have their own; or -1 */
	uint32_t live; /* targets */
	size_t first, last; /* places; its targets are between these */
};

/* Close descriptors, several in parallel: the kernel waits when a link is closed. */
void sb_bpf_close_all(int *fds, size_t count);
/* Remove the breakpoints of all @links that have any. */
void sb_bpf_links_end(struct sb_bpf_link *links, size_t count);

#endif
