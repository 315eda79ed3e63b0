/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_CHARDEV_H
#define SB_CHARDEV_H

int sb_chardev_init(void);
void sb_chardev_exit(void);

#endif /* SB_CHARDEV_H */
