# SPDX-License-Identifier: MIT
"""The messages between the tool and a program that it is attached to.

A message is a head of 12 bytes and a body. The head: 4 bytes ``SBLK``, the version of the
protocol, the kind (u16 each), the length of the body (u32). The body is fields, one after
the other: the length of the name (u8), the name (ASCII), the length of the value (u32),
the value. Numbers are little-endian. Each kind has its fields, all of them, in their
order; anything else is an error.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False  # not from typing, which is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAGIC = b"SBLK"
VERSION = 2
HEAD = struct.Struct("<4sHHI")
# Room for thousands of targets, but a peer can't make the other side use much memory.
MAX_BODY = 1 << 22

HELLO, ATTACH, ATTACHED, REFUSED, DETACH, DETACHED = range(1, 7)
FIELDS: dict[int, tuple[str, ...]] = {
    HELLO: ("version", "pid"),
    ATTACH: ("version", "table", "targets", "seed"),
    ATTACHED: ("layout",),
    REFUSED: ("reason",),
    DETACH: (),
    DETACHED: ("refused",),
}


class MessageError(ValueError):
    """The received bytes are no message of this protocol; nothing more is read."""


class Closed(EOFError):
    """The other side has closed the connection."""


def pack(kind: int, values: Mapping[str, bytes] | None = None) -> bytes:
    """A message; ``values`` are those of its kind, all of them."""
    body = b""
    for name in FIELDS[kind]:
        value = (values or {})[name]
        body += struct.pack("<B", len(name)) + name.encode("ascii")
        body += struct.pack("<I", len(value)) + value
    if len(body) > MAX_BODY:
        raise MessageError(f"a message of {len(body):,} bytes is too long")
    return HEAD.pack(MAGIC, VERSION, kind, len(body)) + body


def unpack_head(head: bytes) -> tuple[int, int]:
    """The kind, and the length of the body.

    Raises:
        MessageError: it is not a head of a message
    """
    magic, version, kind, length = HEAD.unpack(head)
    if magic != MAGIC:
        raise MessageError("not a message of speed-bump")
    if version != VERSION:
        raise MessageError(f"protocol {version}, and this is {VERSION}")
    if kind not in FIELDS:
        raise MessageError(f"no kind of message has the number {kind}")
    if length > MAX_BODY:
        raise MessageError(f"a message of {length:,} bytes is too long")
    return kind, length


def unpack_body(kind: int, body: bytes) -> dict[str, bytes]:
    """The values of a message of that kind.

    Raises:
        MessageError: they are not the fields of the kind
    """
    found: dict[str, bytes] = {}
    at = 0
    for name in FIELDS[kind]:
        expected = struct.pack("<B", len(name)) + name.encode("ascii")
        if body[at : at + len(expected)] != expected:
            raise MessageError(f"there is no {name!r} where it should be")
        at += len(expected)
        if len(body) - at < 4:
            raise MessageError(f"{name!r} has no length")
        (length,) = struct.unpack_from("<I", body, at)
        at += 4
        if length > len(body) - at:
            raise MessageError(f"{name!r} goes beyond the message")
        found[name] = body[at : at + length]
        at += length
    if at != len(body):
        raise MessageError("more than a message has")
    return found


def receive(read: Callable[[int], bytes]) -> tuple[int, dict[str, bytes]]:
    """The next message; ``read(n)`` returns 1 to n bytes, b"" at the end.

    Raises:
        Closed: the other side has closed the connection
        MessageError: it is not a message
    """
    kind, length = unpack_head(_all_of(read, HEAD.size))
    return kind, unpack_body(kind, _all_of(read, length))


def _all_of(read: Callable[[int], bytes], size: int) -> bytes:
    parts = []
    while size:
        part = read(min(size, 1 << 16))
        if not part:
            raise Closed("the other side has gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
