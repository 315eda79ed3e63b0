/* SPDX-License-Identifier: MIT */
#ifndef SB_SESSION_H
#define SB_SESSION_H

#include "backend.h"

struct sb_session {
	struct sb_backend *backend;
};

#endif
