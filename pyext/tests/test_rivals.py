# SPDX-License-Identifier: MIT
"""A program whose processes wait for each other's CPU is its own rival."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ranking import Ranked, python

SERVER = """
import asyncio, json, multiprocessing, os
DATA = {"text": "lorem ipsum " * 40, "tags": list(range(60))}
def render():
    return json.dumps(DATA).encode() + b"\\n"
def parse(line):
    return json.loads(line)
async def handle(reader, writer):
    while await reader.readline():
        await asyncio.sleep(0.0002)
        writer.write(render())
async def ask(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while True:
        writer.write(b"x\\n")
        parse(await reader.readline())
def clients(port):
    async def run():
        await asyncio.gather(*(ask(port) for _ in range(60)))
    asyncio.run(run())
async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    start = multiprocessing.get_context("fork").Process
    start(target=clients, args=(port,), daemon=True).start()
    await server.serve_forever()
asyncio.run(main())
"""


@pytest.fixture
def one_cpu() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.timed
@pytest.mark.one_python
def test_a_server_and_its_client_on_one_cpu(tmp_path: Path, one_cpu: None) -> None:
    """What the client computes keeps the server from its CPU."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)

    def fits(ranked: Ranked) -> bool:
        verdicts = {f["verdict"] for f in ranked.findings.values()}
        # If others have the CPU for most of the time, the answer is another one.
        alone = ranked.record.machine.is_crowded
        return verdicts == {"matters"} if alone else ranked.is_last

    ranked = Ranked(
        tmp_path,
        python("__main__:render", "__main__:parse"),
        [sys.executable, str(program)],
        "--progress",
        "__main__:render",
        fits=fits,
    )
    if not ranked.record.machine.is_crowded:
        pytest.skip("other programs had the CPU for most of the time")
    assert "it is its own rival" in ranked.done.stdout
