/* SPDX-License-Identifier: MIT */
#ifndef SB_MANY_H
#define SB_MANY_H

#define MANY 1000 /* functions of libmany */

#endif
