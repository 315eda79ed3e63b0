/* SPDX-License-Identifier: MIT */
/*
 * Signals during a delay: a delay of over 10 ms runs their handlers as time.sleep() does,
 * and an exception of a handler ends it.
 */
#ifndef CORE_SIGNALS_H
#define CORE_SIGNALS_H

/* Called once per process; further calls do no harm. */
void signals_prepare(void);

#endif
