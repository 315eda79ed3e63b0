# SPDX-License-Identifier: MIT
"""Jobs of several ranks: which function limits the step, and on which of them."""
