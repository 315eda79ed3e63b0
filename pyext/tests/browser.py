# SPDX-License-Identifier: MIT
"""A headless browser, controlled through the pipe of its DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
# For a busy machine.
PATIENCE_S = 120


def path() -> str | None:
    """The path of an installed Chromium."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._left = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command; return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        """Wait for an event, unless it has arrived already."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def open(self, file: Path, width: int, height: int, scheme: str) -> None:
        """Show a file in a window of the given size, in "light" or "dark"."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        self.events.clear()
        self.call("Page.navigate", url=file.as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Messages of console, log and network since the page was opened."""
        self.evaluate("0")
        found = []
        for event in self.events:
            method, values = event.get("method"), event.get("params", {})
            if method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                found.append(json.dumps(values))
            elif method == "Log.entryAdded":
                found.append(values["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = values["request"]["url"]
                if not url.startswith(("file:", "data:")):
                    found.append(f"asked for {url}")
            elif method == "Network.loadingFailed":
                found.append(values["errorText"])
        return found

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._back], [], [], until - time.monotonic())
            data = os.read(self._back, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._left += data
        message, self._left = self._left.split(b"\0", 1)
        return dict(json.loads(message))


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser that is closed at the end of the block."""
    executable = path()
    assert executable
    theirs_in, to = os.pipe()
    back, theirs_out = os.pipe()
    # The sandbox does not work as root or in most containers; the pages are our own.
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    more = [
        "--no-first-run",
        "--disable-background-networking",
        "--remote-debugging-pipe",
    ]
    # The protocol uses descriptors 3 and 4, so the pipes are moved out of the way first.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
    child = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}',
            "bash",
            executable,
            *flags,
            *more,
            f"--user-data-dir={profile}",
            "about:blank",
        ],
        pass_fds=ends,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in ends:
        os.close(end)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)
        os.close(back)
        child.kill()
        child.wait()
