#!/usr/bin/python3
# SPDX-License-Identifier: MIT
import sys

from speed_bump.__main__ import main

sys.exit(main())
