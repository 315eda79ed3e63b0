# SPDX-License-Identifier: MIT
"""The commands that gdb runs to load the extension into a program."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from speed_bump import _core
from speed_bump.experiment.program.ways import AttachError, Entry

# Between two looks, s: the program runs.
PAUSE_S = 0.03
# The instruction of a system call, gdb's name of the register with its number, and the
# calls during which a thread holds no lock of the allocator or of the loader: poll,
# select, epoll_wait, wait, waitid, nanosleep and the like.
CALLS = {
    "x86_64": (
        "*(unsigned short *)($pc - 2) == 0x050f",
        "$orig_rax",
        (7, 23, 35, 61, 230, 232, 247, 270, 271, 281),
    ),
    "aarch64": (
        "*(unsigned int *)($pc - 4) == 0xd4000001",
        "$x8",
        (22, 72, 73, 95, 101, 115, 260),
    ),
}
# The code that gdb runs where it can't make calls (core/loader.h): its words, where it
# begins, the length of the last instruction, and the memory that it has for itself.
WORDS = (
    *("dlopen", "dlsym", "dlerror", "extension", "script"),
    *("back", "result", "error"),
)
BEGIN = 128
LAST = 6
MEMORY = 1 << 16
# AT_ENTRY of getauxval(3): where a program starts, which it does only once.
ENTRY = 9
# System calls of x86-64, and the registers that they change.
MMAP, MUNMAP = 9, 11
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
REGISTERS = ("rax", "rcx", "r11", *ARGUMENTS)
# gdb restores all registers after a call. Before version 14 it can't write vector
# registers where the kernel keeps more of them than gdb knows (AMX), and the program
# would go on with wrong ones. So one is written before any call, and changed back.
TRY = """
if $_isvoid($own_calls)
  set $own_calls = 1
  set $mxcsr = (unsigned int)$mxcsr ^ 32
  set $mxcsr = (unsigned int)$mxcsr ^ 32
  set $own_calls = 0
end
"""


def commands(entry: Entry) -> str:
    """Look for a safe place, load the extension there, and detach."""
    inside = _in(entry.text)
    first, last = entry.stack
    at_call, register, calls = CALLS[os.uname().machine]
    harmless = " || ".join(f"{register} == {number}" for number in calls)
    clock = f"{entry.script}.clock"
    return f"""
shell date +'set $now = %s' >'{clock}'
source {clock}
set $until = {entry.until}
if $until < $now + {entry.min_search_s}
  set $until = $now + {entry.min_search_s}
end
set $half = ($now + $until + 1) / 2
set $same = 2
set $last_pc = {entry.waits_at[0]}
set $last_sp = {entry.waits_at[1]}
set $done = 0
while $now < $until && !$done
  thread 1
  set $here = (unsigned long)$pc
  set $stack = (unsigned long)$sp
  if $here == $last_pc && $stack == $last_sp && {at_call}
    set $same = $same + 1
  else
    set $same = 0
  end
  set $last_pc = $here
  set $last_sp = $stack
  if ({inside}) || $same >= 3 || ({at_call} && ({harmless}))
    set $done = 1
  end
  if $now >= $half && $stack >= {first} && $stack < {last}
    if {_in(entry.libraries)}
      set $done = 1
    end
  end
  if !$done
    detach
    shell sleep {PAUSE_S}; date +'set $now = %s' >'{clock}'
    attach {entry.pid}
    source {clock}
  end
end
if $done
  sharedlibrary libc
  sharedlibrary libdl
  sharedlibrary ld-
{_calls(entry)}
else
  printf "speed-bump: no safe place\\n"
end
detach
quit
"""


def _in(ranges: Iterable[tuple[int, int]]) -> str:
    """Whether the program counter is in one of them."""
    return " || ".join(f"($pc >= {a} && $pc < {b})" for a, b in ranges) or "0"


def _calls(entry: Entry) -> str:
    """Commands that load the extension and have it run the script."""
    gdbs = f"""
  set $handle = ((void *(*)(const char *, int))dlopen)("{entry.extension}", 2)
  if $handle
    set $enter = ((void *(*)(void *, const char *))dlsym)($handle, "speed_bump_enter")
    printf "speed-bump: entered %d\\n", ((int (*)(const char *))$enter)("{entry.script}")
  else
    printf "speed-bump: not loaded %s\\n", ((char *(*)(void))dlerror)()
  end"""
    code = _core.loader_code()
    if not code:
        return gdbs
    return f"""
