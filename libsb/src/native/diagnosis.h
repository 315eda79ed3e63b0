/* SPDX-License-Identifier: MIT */
#ifndef SB_DIAGNOSIS_H
#define SB_DIAGNOSIS_H

#include "libsb.h"

#define SB_MODULE_NAME "speed_bump"

/*
 * Like sb_module_diagnose(), for a machine whose files are under @root and whose kernel
 * is @release, as prepared by a test.
 */
struct sb_diagnosis *sb_module_diagnose_at(const char *root, const char *release);

/* The summary and the first advice as one line. Belongs to the diagnosis. */
const char *sb_diagnosis_line(struct sb_diagnosis *diagnosis);

#endif
