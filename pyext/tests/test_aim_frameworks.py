# SPDX-License-Identifier: MIT
"""The unit of work of each framework, found in a program that uses the real one.

A framework that is not installed is skipped; build-aux/check-frameworks installs all.
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

pytestmark = [pytest.mark.one_python, pytest.mark.timed]

# Sends requests to a server of the same program, from a process of its own.
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
# The file of the engine is real; its imports are replaced by stubs.
ENGINE = """
import importlib.abc, importlib.machinery, importlib.util, os, sys, types
REAL = ("vllm.v1.engine.core", "sglang.srt.managers.scheduler")
class Any:
    def __init__(self, *args, **more):
        pass
    def __call__(self, *args, **more):
        is_decorated = len(args) == 1 and isinstance(args[0], (type, types.FunctionType))
        return args[0] if is_decorated else Any()
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Any()
    def __getitem__(self, key):
        return Any()
    def __mro_entries__(self, bases):
        return ()
    def __or__(self, other):
        return Any()
    __ror__ = __add__ = __radd__ = __or__
    def __iter__(self):
        return iter(())
    def __enter__(self):
        return self
    def __exit__(self, *info):
        return None
    def __bool__(self):
        return False
    def __gt__(self, other):
        return False
    __lt__ = __ge__ = __le__ = __gt__
class Module(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Any()
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if name in REAL:
            spec = importlib.machinery.PathFinder.find_spec(top)
            parent = os.path.dirname(spec.submodule_search_locations[0])
            path = os.path.join(parent, *name.split(".")) + ".py"
            return importlib.util.spec_from_file_location(name, path)
        if top in sys.stdlib_module_names or top == "speed_bump":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        return Module(spec.name)
    def exec_module(self, module):
        pass
sys.meta_path.insert(0, Finder())
def work(*args, **more):
    sum(range(20000))
    return Any()
"""
PROGRAMS = {
    # Both are made for a GPU; only the engine's own file is real.
    "vLLM": ENGINE
    + """
import queue
from vllm.v1.engine.core import EngineCore
class Engine(EngineCore):
    def __init__(self):
        self.scheduler = Any()
        self.scheduler.has_requests = lambda: True
        self.scheduler.update_from_output = lambda *args: {}
        self.aborts_queue = queue.Queue()
        self.model_executor = Any()
        self.model_executor.execute_model = work
    def __getattr__(self, name):
        return Any()
engine = Engine()
while True:
    engine.step()
""",
    "SGLang": ENGINE
    + """
from sglang.srt.managers.scheduler import Scheduler
class Engine(Scheduler):
    def __init__(self):
        self.forward_ct = self.processed_tokens_counter = 0
        self.forward_sleep_time = self.scripted_scheduler_hook = None
        self.tp_worker = Any()
        self.tp_worker.forward_batch_embedding = lambda batch: (work(), False)
    def __getattr__(self, name):
        return Any()
engine = Engine()
while True:
    engine.run_batch(Any())
""",
    "Lightning": """
import logging, warnings
warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import torch, lightning
torch.set_num_threads(1)
class Mine(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(100, 100)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(6400, 100))
lightning.Trainer(
    max_epochs=10000, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
).fit(Mine(), torch.utils.data.DataLoader(data, batch_size=64))
""",
    "Hugging Face Trainer": """
import tempfile, torch, transformers
torch.set_num_threads(1)
config = transformers.BertConfig(
    vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=32,
)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, i):
        return {"input_ids": torch.full((16,), i % 100), "labels": torch.tensor(i % 2)}
with tempfile.TemporaryDirectory() as place:
    arguments = transformers.TrainingArguments(
        place, max_steps=100000, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, use_cpu=True,
    )
    model = transformers.BertForSequenceClassification(config)
    transformers.Trainer(model, arguments, train_dataset=Data()).train()
""",
    "Accelerate": """
import accelerate, torch
torch.set_num_threads(1)
accelerator = accelerate.Accelerator(cpu=True)
model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.DataLoader(torch.ones(6400, 100), batch_size=64)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
while True:
    for batch in data:
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
""",
    "Ray": """
import ray
ray.init(num_cpus=1, include_dashboard=False, configure_logging=False)
@ray.remote
def work(n):
    return sum(range(n))
while True:
    ray.get([work.remote(20000) for _ in range(4)])
""",
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
# Packages whose name differs from that of the framework.
PACKAGES = {"Hugging Face Trainer": "transformers"}
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
    package = PACKAGES.get(name, name.lower())
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{name} is not installed: pip install {package}")
    source = PROGRAMS[name].replace("{worker}", worker)
    program = tmp_path / "test_program.py"
    program.write_text(source.replace("{port}", str(unused_port())))
    found, said = look(program)
    (unit,) = found.progress.functions
    (framework,) = [f for f in FRAMEWORKS if f.name == name]
    assert found.why == f"{framework.what}, as {name} is at work", said
    # Units are counted: the rate is known, and it is that of the work.
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
    # The code before it runs at a steady rate, but is not a unit of work.
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