if $own_calls
  {_own_calls(entry, code)}
else
  {gdbs}
end"""


def _own_calls(entry: Entry, code: bytes) -> str:
    """Commands that do so with gdb writing general registers and memory only.

    A system call at the program's entry point maps memory for the code of
    ``core/loader.S``, which keeps all other registers. If gdb is ended while that runs,
    the thread goes on by itself.
    """
    words = {name: f"$page + {8 * k}" for k, name in enumerate(WORDS)}
    paths = [os.fsencode(path) + b"\0" for path in (entry.extension, entry.script)]
    with open(f"{entry.script}.code", "wb") as file:
        file.write(code + b"".join(paths))
    first = len(code)
    return f"""
set $entry = {_entry_point(entry.pid)}
set $old_code = {{unsigned long}}$entry
{"".join(f"set $old_{name} = ${name}{chr(10)}" for name in REGISTERS)}
set $old_pc = (unsigned long)$pc
set $old_number = $orig_rax
set $page = 0
{_system_call(MMAP, 0, MEMORY, 7, 0x22, -1, 0)}
  set $page = (unsigned long)$rax
{_end_of_call()}
if $page == 0 || $page >= -4096UL
  printf "speed-bump: no memory to execute code in\\n"
else
  restore {entry.script}.code binary $page
  set {{unsigned long}}({words["dlopen"]}) = (unsigned long)&dlopen
  set {{unsigned long}}({words["dlsym"]}) = (unsigned long)&dlsym
  set {{unsigned long}}({words["dlerror"]}) = (unsigned long)&dlerror
  set {{unsigned long}}({words["extension"]}) = $page + {first}
  set {{unsigned long}}({words["script"]}) = $page + {first + len(paths[0])}
  set {{unsigned long}}({words["back"]}) = $old_pc
  set {{long}}({words["result"]}) = -1
  if $old_number != -1 && $old_rax <= -512 && $old_rax >= -516
    # An interrupted system call is begun again.
    {_write("rax", "$old_number")}
    set {{unsigned long}}({words["back"]}) = $old_pc - 2
  end
  {_write("orig_rax", -1)}
  {_write("pc", f"$page + {BEGIN}")}
  tbreak *($page + {len(code) - LAST})
  continue
  if (unsigned long)$pc == $page + {len(code) - LAST}
    if {{long}}({words["result"]}) == -1
      printf "speed-bump: not loaded %s\\n", {{char *}}({words["error"]})
    else
      printf "speed-bump: entered %d\\n", {{int}}({words["result"]})
    end
    {_system_call(MUNMAP, "$page", MEMORY)}
    {_end_of_call()}
  else
    printf "speed-bump: interrupted\\n"
  end
end
"""


def _system_call(number: int, *args: int | str) -> str:
    """Commands for a system call at $entry, up to its end."""
    values = {"rax": number, **dict(zip(ARGUMENTS, args, strict=False))}
    sets = "\n".join(_write(name, value) for name, value in values.items())
    return f"""
set {{unsigned short}}$entry = 0x050f
{sets}
{_write("orig_rax", -1)}
{_write("pc", "$entry")}
tbreak *($entry + 2)
continue
set {{unsigned long}}$entry = $old_code
if (unsigned long)$pc == $entry + 2
"""


def _end_of_call() -> str:
    """Registers and the thread's place as they were."""
    old = {name: f"$old_{name}" for name in REGISTERS}
    old |= {"pc": "$old_pc", "orig_rax": "$old_number"}
    registers = "\n".join(_write(name, value) for name, value in old.items())
    return f"""
{registers}
end
"""


def _write(register: str, value: int | str) -> str:
    """Commands that write a register of the thread itself.

    Names of registers are those of the selected frame. When a write has changed where the
    thread is, gdb selects the frame that is most like the one before, which after a stop
    at the entry point is the outermost one, that of the program's start, if it can unwind
    as far. Then the return address on the stack would be written.
    """
    return f"select-frame 0\nset ${register} = {value}"


def _entry_point(pid: int) -> int:
    """The address of the program's first instruction."""
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            pairs: dict[int, int] = dict(struct.iter_unpack("@LL", file.read()))
            return pairs[ENTRY]
    except (OSError, KeyError):
        raise AttachError(
            f"/proc/{pid}/auxv: unreadable, or the process has ended"
        ) from None
