# SPDX-License-Identifier: MIT
"""The plan: which arm is delayed in which slot, drawn ahead."""
