/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_LISTING_H
#define BUMP_LISTING_H

#include <linux/types.h>

struct file;

ssize_t bump_listing_read(const struct file *reader, char *buf, size_t count, loff_t pos);
void bump_listing_exit(void);

#endif /* BUMP_LISTING_H */
