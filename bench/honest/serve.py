# SPDX-License-Identifier: MIT
"""The standard library's web server with one visitor.

The server is http.server as ``python -m http.server`` runs it, unchanged. The visitor
requests a small page, as a browser would, waits 1 ms and requests the next. See turns.py
for the arguments.
"""

from __future__ import annotations

import email.message
import functools
import http.client
import http.server
import os
import signal
import socket
import socketserver
import sys
import tempfile
import time

from turns import Faster, Turns, nothing

LOOKS_S = 0.001
# The headers of a browser.
REQUEST = b"""\
GET /page.html HTTP/1.1\r
Host: localhost\r
Connection: close\r
Cache-Control: max-age=0\r
Upgrade-Insecure-Requests: 1\r
User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0\r
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r
Accept-Language: en-GB,en;q=0.5\r
Accept-Encoding: gzip, deflate, br\r
Cookie: session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=yes\r
Referer: http://localhost/index.html\r
Sec-Fetch-Dest: document\r
Sec-Fetch-Mode: navigate\r
Sec-Fetch-Site: same-origin\r
Sec-Fetch-User: ?1\r
\r
"""


def quick_headers(file, _class=http.client.HTTPMessage) -> email.message.Message:
    """As http.client.parse_headers(), for simple requests such as these."""
    found = _class()
    while (line := file.readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.decode("iso-8859-1").partition(":")
        found._headers.append((name, value.strip()))  # as the parser of email does
    return found


def quick_end(self, request) -> None:
    """Close it, without a shutdown before."""
    request.close()


def no_thread(self, request, client_address) -> None:
    """In the same thread, because there is only one visitor."""
    self.process_request_thread(request, client_address)


PROGRESS = "http.server:SimpleHTTPRequestHandler.do_GET"
FASTER = {
    "socketserver:ThreadingMixIn.process_request": Faster(
        socketserver.ThreadingMixIn, "process_request", lambda _: no_thread
    ),
    "http.client:parse_headers": Faster(
        http.client, "parse_headers", lambda _: quick_headers
    ),
    "http.server:BaseHTTPRequestHandler.log_message": Faster(
        http.server.BaseHTTPRequestHandler, "log_message", nothing
    ),
    "socketserver:TCPServer.shutdown_request": Faster(
        socketserver.TCPServer, "shutdown_request", lambda _: quick_end
    ),
}


def visit(port: int) -> None:
    """Request and read one page."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(REQUEST)
        answer = b""
        while b"</html>" not in answer:
            data = connection.recv(1 << 16)
            if not data:
                raise SystemExit(f"no page: {answer!r}")
            answer += data


def visitor(port: int, turns: Turns) -> None:
    """Request pages, with pauses; for ever, or until the turns have ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        visit(port)
        time.sleep(LOOKS_S)
        if not turns.unit():
            os.kill(parent, signal.SIGTERM)
            return


def main() -> None:
    """Serve until terminated."""
    turns = Turns(FASTER)
    # The log is written as by a server in the background.
    log = os.open(os.devnull, os.O_WRONLY)
    with tempfile.TemporaryDirectory() as directory:
        with open(f"{directory}/page.html", "w", encoding="ascii") as file:
            file.write("<html>" + "<p>speed-bump</p>" * 100 + "</html>")
        handler = functools.partial(
            http.server.SimpleHTTPRequestHandler, directory=directory
        )
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            visitor(server.server_port, turns)
            os._exit(0)
        os.dup2(log, 2)
        server.serve_forever()


if __name__ == "__main__":
    main()
