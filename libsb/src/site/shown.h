/* SPDX-License-Identifier: MIT */
/*
 * How a process says that it delays what a table says (sb_site_table_show()): it has a file
 * in memory (memfd_create(2)) that is called SHOWN_NAME, in which the lines are
 *
 *   1 LABEL
 *   fd NUMBER INODE        the table is that descriptor of the process, or
 *   path PATH              it is that file, as the process sees it
 *
 * So the register is /proc/PID/fd: the kernel keeps it, lets those look who may trace the
 * process, and forgets what has ended.
 */
#ifndef SB_SHOWN_H
#define SB_SHOWN_H

#include <limits.h>

#define SHOWN_NAME	"speed-bump-shown"
#define SHOWN_VERSION	"1 "
#define SHOWN_MAX_LABEL 63
#define SHOWN_MAX	(PATH_MAX + 128)

#endif
