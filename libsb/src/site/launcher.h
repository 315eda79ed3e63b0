/* SPDX-License-Identifier: MIT */
/* The rank of a process in a job, from the environment that its launcher has set. */
#ifndef SB_LAUNCHER_H
#define SB_LAUNCHER_H

#include <stdint.h>

/* In the order of the search: the innermost launcher first. */
enum launcher {
	LAUNCHER_NONE,
	LAUNCHER_TORCHRUN,
	LAUNCHER_RAY, /* Ray Train sets RANK and others after the start of the process */
	LAUNCHER_ENVIRONMENT, /* RANK and WORLD_SIZE, by whatever */
	LAUNCHER_OPEN_MPI,
	LAUNCHER_PMI,
	LAUNCHER_SLURM,
	LAUNCHER_KUBERNETES,
	LAUNCHERS,
};

/* Unknown values are -1. */
struct launched {
	uint32_t launcher;
	int32_t rank, world, local, node, attempt;
};

/* The rank of this process from its current environment; LAUNCHER_NONE: it has none. */
struct launched sb_launcher_look(void);
/* For display; "" for none. */
const char *sb_launcher_name(uint32_t launcher);

#endif
