# SPDX-License-Identifier: MIT
"""Run by speed_bump.pth in each Python process with a variable of speed_bump set.

The variables are SPEED_BUMP_TARGETS and SPEED_BUMP_ATTACH.
"""

from __future__ import annotations

import atexit
import os

from speed_bump import _core, control, duration
from speed_bump.config import Config, load_config


def is_set(name: str) -> bool:
    """Whether a switch in the environment is on."""
    return os.environ.get(name, "") not in ("", "0")


def activate() -> None:
    """Apply the environment.

    An error is printed as one line. The program runs all the same, unless
    SPEED_BUMP_STRICT is set.
    """
    try:
        config = load_config()
        first = control.install_shared(config, os.environ.get("SPEED_BUMP_TABLE"))
    except Exception as error:
        strict = is_set("SPEED_BUMP_STRICT")
        control.say(f"{error}" + ("" if strict else " (nothing is slowed)"))
        if strict:
            # site would catch any exception, SystemExit included, and not end with status
            # 2.
            os._exit(2)
        return
    seed = _core.seed()
    if first and seed is not None:
        # Programs that this one starts draw from the same seed, but other delays.
        os.environ[control.SEED] = f"{seed}:{os.getpid()}"
    table = os.environ.get("SPEED_BUMP_TABLE")
    if first and table:
        # Registered first, it is the last to be called.
        atexit.register(control.count_exit, os.getpid())
        from speed_bump import waits

        waits.watch()
        atexit.register(control.write_refused, table)
        room = os.environ.get("SPEED_BUMP_ROOM")
        if room:
            from speed_bump import last_steps

            last_steps.watch(room)
        if is_set("SPEED_BUMP_CALLS"):
            from speed_bump import _calls

            _calls.start(table)
    if first and not is_set("SPEED_BUMP_QUIET"):
        announce(config)
        atexit.register(summarize, os.getpid())


def announce(config: Config) -> None:
    """Print what will be slowed."""
    count = sum(not target.excludes for target in config.targets)
    control.say(
        f"slowing {count} target{'s' * (count != 1)} of "
        f"{os.environ['SPEED_BUMP_TARGETS']}, {delays(config)} (process {os.getpid()})"
    )


def delays(config: Config) -> str:
    """The delays in force, such as "20.0 us every 5th call"."""
    found = control.in_force(config)
    parts = {(t.delay, t.every) for t in config.targets if t.delay_ppm}
    if not found and not parts:
        found = [(config.delay_ns, config.frequency)]
    texts = []
    if found:
        least, most = found[0][0], found[-1][0]
        texts = [duration.human(least)]
        if most != least:
            texts[0] += f" to {duration.human(most)}"
    if parts:
        texts.append(f"{' or '.join(sorted({str(part) for part, _ in parts}))} of")
    every = {each for _, each in found}
    every |= {config.frequency if each is None else each for _, each in parts}
    nth = ordinal(every.pop()) if len(every) == 1 else ""
    each = f"every {nth} call" if nth else "each call"
    return f"{' and '.join(texts)} {each}"


def summarize(pid: int) -> None:
    """Print what was slowed. A forked child is part of its parent's summary."""
    if os.getpid() != pid:
        return
    control.say_refused()
    stats = control.stats(children=True)
    if stats.calls:
        control.say(
            f"{stats.calls:,} calls, {stats.delayed:,} of them delayed, by "
            f"{duration.human(stats.delivered_ns)} in all (process {pid})"
        )
    elif not stats.lost:
        control.say(f"no call matched a target (process {pid})")
    if stats.lost:
        functions = f"{stats.lost:,} function{'s' * (stats.lost != 1)}"
        control.say(f"{functions} found no room to be counted (process {pid})")


def ordinal(every: int) -> str:
    """Such as "5th"; "" for 1."""
    if every == 1:
        return ""
    is_teen = every % 100 in {11, 12, 13}
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(every % 10, "th")
    return f"{every}{ending}"


def let_attach() -> None:
    """Open a socket to which a tool can attach while the program runs."""
    from speed_bump.link import door

    try:
        door.open_door()
    except OSError as error:
        control.say(f"SPEED_BUMP_ATTACH: nothing can attach to this program: {error}")


if os.environ.get("SPEED_BUMP_TARGETS"):
    activate()
if is_set("SPEED_BUMP_ATTACH"):
    let_attach()
