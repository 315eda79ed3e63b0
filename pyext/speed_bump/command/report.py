# SPDX-License-Identifier: MIT
"""The commands ``report`` and ``compare``, which show records."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from speed_bump.command.options import newest, say, write
from speed_bump.config import ConfigError
from speed_bump.experiment.show.encode import dumps

if TYPE_CHECKING:
    from speed_bump.experiment.fit.verdict import Verdict
    from speed_bump.experiment.record import Record


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="show a record of rank or sweep, or a run of members",
        description="Repeat the estimation from the slots in FILE, or from the rows that "
        "the members of a run wrote to the directory FILE, and show the result.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="a record, or the directory of a run (the newest)",
    )
    form = parser.add_mutually_exclusive_group()
    for name, text in (
        ("text", "a table (default)"),
        ("md", "Markdown"),
        ("csv", "CSV"),
        ("json", "JSON"),
        ("html", "a page in one file"),
    ):
        form.add_argument(
            f"--{name}", dest="form", action="store_const", const=name, help=text
        )
    form.add_argument(
        "--flamegraph",
        metavar="FILE",
        help="write where a unit's time goes: .svg, .json (speedscope), .pb.gz (pprof)",
    )
    parser.add_argument(
        "--all", action="store_true", help="show every function in the table"
    )
    parser.add_argument(
        "--layout",
        metavar="DIMENSIONS",
        help="for a run: how its ranks are divided, such as pp=2,dp=4,tp=8; the last "
        "dimension varies fastest",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE")
    parser.add_argument("--fail-if", action="append", default=[], metavar="CONDITION")
    parser.set_defaults(parser=parser, perform=report, form="text")
    parser = commands.add_parser(
        "compare",
        help="show what changed from one record of rank or sweep to another",
        description="Repeat the estimation from the slots in A and in B, and show which "
        "functions matter more or less in B, and how certain that is.",
    )
    parser.add_argument("files", metavar="FILE", nargs=2, help="the records A and B")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", metavar="FILE", help="write to FILE")
    parser.set_defaults(parser=parser, perform=compare)


def report(options: argparse.Namespace) -> int:
    from speed_bump.command import conditions
    from speed_bump.experiment import archive
    from speed_bump.experiment.fit.verdict import verdict as judge
    from speed_bump.experiment.show import export

    try:
        wanted = [conditions.Condition(text) for text in options.fail_if]
        if options.flamegraph:
            export.check(options.flamegraph)
    except (ConfigError, export.ExportError) as error:
        options.parser.error(str(error))
    path = options.file or newest()
    if path is not None and os.path.isdir(path):
        return _job(options, path)
    if options.layout:
        options.parser.error("--layout: FILE is not the directory of a run")
    if path is None:
        say("no FILE given, and there is none of an earlier 'speed-bump rank'")
        return 1
    try:
        record = archive.load(path)
    except archive.ArchiveError as error:
        say(str(error))
        return 1
    found = judge(record)
    if options.flamegraph:
        try:
            data = export.flamegraph(record, found, options.flamegraph)
        except export.ExportError as error:
            say(str(error))
            return 1
        with open(options.flamegraph, "wb") as file:
            file.write(data)
    else:
        write(options.output or "-", _form(options, record, found))
    return conditions.status(wanted, found)


def _job(options: argparse.Namespace, path: str) -> int:
    """Read the files of the members of a run."""
    from speed_bump.experiment.cluster import groups, join
    from speed_bump.experiment.show import job as show

    if options.form not in ("text", "json", "html") or options.fail_if:
        options.parser.error("of the directory of a run: --text, --json or --html")
    try:
        layout = groups.layout(options.layout) if options.layout else None
    except ValueError as error:
        options.parser.error(f"--layout: {error}")
    try:
        found = join.load(path, layout)
    except join.JobError as error:
        say(str(error))
        return 1
    if options.form == "json":
        text = dumps(show.as_json(found)).rstrip("\n")
    elif options.form == "html":
        from speed_bump.experiment.show import job_page

        text = job_page.page(found)
    else:
        text = show.as_text(found)
    write(options.output or "-", f"{text}\n")
    return 0


def _form(options: argparse.Namespace, record: Record, found: Verdict) -> str:
    from speed_bump.experiment.show import text

    if options.form == "json":
        return dumps(text.as_json(record, found))
    if options.form == "csv":
        return text.table_csv(found)
    if options.form == "md":
        return text.markdown(record, found) + "\n"
    if options.form == "html":
        from speed_bump.experiment.show import html

        return html.page(record, found)
    return text.text(record, found, None if options.all else text.MAX_ROWS) + "\n"


def compare(options: argparse.Namespace) -> int:
    from speed_bump.experiment import archive
    from speed_bump.experiment.show import changes

    try:
        a, b = (archive.load(path) for path in options.files)
    except archive.ArchiveError as error:
        say(str(error))
        return 1
    found = changes.compare(a, b)
    if options.json:
        text = dumps(changes.as_json(found, options.files))
    else:
        text = changes.text(found)
    write(options.output or "-", text)
    return 0
