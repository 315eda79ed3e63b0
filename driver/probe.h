/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_PROBE_H
#define SB_PROBE_H

#include <linux/fs.h>
#include <linux/list.h>
#include <linux/uprobes.h>

struct sb_site;

/**
 * struct sb_question - a consumer that comes and goes, so that filters are asked
 * @consumer:	what is registered meanwhile
 * @probe:	whose memory gets the breakpoint, or NULL
 */
struct sb_question {
	struct uprobe_consumer consumer;
	struct sb_probe *probe;
};

/**
 * struct sb_probe - a target's part in a breakpoint
 * @site:	the breakpoint, held; NULL before sb_probe_register()
 * @is_in:	it is in the site's list; under its lock
 * @node:	in the site's list; written under its lock, read under RCU
 * @coming:	asked once, when it comes to a site that others have
 * @going:	asked once, when it leaves a site to others
 * @again:	asked by sb_probe_renew()
 */
struct sb_probe {
	struct sb_site *site;
	bool is_in;
	struct list_head node;
	struct sb_question coming;
	struct sb_question going;
	struct sb_question again;
};

void sb_probe_destroy(struct sb_probe *probe);

int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset,
		      loff_t ref_ctr_offset);
void sb_probe_unregister(struct sb_probe *probe);
int sb_probe_renew(struct sb_probe *probe);
void sb_probe_sync(void);

#endif /* SB_PROBE_H */
