/* SPDX-License-Identifier: MIT */
/*
 * How a process publishes that it delays as a table says (sb_site_table_show()): it has a
 * file in memory (memfd_create(2)) with the name SHOWN_NAME that contains these lines:
 *
 * 1 LABEL
 *
 * fd NUMBER INODE: the table is that descriptor of the process, or
 *
 * path PATH: it is that file, in the view of the process
 *
 * So /proc/PID/fd is the register: the kernel maintains it, permits access to processes
 * that may trace the process, and removes it when the process exits.
 */
#ifndef SB_SHOWN_H
#define SB_SHOWN_H

#include <limits.h>

#define SHOWN_NAME	"speed-bump-shown"
#define SHOWN_VERSION	"1 "
#define SHOWN_MAX_LABEL 63
#define SHOWN_MAX	(PATH_MAX + 128)

#endif
