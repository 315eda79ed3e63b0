/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_PROBE_H
#define SB_PROBE_H

#include <linux/fs.h>
#include <linux/uprobes.h>

/**
 * struct sb_probe - a target's part in a uprobe
 * @consumer:	what the uprobe calls
 * @again:	what it calls besides while @consumer's filter is asked again
 * @uprobe:	what it is registered with, or NULL
 */
struct sb_probe {
	struct uprobe_consumer consumer;
	struct uprobe_consumer again;
	struct uprobe *uprobe;
};

int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset);
void sb_probe_unregister(struct sb_probe *probe);
int sb_probe_renew(struct sb_probe *probe, struct inode *inode, loff_t offset);
void sb_probe_sync(void);

#endif /* SB_PROBE_H */
