/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_CHARDEV_H
#define BUMP_CHARDEV_H

int bump_chardev_init(void);
void bump_chardev_exit(void);

#endif /* BUMP_CHARDEV_H */
