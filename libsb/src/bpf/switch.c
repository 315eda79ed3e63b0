// SPDX-License-Identifier: MIT
#include <errno.h>
#include <unistd.h>

#include <bpf/bpf.h>

#include "bpf/store.h"
#include "bpf/switch.h"

uint64_t sb_bpf_switch_default_delay(void)
{
	int store = sb_bpf_store_open(false);
	int fd = store < 0 ? -1 : sb_bpf_store_switch(false);
	struct sb_bpf_switch power = { .default_delay_ns = SB_BPF_DEFAULT_DELAY_NS };
	uint32_t zero = 0;

	if (fd >= 0) {
		bpf_map_lookup_elem(fd, &zero, &power);
		close(fd);
	}
	sb_bpf_store_close(store);
	return power.default_delay_ns;
}

/* The switch of the persistent targets, mapped; false if there is none. */
bool sb_bpf_switch_open(struct sb_bpf_view *view, int store, bool make)
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

int sb_bpf_switch_set(size_t offset, uint64_t value)
{
	int store = sb_bpf_store_open(true);
	struct sb_bpf_view view;
	int ret = -1;

	if (sb_bpf_switch_open(&view, store, true)) {
		__atomic_store_n((__u64 *)((char *)view.at + offset), value,
				 __ATOMIC_SEQ_CST);
		ret = 0;
	}
	sb_bpf_view_close(&view);
	sb_bpf_store_close(store);
	return ret;
}
