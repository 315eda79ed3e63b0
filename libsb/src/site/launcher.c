// SPDX-License-Identifier: MIT
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "site/launcher.h"

/* The variables of one launcher; NULL: it has none for this value. */
struct variables {
	const char *name;
	const char *sign; /* shows that it is this launcher */
	const char *rank, *world, *local, *node, *attempt;
};

static const struct variables known[LAUNCHERS] = {
	[LAUNCHER_NONE] = { .name = "" },
	[LAUNCHER_TORCHRUN] = { "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE",
				"LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT" },
	/* The attempt is from speed-bump member: Ray does not say it. */
	[LAUNCHER_RAY] = { "Ray Train", "RAY_RAYLET_PID", "RANK", "WORLD_SIZE",
			   "LOCAL_RANK", "NODE_RANK", "SPEED_BUMP_ATTEMPT" },
	[LAUNCHER_ENVIRONMENT] = { "its environment", "RANK", "RANK", "WORLD_SIZE",
				   "LOCAL_RANK", "NODE_RANK", NULL },
	[LAUNCHER_OPEN_MPI] = { "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK",
				"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
				"OMPI_COMM_WORLD_NODE_RANK", NULL },
	[LAUNCHER_PMI] = { "mpiexec", "PMI_RANK", "PMI_RANK", "PMI_SIZE",
			   "MPI_LOCALRANKID", NULL, NULL },
	[LAUNCHER_SLURM] = { "srun", "SLURM_PROCID", "SLURM_PROCID", "SLURM_NTASKS",
			     "SLURM_LOCALID", "SLURM_NODEID", "SLURM_RESTART_COUNT" },
	[LAUNCHER_KUBERNETES] = { "Kubernetes", "JOB_COMPLETION_INDEX",
				  "JOB_COMPLETION_INDEX", "WORLD_SIZE", NULL,
				  "JOB_COMPLETION_INDEX", NULL },
};

/* A number in the environment; -1: there is none. */
static int32_t number_of(const char *name)
{
	const char *text = name ? getenv(name) : NULL;
	int saved = errno;
	char *end;
	long value;

	if (!text || !*text)
		return -1;
	errno = 0;
	value = strtol(text, &end, 10);
	if (errno || *end || value < 0 || value > INT32_MAX)
		value = -1;
	errno = saved;
	return (int32_t)value;
}

struct launched sb_launcher_look(void)
{
	for (uint32_t i = LAUNCHER_NONE + 1; i < LAUNCHERS; i++) {
		const struct variables *v = &known[i];
		int32_t rank = number_of(v->rank);

		if (rank < 0 || !getenv(v->sign))
			continue;
		return (struct launched){ i,
					  rank,
					  number_of(v->world),
					  number_of(v->local),
					  number_of(v->node),
					  number_of(v->attempt) };
	}
	return (struct launched){ LAUNCHER_NONE, -1, -1, -1, -1, -1 };
}

const char *sb_launcher_name(uint32_t launcher)
{
	return launcher < LAUNCHERS ? known[launcher].name : "";
}
