/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_SYSFS_H
#define BUMP_SYSFS_H

int bump_sysfs_init(void);
void bump_sysfs_exit(void);

#endif /* BUMP_SYSFS_H */
