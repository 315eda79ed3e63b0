/* SPDX-License-Identifier: MIT */
/* Which rank of a job a process is, by what its launcher has put into its environment. */
#ifndef SB_LAUNCHER_H
#define SB_LAUNCHER_H

#include <stdint.h>

/* In the order in which they are asked: the innermost launcher first. */
enum launcher {
	LAUNCHER_NONE,
	LAUNCHER_TORCHRUN,
	LAUNCHER_ENVIRONMENT, /* RANK and WORLD_SIZE, as Ray Train sets them */
	LAUNCHER_OPEN_MPI,
	LAUNCHER_PMI,
	LAUNCHER_SLURM,
	LAUNCHER_KUBERNETES,
	LAUNCHERS,
};

/* What is not known is -1. */
struct launched {
	uint32_t launcher;
	int32_t rank, world, local, node, attempt;
};

/* Of this process, as its environment is now; LAUNCHER_NONE: it has no rank. */
struct launched sb_launcher_look(void);
/* For people; "" of none. */
const char *sb_launcher_name(uint32_t launcher);

#endif
