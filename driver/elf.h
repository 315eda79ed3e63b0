/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef SB_ELF_H
#define SB_ELF_H

#include <linux/types.h>

struct file;

#define SB_ELF_MAX_SYMBOL	128

int sb_elf_find(struct file *file, const char *symbol, u64 *offset);

#endif /* SB_ELF_H */
