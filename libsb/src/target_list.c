// SPDX-License-Identifier: MIT
#include "libsb.h"
