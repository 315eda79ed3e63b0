// SPDX-License-Identifier: MIT
#include <pthread.h>

#include "hot.h"
#include "signals.h"
#include "table.h"

/* During a long delay, with the GIL: run the handlers of pending signals. */
static bool look(struct sb_site_table *table, void **kept)
{
	/*
	 * A C function may be called with an exception set, which a handler must not see.
	 */
	if (PyErr_Occurred())
		return false;
	if (!*kept)
		*kept = table_keep(table);
	/*
	 * The table of overhead.c is not a Table: no handler runs during that
	 * measurement.
	 */
	return *kept && PyErr_CheckSignals();
}

static void set(void)
{
	sb_site_unkeep = table_unkeep;
	sb_site_look = look;
}

void signals_prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, set);
}
