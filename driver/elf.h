/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
#ifndef BUMP_ELF_H
#define BUMP_ELF_H

#include <linux/types.h>

struct file;

#define BUMP_ELF_MAX_SYMBOL	128

int bump_elf_find(struct file *file, const char *symbol, u64 *offset);

#endif /* BUMP_ELF_H */
