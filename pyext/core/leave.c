// SPDX-License-Identifier: MIT
#include <pthread.h>

#include "hot.h"
#include "layout.h"
#include "leave.h"
#include "table.h"

/* Other threads may then release the site: @kept keeps it until the delay is counted. */
static void *leave(struct sb_site_table *table, void **kept)
{
	if (!*kept)
		*kept = table_keep(table);
	return *kept ? PyEval_SaveThread() : NULL;
}

static void come_back(void *thread)
{
	PyEval_RestoreThread(thread);
}

static void set(void)
{
	sb_site_return = come_back;
	sb_site_leave = leave;
	atomic_store_explicit(&sb_site_locks, layout_gil_enabled(), memory_order_relaxed);
}

void leave_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, set);
}
