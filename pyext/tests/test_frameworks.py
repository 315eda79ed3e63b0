# SPDX-License-Identifier: MIT
"""Servers, runners and debuggers in normal use: counts are exact, nothing hangs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from speed_bump.config import parse_targets
from speed_bump.experiment.program.runner import Runner, Slowed

# Start, query and end a server. The kernel chooses the ports.
DRIVER = """
import os, pathlib, signal, socket, subprocess, sys, time, urllib.request

def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

def ask(port):
    # Answers once it is there.
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as reply:
                return reply.read().decode()
        except OSError:
            time.sleep(0.1)
    raise SystemExit("it does not answer")

def start(*arguments):
    return subprocess.Popen([sys.executable, "-m", *map(str, arguments)])

def end(server, number=signal.SIGTERM):
    server.send_signal(number)
    return server.wait(120)
"""

Counted = Callable[..., None]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Run a driver beside some files; return a function's calls in all processes."""
    monkeypatch.chdir(tmp_path)
    # A file that changes within a second must be detected.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(driver: str, target: str, calls: int, **files: str) -> None:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "driver.py").write_text(DRIVER + driver)
        (pattern,) = parse_targets(target, "here")
        command = [sys.executable, "driver.py"]
        with Runner(command, show_output=False) as runner:
            result = runner.run([Slowed(pattern, 1000)])
        assert result.status == 0, result.output.decode()
        assert result.calls(pattern) == calls, result.output.decode()
        assert result.lost == 0

    return run


def test_xdist(counted: Counted) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    counted(
        "raise SystemExit(start('pytest', '-n2', '-pno:cacheprovider').wait(300))",
        "test_it:helper",
        60,
        test_it="""
import pytest
def helper(n): return n
@pytest.mark.parametrize("i", range(6))
def test_one(i):
    assert [helper(n) for n in range(10)] == list(range(10))
""",
    )


def test_pytest_that_imports_anew(counted: Counted) -> None:
    """By reload(), by monkeypatch, and by pytester, which restores sys.modules."""
    counted(
        "raise SystemExit(start('pytest', '-pno:cacheprovider').wait(300))",
        "worked:work",
        8,
        worked="def work(n): return n\n",
        test_it="""
import importlib, sys
import speed_bump, worked
pytest_plugins = "pytester"
def test_reload():
    for n in range(5):
        importlib.reload(worked)
        assert worked.work(n) == n
def test_purged(monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] in ("worked", "speed_bump"):
            monkeypatch.delitem(sys.modules, name)
    import speed_bump as other_speed_bump, worked as other_worked
    assert other_worked is not worked and other_speed_bump is not speed_bump
    assert other_worked.work(1) == worked.work(1) and other_speed_bump.is_installed()
def test_inside(pytester):
    for name in list(sys.modules):
        if name.split(".")[0] in ("worked", "speed_bump"):
            del sys.modules[name]
    pytester.makepyfile("import speed_bump, worked\\ndef test(): worked.work(1)")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
""",
    )


WSGI = """
import os
def work(): return str(os.getpid())
def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [work().encode()]
"""


def test_gunicorn_with_its_application_loaded_before_it_forks(counted: Counted) -> None:
    pytest.importorskip("gunicorn", reason="gunicorn is not installed")
    counted(
        """
port = free_port()
server = start("gunicorn", "--preload", "-w2", f"-b127.0.0.1:{port}", "served:app")
workers = {ask(port) for _ in range(40)}
assert str(server.pid) not in workers
raise SystemExit(end(server))
""",
        "served:work",
        40,
        served=WSGI,
    )


ASGI = """
def work(): return "1"
async def app(scope, receive, send):
    if scope["type"] != "http": return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": work().encode()})
"""


def test_uvicorn_that_reloads(counted: Counted) -> None:
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    counted(
        """
port = free_port()
server = start("uvicorn", "--reload", "--port", port, "served:app")
assert [ask(port) for _ in range(10)] == ["1"] * 10
asked = 10
path = pathlib.Path("served.py")
path.write_text(path.read_text().replace('"1"', '"22"'))
while ask(port) == "1":
    asked += 1
    time.sleep(0.5)
    # It may have looked for the first time after the change.
    path.touch()
asked += 1
assert [ask(port) for _ in range(60 - asked)] == ["22"] * (60 - asked)
end(server, signal.SIGINT)
""",
        "served:work",
        60,
        served=ASGI,
    )


def test_debugpy(counted: Counted) -> None:
    pytest.importorskip("debugpy", reason="debugpy is not installed")
    counted(
        """
raise SystemExit(start("debugpy", "--listen", free_port(), "program.py").wait(300))
""",
        "__main__:work",
        300,
        program="""
import threading
def work(): pass
def often():
    for _ in range(100): work()
threads = [threading.Thread(target=often) for _ in range(2)]
for thread in threads: thread.start()
often()
for thread in threads: thread.join()
""",
    )


def test_gevent_with_the_standard_library_patched(counted: Counted) -> None:
    pytest.importorskip("gevent", reason="gevent is not installed")
    counted(
        "raise SystemExit(subprocess.call([sys.executable, 'program.py']))",
        "__main__:work",
        500,
        program="""
from gevent import monkey
monkey.patch_all()
import threading, time
from gevent.pool import Pool
def work(): time.sleep(0)
def often():
    for _ in range(50): work()
pool = Pool(5)
for _ in range(5): pool.spawn(often)
threads = [threading.Thread(target=often) for _ in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
pool.join()
""",
    )


def test_celery_with_forked_workers(counted: Counted) -> None:
    pytest.importorskip("celery", reason="celery is not installed")
    counted(
        """
import tasks
for name in ("queue", "control"): os.mkdir(name)
worker = start("celery", "-A", "tasks", "worker", "-P", "prefork", "-c", "2",
               "--without-gossip", "--without-mingle", "--without-heartbeat")
for n in range(20): tasks.task.delay(n)
for _ in range(3000):
    done = pathlib.Path("done").read_text().split() if os.path.exists("done") else []
    if len(done) == 20: break
    time.sleep(0.1)
end(worker)
assert sorted(map(int, done)) == list(range(20)), done
""",
        "tasks:work",
        20,
        tasks="""
import os
from celery import Celery
app = Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control"}
def work(n): return f"{n}\\n".encode()
@app.task
def task(n):
    file = os.open("done", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, work(n))
    os.close(file)
""",
    )


def test_ray_with_a_worker(counted: Counted) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    counted(
        """
import ray, tasks
# Its sockets' paths have to be short.
import tempfile
place = tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)
with place:
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100_000_000,
             log_to_driver=False, _temp_dir=place.name)
    @ray.remote
    def task(n): return tasks.work(n), os.getpid()
    @ray.remote
    class Actor:
        def ask(self, n): return tasks.work(n), os.getpid()
    done = ray.get([task.remote(n) for n in range(20)])
    actor = Actor.options(num_cpus=0).remote()
    done += ray.get([actor.ask.remote(n) for n in range(20, 30)])
    ray.shutdown()
assert [n for n, _ in done] == [2 * n for n in range(30)], done
assert len({pid for _, pid in done} - {os.getpid()}) == 2, done
""",
        "tasks:work",
        30,
        tasks="def work(n): return 2 * n\n",
    )
