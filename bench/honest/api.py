# SPDX-License-Identifier: MIT
"""A web service with clients: aiohttp, and jsonschema for what it is sent.

Each request has an order as JSON; the server checks it against a schema, adds it up and
answers; aiohttp writes its access log. The clients, in a process of their own, have four
requests under way at all times, so that the server never waits. See turns.py for the
arguments.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys

import aiohttp
import jsonschema
import jsonschema.validators
from aiohttp import web, web_log
from turns import Faster, Function, Turns, nothing

CLIENTS = 4
SCHEMA = {
    "type": "object",
    "required": ["customer", "lines"],
    "properties": {
        "customer": {"type": "string", "minLength": 1},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["article", "count", "price"],
                "properties": {
                    "article": {"type": "string", "pattern": "^[a-z]+-[0-9]+$"},
                    "count": {"type": "integer", "minimum": 1},
                    "price": {"type": "number", "minimum": 0},
                },
            },
        },
    },
}
ORDER = {
    "customer": "somebody",
    "lines": [{"article": f"bump-{n}", "count": n, "price": n / 7} for n in range(1, 9)],
}


def checked_once(_: Function) -> Function:
    """As jsonschema's documentation advises: the schema itself is checked only once."""
    validator = jsonschema.Draft202012Validator(SCHEMA)
    return lambda instance, schema: validator.validate(instance)


PROGRESS = "__main__:add_up"
FASTER = {
    "jsonschema.validators:validate": Faster(
        jsonschema.validators, "validate", checked_once
    ),
    "aiohttp.web_log:AccessLogger.log": Faster(web_log.AccessLogger, "log", nothing),
    # Of the clients, which wait for the server.
    "__main__:look_at": Faster(sys.modules[__name__], "look_at", nothing),
}


def add_up(order: dict) -> float:
    """The sum of an order; a unit of work."""
    return sum(line["count"] * line["price"] for line in order["lines"])


async def take(request: web.Request) -> web.Response:
    order = await request.json()
    jsonschema.validators.validate(order, SCHEMA)
    return web.json_response({"sum": add_up(order)})


def look_at(answer: bytes) -> float:
    """What a client does with an answer."""
    return sum(json.loads(answer)["sum"] for _ in range(20))


async def clients(port: int, turns: Turns) -> None:
    """For ever, or until the turns have ended."""
    done = asyncio.Event()

    async def one(session: aiohttp.ClientSession) -> None:
        while not done.is_set():
            async with session.post(f"http://127.0.0.1:{port}/", json=ORDER) as answer:
                look_at(await answer.read())
            if not done.is_set() and not turns.unit():
                done.set()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(one(session) for _ in range(CLIENTS)))


def main() -> None:
    turns = Turns(FASTER)
    logging.basicConfig(filename=os.devnull, level=logging.INFO)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        parent = os.getpid()
        if os.fork() == 0:
            asyncio.run(clients(listening.getsockname()[1], turns))
            os.kill(parent, signal.SIGTERM)
            os._exit(0)
        app = web.Application()
        app.add_routes([web.post("/", take)])
        web.run_app(app, sock=listening, print=None)


if __name__ == "__main__":
    main()
