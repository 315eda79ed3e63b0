# SPDX-License-Identifier: MIT
"""What people and programs are told of an experiment."""
