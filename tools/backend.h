/* SPDX-License-Identifier: MIT */
/* What serves: the option that every command has. */
#ifndef BACKEND_H
#define BACKEND_H

#include "libsb.h"

/*
 * Take --backend=NAME out of a command line, wherever it stands before a "--". 0, or the
 * exit status after a message.
 */
int backend_take(int *argc, char **argv);

/* What it says. */
enum sb_backend_choice backend_chosen(void);

/* Open a session as it says. NULL as sb_session_open(). */
struct sb_session *backend_open(struct sb_error *err);

#endif
