/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_PROBE_H
#define SB_PROBE_H

#include <linux/fs.h>
#include <linux/uprobes.h>

/**
 * struct sb_probe - a target's part in a uprobe
 * @consumer:	what the uprobe calls
 * @uprobe:	what it is registered with, or NULL
 */
struct sb_probe {
	struct uprobe_consumer consumer;
	struct uprobe *uprobe;
};

int sb_probe_register(struct sb_probe *probe, struct inode *inode, loff_t offset);
void sb_probe_unregister(struct sb_probe *probe);
void sb_probe_sync(void);

#endif /* SB_PROBE_H */
