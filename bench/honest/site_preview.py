# SPDX-License-Identifier: MIT
"""A preview of a page: Markdown to HTML, again and again.

markdown-it-py parses the text, Pygments colours its code, and Jinja2 fills the page, as
in many site generators. A thread compresses the page before, as a server would send it,
while the next one is made. See turns.py for the arguments.
"""

from __future__ import annotations

import gzip
import pathlib
from concurrent.futures import ThreadPoolExecutor

import jinja2
import markdown_it.main
import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer
from turns import Faster, Turns, nothing, remembered

TEXT = pathlib.Path(__file__).parents[2] / "docs" / "start.md"
TEMPLATE = """<!doctype html><title>{{ title }}</title>
<nav>{% for n in range(200) %}<a href="{{ n }}">{{ "page %d"|format(n)|title|e }}</a>
{% endfor %}</nav><main>{{ body|safe }}</main>
"""
PROGRESS = "__main__:make_page"
FASTER = {
    "markdown_it.main:MarkdownIt.parse": Faster(
        markdown_it.main.MarkdownIt,
        "parse",
        lambda real: remembered(real, lambda _, text, *more: text),
    ),
    "pygments:highlight": Faster(
        pygments, "highlight", lambda real: remembered(real, lambda code, *_: code)
    ),
    "jinja2.environment:Template.render": Faster(
        jinja2.Template, "render", lambda real: remembered(real, lambda page: page)
    ),
    # Nobody waits for it.
    "gzip:compress": Faster(gzip, "compress", nothing),
}


def coloured(code: str, *_: object) -> str:
    """Code of the text as HTML."""
    return pygments.highlight(code, BashLexer(), HtmlFormatter(nowrap=True))


def make_page(parser: markdown_it.main.MarkdownIt, page: jinja2.Template) -> bytes:
    """A unit of work."""
    body = parser.render(TEXT.read_text("utf-8"))
    return page.render(title="Start", body=body).encode()


def main() -> None:
    turns = Turns(FASTER)
    parser = markdown_it.main.MarkdownIt(options_update={"highlight": coloured})
    page = jinja2.Environment(autoescape=False).from_string(TEMPLATE)
    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(len, b"")
        while turns.unit():
            made = make_page(parser, page)
            before.result()
            before = pool.submit(gzip.compress, made, 9)


if __name__ == "__main__":
    main()
