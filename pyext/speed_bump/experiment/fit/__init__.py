# SPDX-License-Identifier: MIT
"""What the slots say: functions of a record, which import it and numpy alone."""
