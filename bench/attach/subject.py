#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""subject.py SHAPE FILE: a program to attach to, which computes a known answer.

Its answer is a sum over epochs, each of which adds the same number; the last line of its
output says both as JSON, and what is hooked into the interpreter at the beginning and at
the end. It ends when the first byte of FILE is not zero, or its input ends.
"""

import asyncio
import atexit
import ctypes
import json
import mmap
import os
import select
import struct
import sys
import threading
import time
import zlib

# Calls of work() in an epoch.
CALLS = 20
# The check reads the pace here: the number of epochs, and how long the last took, ns.
PACE = struct.Struct("<QQ")
PACE_AT = 8
FILE_SIZE = 4096
THREADS = 50
MODULES = 30
# Takes the allocator some thousand calls, in C, without the GIL.
EXPRESSION = b"(abc|def|ghi)*(x|y){40}z"
# An exiting program lives for the time of this variable, s, and has much to free.
LIFE = "SUBJECT_LIFE_S"
GARBAGE = 200_000
PAIRS = 201
CALLS_IN_BLOCK = 4_000


def work(n):
    """The target."""
    return sum(range(n))


def small():
    """The target of what measures a call."""


def epoch():
    found = 0
    for n in range(CALLS):
        found = zlib.crc32(b"%d" % work(n + 40), found)
    return found


class Answer:
    """What a thread has computed."""

    def __init__(self):
        self.epochs = self.total = 0

    def add(self, number):
        self.epochs += 1
        self.total += number


def hooks():
    """What is hooked into this interpreter."""
    monitoring = getattr(sys, "monitoring", None)
    tools = range(6) if monitoring else ()
    return {
        "tools": [monitoring.get_tool(tool) for tool in tools],
        "trace": repr(sys.gettrace()),
        "profile": repr(sys.getprofile()),
        "switch interval": sys.getswitchinterval(),
    }


class Subject:
    """The program: a method for each shape."""

    def __init__(self, path):
        self.path = path
        with open(path, "r+b") as file:
            self.file = mmap.mmap(file.fileno(), FILE_SIZE)
        self.answers = []
        self.before = hooks()

    def is_over(self):
        return self.file[0] != 0

    def answer(self):
        self.answers.append(Answer())
        return self.answers[-1]

    def ready(self):
        os.write(1, b"ready\n")

    def finish(self):
        said = {
            "epochs": sum(answer.epochs for answer in self.answers),
            "total": sum(answer.total for answer in self.answers),
            "before": self.before,
            "after": hooks(),
        }
        os.write(1, json.dumps(said).encode() + b"\n")

    def keep_adding(self, pause_s=0.0):
        answer = self.answer()
        while not self.is_over():
            answer.add(epoch())
            if pause_s:
                time.sleep(pause_s)

    def busy(self):
        self.ready()
        self.keep_adding()

    def reading(self):
        """Blocked in read(); a byte asks for an epoch."""
        answer = self.answer()
        self.ready()
        while os.read(0, 1):
            answer.add(epoch())

    def locked(self):
        """Blocked in a lock, beside a thread that sleeps most of the time."""
        lock = threading.Lock()
        lock.acquire()

        def other():
            self.keep_adding(0.0005)
            lock.release()

        threading.Thread(target=other).start()
        self.ready()
        lock.acquire()

    def threads(self):
        """As many as are busy in Python all the time."""
        # They begin together: on one CPU, starting a thread beside many busy ones can
        # take minutes, as the new thread and this one must each get the GIL.
        begin = threading.Event()

        def wait_and_add():
            begin.wait()
            self.keep_adding()

        threads = [threading.Thread(target=wait_and_add) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        self.ready()
        begin.set()
        for thread in threads:
            thread.join()

    def coroutines(self):
        async def one():
            answer = self.answer()
            while not self.is_over():
                answer.add(epoch())
                await asyncio.sleep(0.001)

        async def run():
            self.ready()
            await asyncio.gather(*(one() for _ in range(20)))

        asyncio.run(run())

    def forking(self):
        """The children compute; the parent adds."""
        answer = self.answer()
        self.ready()
        while not self.is_over():
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                os.write(write, b"%d" % epoch())
                os._exit(0)
            os.close(write)
            number = os.read(read, 100)
            os.close(read)
            _, status = os.waitpid(pid, 0)
            if status:
                raise SystemExit(f"a child ended with status {status}")
            answer.add(int(number))

    def importing(self):
        """Imports modules again and again, and loads a library."""
        directory = f"{self.path}.modules"
        os.mkdir(directory)
        for n in range(MODULES):
            with open(f"{directory}/subject_{n}.py", "w", encoding="ascii") as file:
                file.write(f"import zlib, json, csv\nNUMBER = {n}\n")
                if n + 1 < MODULES:
                    file.write(f"import subject_{n + 1}\n")
        sys.path.insert(0, directory)
        answer = self.answer()
        self.ready()
        import _ctypes

        while not self.is_over():
            for n in range(MODULES):
                sys.modules.pop(f"subject_{n}", None)
            __import__("subject_0")
            if sys.modules[f"subject_{MODULES - 1}"].NUMBER != MODULES - 1:
                raise SystemExit("a module is wrong")
            _ctypes.dlclose(_ctypes.dlopen("libresolv.so.2", os.RTLD_NOW))
            answer.add(epoch())

    def native(self):
        """Busy in the C library, with short visits to the interpreter."""
        buffer = ctypes.create_string_buffer(64 << 20)
        answer = self.answer()
        self.ready()
        while not self.is_over():
            ctypes.memset(buffer, 1, len(buffer))
            answer.add(epoch())

    def allocating(self):
        """Four threads in malloc() and free(), of which three never have the GIL long."""
        libc = ctypes.CDLL(None)

        def compile_expressions(seconds_of_python):
            answer = self.answer()
            compiled = ctypes.create_string_buffer(256)
            while not self.is_over():
                if libc.regcomp(compiled, EXPRESSION, 1):
                    raise SystemExit("an expression was not compiled")
                matches = not libc.regexec(compiled, b"abc" + b"x" * 40 + b"z", 0, 0, 0)
                libc.regfree(compiled)
                answer.add(epoch() if matches else 0)
                end = time.monotonic() + seconds_of_python
                while time.monotonic() < end:
                    [bytes(n) for n in range(0, 5000, 7)]

        threads = [
            threading.Thread(target=compile_expressions, args=(0,)) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        self.ready()
        compile_expressions(0.001)
        for thread in threads:
            thread.join()

    def exiting(self):
        """Ends after a given time, which takes a while."""
        self.garbage = [{"n": n} for n in range(GARBAGE)]
        for one in self.garbage:
            one["all"] = self.garbage
        end = time.monotonic() + float(os.environ[LIFE])
        answer = self.answer()
        atexit.register(time.sleep, 0.02)
        self.ready()
        while time.monotonic() < end:
            answer.add(epoch())

    def paced(self):
        """Says how long an epoch takes."""
        answer = self.answer()
        self.ready()
        while not self.is_over():
            begin = time.perf_counter_ns()
            answer.add(epoch())
            took = time.perf_counter_ns() - begin
            PACE.pack_into(self.file, PACE_AT, answer.epochs, took)

    def timed(self):
        """Measures a call in pairs of blocks, or opens a control socket, when asked."""
        self.ready()
        while not self.is_over():
            asked = os.read(0, 1) if select.select([0], [], [], 0.01)[0] else b""
            if asked == b"s":
                os.environ["SPEED_BUMP_ATTACH"] = "1"
                import speed_bump._activate  # noqa: F401
            if not asked:
                continue
            ratios = sorted(call_block() / other_block() for _ in range(PAIRS))
            os.write(1, b"%.6f\n" % ratios[PAIRS // 2])


def call_block():
    begin = time.perf_counter_ns()
    for _ in range(CALLS_IN_BLOCK):
        small()
    return time.perf_counter_ns() - begin


def other_block():
    """As long, without a call."""
    number = 1
    begin = time.perf_counter_ns()
    for _ in range(CALLS_IN_BLOCK):
        number = number * 5 & 0xFFFF
        number ^= 3
    return time.perf_counter_ns() - begin


def main():
    shape, path = sys.argv[1:]
    subject = Subject(path)
    getattr(subject, shape)()
    subject.finish()


if __name__ == "__main__":
    main()
