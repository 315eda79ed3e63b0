# SPDX-License-Identifier: MIT
"""Any bytes where a message between a tool and an attached program is expected."""

import importlib.util
import pathlib

PATH = pathlib.Path(__file__).parent.parent / "speed_bump/link/message.py"
SPEC = importlib.util.spec_from_file_location("message", PATH)
message = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(message)


def check(data):
    at = 0

    def read(size):
        """Like a socket: what there is, at most the size."""
        nonlocal at
        part = data[at : at + min(size, 5)]
        at += len(part)
        return part

    try:
        kind, values = message.receive(read)
    except message.Closed:
        assert at == len(data), "closed, and there was more"
    except message.MessageError:
        assert at <= len(data)
    else:
        assert message.pack(kind, values) == data[:at], "it is read differently"
