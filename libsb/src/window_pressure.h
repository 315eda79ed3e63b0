/* SPDX-License-Identifier: MIT */
/* How much the threads of a workload, and the machine, waited for a CPU. */
#ifndef SB_WINDOW_PRESSURE_H
#define SB_WINDOW_PRESSURE_H

#include <stdint.h>
#include <sys/types.h>

struct pressure;

struct pressure_reading {
	uint64_t run_delay_ns, stall_ns, steal_ns;
};

/* NULL with ENOMEM. What the machine does not tell of stays 0. */
struct pressure *sb_pressure_open(void);
void sb_pressure_close(struct pressure *pressure);
/* Look which threads @pids have now. */
void sb_pressure_watch(struct pressure *pressure, const pid_t *pids, size_t count);
struct pressure_reading sb_pressure_read(struct pressure *pressure);

#endif
