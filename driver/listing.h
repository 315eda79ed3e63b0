/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_LISTING_H
#define SB_LISTING_H

#include <linux/types.h>

struct file;

ssize_t sb_listing_read(const struct file *reader, char *buf, size_t count, loff_t pos);
void sb_listing_exit(void);

#endif /* SB_LISTING_H */
