/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_PROBE_H
#define SB_PROBE_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/uprobes.h>

struct sb_site;

/**
 * struct sb_probe - a target's part in a breakpoint
 * @site:	the breakpoint, held; NULL before sb_probe_register()
 * @is_in:	it is in the site's list; written under its lock
 * @node:	in the site's list; written under its lock, read under RCU
 * @own:	asks for the breakpoint where the site's consumer does so for another probe
 * @uprobe:	what @own is registered with, or NULL; under the site's lock
 * @again:	comes and goes in sb_probe_renew()
 */
struct sb_probe {
	struct sb_site *site;
	bool is_in;
	struct list_head node;
	struct uprobe_consumer own;
	struct uprobe *uprobe;
	struct uprobe_consumer again;
};

void sb_probe_destroy(struct sb_probe *probe);

int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset,
		      loff_t ref_ctr_offset);
void sb_probe_unregister(struct sb_probe *probe);
int sb_probe_renew(struct sb_probe *probe);
void sb_probe_sync(void);

#endif /* SB_PROBE_H */
