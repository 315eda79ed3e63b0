/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_SYSFS_H
#define SB_SYSFS_H

int sb_sysfs_init(void);
void sb_sysfs_exit(void);

#endif /* SB_SYSFS_H */
