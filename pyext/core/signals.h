/* SPDX-License-Identifier: MIT */
/*
 * Signals in the middle of a delay: one of over 10 ms runs their handlers as time.sleep()
 * does, and an exception of a handler ends it.
 */
#ifndef CORE_SIGNALS_H
#define CORE_SIGNALS_H

/* Once a process; more often does no harm. */
void signals_prepare(void);

#endif
