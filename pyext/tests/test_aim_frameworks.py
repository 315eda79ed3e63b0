# SPDX-License-Identifier: MIT
"""The unit of work of each framework, found in a program that uses the real one.

A framework that is not installed is skipped:

    pip install torch aiohttp flask uvicorn gunicorn django hypercorn celery
"""

from __future__ import annotations

import importlib.util
import socket
import sys

import pytest
from speed_bump.experiment.aim import aim
from speed_bump.experiment.aim.frameworks import FRAMEWORKS
from speed_bump.experiment.program.progress import Progress
from speed_bump.experiment.program.runner import Runner

pytestmark = pytest.mark.one_python

# Asks a server of the same program again and again, from a process of its own.
VISITOR = """
import http.client, os, signal, sys, time
PORT = {port}
def visit(parent):
    while os.getppid() == parent:
        try:
            one = http.client.HTTPConnection("127.0.0.1", PORT, timeout=5)
            one.request("GET", "/")
            one.getresponse().read()
            one.close()
        except OSError:
            time.sleep(0.05)
def work():
    return sum(range(20000))
if __name__ == "__main__":
    server = os.getpid()
    if os.fork() == 0:
        visit(server)
        os._exit(0)
"""
ASGI = """
async def app(scope, receive, send):
    if scope["type"] != "http":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        return
    work()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})
"""
WSGI = """
def app(environ, start_response):
    work()
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"here"]
"""
PROGRAMS = {
    "torch": """
import torch
class Mine(torch.optim.SGD):
    pass
model = torch.nn.Linear(300, 300)
optimizer = Mine(model.parameters(), lr=0.01)
while True:
    for _ in range(3):
        loss = model(torch.ones(64, 300)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "Flask": """
import flask
app = flask.Flask("app")
@app.route("/")
def index():
    return str(sum(range(20000)))
client = app.test_client()
while True:
    client.get("/")
""",
    "Django": """
import django
from django.conf import settings
from django.http import HttpResponse
from django.urls import path
def index(request):
    return HttpResponse(str(sum(range(20000))))
urlpatterns = [path("", index)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x")
django.setup()
from django.test import Client
client = Client()
while True:
    client.get("/")
""",
    "uvicorn": VISITOR
    + ASGI
    + """
import uvicorn
uvicorn.run(app, port=PORT, log_level="error")
""",
    "hypercorn": VISITOR
    + ASGI
    + """
import asyncio
from hypercorn.asyncio import serve
from hypercorn.config import Config
config = Config()
config.bind = [f"127.0.0.1:{PORT}"]
asyncio.run(serve(app, config))
""",
    "gunicorn": VISITOR
    + WSGI
    + """
from gunicorn.app.base import BaseApplication
class Server(BaseApplication):
    def load_config(self):
        self.cfg.set("bind", f"127.0.0.1:{PORT}")
        self.cfg.set("worker_class", "{worker}")
        self.cfg.set("loglevel", "critical")
    def load(self):
        return app
Server().run()
""",
    "aiohttp": VISITOR
    + """
from aiohttp import web
async def index(request):
    work()
    return web.Response(text="here")
app = web.Application()
app.router.add_get("/", index)
web.run_app(app, host="127.0.0.1", port=PORT, print=None)
""",
    "Celery": """
import threading, time
from celery import Celery
app = Celery("app", broker="memory://", backend="cache+memory://")
app.conf.worker_hijack_root_logger = False
@app.task
def work():
    return sum(range(20000))
def ask():
    while True:
        work.delay()
        time.sleep(0.005)
threading.Thread(target=ask, daemon=True).start()
app.Worker(pool="solo", loglevel="ERROR", without_gossip=True).start()
""",
    "pytest": """
import pytest
@pytest.mark.parametrize("n", range(1000))
def test_one(n):
    assert sum(range(20000 + n))
if __name__ == "__main__":
    raise SystemExit(pytest.main(["-q", "-p", "no:cacheprovider", __file__]))
""",
}
CASES = [(name, "") for name in PROGRAMS if name != "gunicorn"]
CASES += [("gunicorn", "sync"), ("gunicorn", "gthread")]


def unused_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def look(path):
    said = []
    with Runner([sys.executable, str(path)], show_output=False) as runner:
        return aim(runner, Progress(), 60.0, said.append, event=said.append), said


@pytest.mark.parametrize(("name", "worker"), CASES)
def test_the_unit_is_that_of_the_framework(name, worker, tmp_path):
    if importlib.util.find_spec(name.lower()) is None:
        pytest.skip(f"{name} is not installed: pip install {name.lower()}")
    source = PROGRAMS[name].replace("{worker}", worker)
    program = tmp_path / "test_program.py"
    program.write_text(source.replace("{port}", str(unused_port())))
    found, said = look(program)
    (unit,) = found.progress.functions
    (framework,) = [f for f in FRAMEWORKS if f.name == name]
    assert found.why == f"{framework.what}, as {name} is at work", said
    # Units are counted: the rate is known, and is that of the work.
    rate = found.units[found.unit_name]
    assert rate > 1
    assert unit.right.replace("[<]", "<").replace("[*]", "*") in found.unit_name
    assert found.candidates


def test_the_table_has_no_name_twice():
    names = [framework.name for framework in FRAMEWORKS]
    assert len(set(names)) == len(names) == 15
    for framework in FRAMEWORKS:
        assert framework.unit
        assert all(":" in pattern for pattern in (*framework.unit, *framework.sign))


def test_a_framework_that_has_begun_is_waited_for(tmp_path):
    # What goes before is as steady as can be, and is no unit of work.
    if importlib.util.find_spec("flask") is None:
        pytest.skip("flask is not installed: pip install flask")
    program = tmp_path / "program.py"
    program.write_text("""
import time, flask
app = flask.Flask("app")
@app.route("/")
def index():
    return str(sum(range(20000)))
def warm_up():
    return sum(range(200000))
def load():
    end = time.monotonic() + 6
    while time.monotonic() < end:
        warm_up()
load()
client = app.test_client()
while True:
    client.get("/")
""")
    found, said = look(program)
    assert found.unit_name == "flask.app:Flask.wsgi_app", said
    assert "__main__:warm_up" not in found.candidates
    assert any("waiting for the first of Flask: a request" in text for text in said)
