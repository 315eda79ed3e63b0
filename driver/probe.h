/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_PROBE_H
#define BUMP_PROBE_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/uprobes.h>

struct bump_site;

/**
 * struct bump_probe - a target's part in a breakpoint
 * @site:	the breakpoint, held; NULL before bump_probe_register()
 * @is_in:	it is in the site's list; written under its lock
 * @node:	in the site's list; written under its lock, read under RCU
 * @own:	requests the breakpoint while the site's consumer does so for another
 *		probe
 * @uprobe:	what @own is registered with, or NULL; under the site's lock
 * @again:	registered only during bump_probe_renew()
 */
struct bump_probe {
	struct bump_site *site;
	bool is_in;
	struct list_head node;
	struct uprobe_consumer own;
	struct uprobe *uprobe;
	struct uprobe_consumer again;
};

void bump_probe_destroy(struct bump_probe *probe);

int bump_probe_register(struct bump_probe *probe, struct inode *inode, loff_t offset,
			loff_t ref_ctr_offset);
void bump_probe_unregister(struct bump_probe *probe);
int bump_probe_renew(struct bump_probe *probe);
void bump_probe_sync(void);

#endif /* BUMP_PROBE_H */
