# SPDX-License-Identifier: MIT
"""Giving the plan's memory to the processes of the program (``plan_receive()`` in libsb).

Memory shared by the kernel has no name that a process could open, so processes request
it at a socket.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress


class Giver:
    """Answers at a socket, in a thread of its own, until closed.

    Args:
        path: of the socket
        fd: sent to each process that connects; closed with this object
    """

    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(path)
            os.chmod(path, 0o600)
            self._socket.listen(512)
        except BaseException:
            self._socket.close()
            raise
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, suppress(OSError):
                peer.settimeout(1.0)
                socket.send_fds(peer, [b"p"], [self._fd])

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(2.0)
        os.close(self._fd)
        with suppress(OSError):
            os.unlink(self._path)
