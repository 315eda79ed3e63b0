# SPDX-License-Identifier: MIT
"""Progress from a counter or a histogram that a server exports.

The whole command, its refusals, the reading and the slots are tested with one server of
numbers: hence the length.
"""

from __future__ import annotations

import http.server
import itertools
import json
import math
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from ranking import Ranked, environment, speed_bump
from speed_bump import _core
from speed_bump.config import ConfigError
from speed_bump.experiment.fit.columns import table
from speed_bump.experiment.fit.effects import effects
from speed_bump.experiment.fit.mean_latency import mean_latency
from speed_bump.experiment.program import metric as metrics
from speed_bump.experiment.program.meter import Meter, Pace, slot_of
from speed_bump.experiment.program.metric import Metric, MetricError, Source, parse
from speed_bump.experiment.record import Arm, Block, Delay, Metered, Record, Slots
from speed_bump.experiment.slots.measure import by_units
from speed_bump.experiment.slots.plan import HOLDS, SHAM, chance_of_one, one_at_a_time

pytest.importorskip("prometheus_client")

pytestmark = pytest.mark.one_python

PROGRAM = "import time\ndef f(): time.sleep(0.01)\nwhile True: f()"
SERVER = str(Path(__file__).with_name("metrics_server.py"))
# Delays that wait: other programs on the machine do not make them longer.
TARGETS = ["-t", "__main__:prepare mode=wait", "-t", "__main__:answer mode=wait"]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(condition, seconds=100):
    """Wait for a true value and return it; fail after a time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers as ``server.answer`` says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.answer(self)

    def send(self, text, status=200, kind="text/plain; version=0.0.4", **headers):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Start a server with given answers; returns the URL of its metrics."""
    servers = []

    def start(answer):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.answer = answer if callable(answer) else lambda it: it.send(answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/metrics"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def plan(tmp_path):
    return _core.Plan(_core.Table(str(tmp_path / "table"), 16, planned=True))


def read(url, name, labels=(), timeout_s=20.0):
    source = Source(Metric(url, name, labels), timeout_s)
    try:
        return source.read()
    finally:
        source.close()


def counted(reading):
    return sum(value.count for value in reading.series.values())


# ----------------------------------------------------------------- the whole command


@pytest.mark.timed
def test_the_function_that_limits_a_server_of_several_processes_is_named(tmp_path):
    port = free_port()

    def fits(ranked):
        found = ranked.findings
        added = ranked.result["mean_latency"]["per_ms"]
        slower, same = (added.get(f"__main__:{n}") for n in ("answer", "prepare"))
        # A hidden function may need more slots to be called hidden.
        aside = found["prepare"]["criticality"]
        return (
            found["answer"]["verdict"] == "matters"
            and found["prepare"]["verdict"] in ("hidden", "inconclusive")
            and aside
            and abs(aside["value"]) < 0.3
            # Each order is delayed by as much as its answer.
            and slower["value"] > 0.6
            and slower["high"] < 1.5
            and abs(same["value"]) < 0.3
        )

    url = f"http://127.0.0.1:{port}/metrics"
    page = tmp_path / "page.html"
    ranked = Ranked(
        tmp_path, TARGETS, [sys.executable, SERVER, str(port)],
        "--progress-metric", f"{url}:app_order_seconds", "--html", str(page),
        fits=fits, budgets=(20, 45, 90),
    )  # fmt: skip
    result = ranked.result
    assert result["unit"] == f"count of app_order_seconds at {url}"
    metric = result["metric"]
    assert metric["histogram"] and metric["name"] == "app_order_seconds"
    # The counted answers are those that were called.
    calls = ranked.findings["answer"]["calls_per_unit"]
    assert 0.95 < calls < 1.05
    slots = ranked.record.slots
    lengths = np.diff(slots.end_ns)[slots.good[1:]]
    assert 0.8 < np.median(lengths) / metric["slot_ns"] < 1.3
    # The uncertainty of a slot is half of the length of a reading.
    assert 0 < metric["uncertain_ns"] < metric["slot_ns"] / 4
    assert "of the mean alone" in ranked.done.stdout
    # A report of the record has the same results.
    again = speed_bump("report", str(ranked.output), "--md").stdout
    for text in (again, page.read_text()):
        assert "1 ms of delay a unit adds to the mean" in text
        assert "a request takes" in text


def test_where_functions_are_looked_for_a_metric_is_the_unit_still(tmp_path):
    port = free_port()
    done = speed_bump(
        "rank", "--budget", "8s", "--progress-metric",
        f"http://127.0.0.1:{port}:app_orders_total", "-o", str(tmp_path / "record"),
        "--", sys.executable, SERVER, str(port),
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if "a unit of work is" in line]
    url = f"http://127.0.0.1:{port}/metrics"
    assert len(lines) == 1, done.stderr
    assert f"a unit of work is count of app_orders_total at {url}" in lines[0]


@pytest.mark.timed
def test_a_server_that_runs_is_attached_to(tmp_path):
    port = free_port()
    environ = environment() | {"SPEED_BUMP_ATTACH": "1", "XDG_RUNTIME_DIR": str(tmp_path)}
    server = subprocess.Popen(
        [sys.executable, SERVER, str(port)], env=environ, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}/metrics"
    try:
        source = Source(Metric(url, "app_orders_total"))

        def answers():
            assert server.poll() is None
            with suppress(MetricError):
                return source.read()

        until(answers)
        source.close()
        # On a busy machine the rate may change so much that a longer budget is suggested.
        for budget in ("12s", "60s", "120s"):
            done = subprocess.run(
                [
                    sys.executable, "-m", "speed_bump", "rank", *TARGETS,
                    "--budget", budget, "--pid-tree", str(server.pid),
                    "-o", str(tmp_path / "record"),
                    "--progress-metric", f'{url}:app_orders_total{{kind="new"}}',
                ],
                env=environ, capture_output=True, text=True, timeout=400, check=False,
            )  # fmt: skip
            if "give --budget" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        assert "__main__:answer" in done.stdout
        assert 'count of app_orders_total{kind="new"}' in done.stdout.replace("\n  ", " ")
        assert server.poll() is None
        wrong = speed_bump(
            "rank",
            "--pid",
            str(server.pid),
            "--progress-metric",
            f"{url}:app_order_total",
        )
        assert wrong.returncode == 2
        assert "nearest of its counters and histograms: app_orders_total" in wrong.stderr
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


# ------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "name, kind", [("app_order_queue", "a gauge"), ("app_size", "a summary")]
)
def test_what_counts_no_work_is_refused_in_a_line(serve, tmp_path, name, kind):
    text = "\n".join(
        (
            "# TYPE app_order_queue gauge", "app_order_queue 4",
            "# TYPE app_size summary", "app_size_sum 3", "app_size_count 3", "",
        )
    )  # fmt: skip
    url = serve(text)
    started = tmp_path / "started"
    done = speed_bump(
        "rank",
        *TARGETS,
        "--progress-metric",
        f"{url}:{name}",
        "--",
        "touch",
        str(started),
    )
    assert done.returncode == 2
    assert (
        f"{name} is {kind}; a counter or a histogram counts work"
        in done.stderr.splitlines()[-1]
    )
    # The server was running, so the error is known before the program is started.
    assert not started.exists()


def test_a_gauge_of_a_server_that_is_started_is_refused(tmp_path):
    port = free_port()
    done = speed_bump(
        # The error does not wait for the end of the budget.
        "rank", *TARGETS, "--budget", "1000s", "--progress-metric",
        f"http://127.0.0.1:{port}:app_order_queue", "-o", str(tmp_path / "record"),
        "--", sys.executable, SERVER, str(port),
    )  # fmt: skip
    assert done.returncode == 1
    assert "app_order_queue is a gauge; a counter or a histogram" in done.stderr
    assert not (tmp_path / "record").exists()


def test_a_metric_that_a_started_server_lacks_is_said_with_the_nearest(tmp_path):
    port = free_port()
    done = speed_bump(
        "rank", *TARGETS, "--budget", "12s", "--progress-metric",
        f"http://127.0.0.1:{port}:app_order", "--", sys.executable, SERVER, str(port),
    )  # fmt: skip
    assert done.returncode == 1
    doubt, *_, last = done.stderr.splitlines()
    for line in (doubt, last):
        assert "has no metric app_order; nearest" in line
        assert "app_order_seconds" in line
        assert "app_order_queue" not in line
    # The metric may appear with the first request.
    assert "warning: waiting" in doubt and "; put a load on the server" in doubt
    assert re.search(r"; gave up after 1\d s: put a load on the server, or", last)


def test_a_metric_that_comes_with_the_first_request_is_waited_for(serve, tmp_path):
    first = []

    def answer(it):
        first.append(time.monotonic())
        n = int(100 * (first[-1] - first[0]))
        name = "n" if n > 600 else "other"
        it.send(f"# TYPE {name}_total counter\n{name}_total {n}\n")

    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "12s", "--progress-metric",
        f"{serve(answer)}:n_total", "-o", str(tmp_path / "record"), "--",
        sys.executable, "-c", PROGRAM,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "__main__:f" in done.stdout


def test_a_server_that_never_answers_was_waited_for_so_long(tmp_path):
    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "3s", "--progress-metric",
        f"http://127.0.0.1:{free_port()}:n_total", "-o", str(tmp_path / "record"), "--",
        sys.executable, "-c", PROGRAM,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "does not answer (Connection refused); gave up after " in last
    assert last.endswith(" s: give more --budget")


def test_a_program_too_short_for_a_metric_is_refused(serve, tmp_path):
    """Whole runs are not counted by a metric; they would be another experiment."""
    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "20s", "--progress-metric",
        f"{serve(Counter())}:n_total", "-o", str(tmp_path / "record"), "--",
        sys.executable, "-c", "import time\ndef f(): time.sleep(0.3)\nf()",
    )  # fmt: skip
    assert done.returncode == 1
    assert "too soon for slots, which --progress-metric needs" in done.stderr
    assert "whole runs" not in done.stderr


def test_a_program_that_is_let_finish_is_asked_no_more(serve, tmp_path):
    stop = tmp_path / "stop"
    counter = Counter()
    asked = [0.0]
    is_quiet = []

    def answer(it):
        asked[0] = time.monotonic()
        counter(it)

    def end_when_quiet():
        with suppress(AssertionError):
            until(lambda: asked[0] and time.monotonic() - asked[0] > 6, 60)
            is_quiet.append(True)
        stop.touch()

    program = (
        "import os, time\n"
        "def f(): time.sleep(0.01)\n"
        f"while not os.path.exists({str(stop)!r}): f()\n"
    )
    threading.Thread(target=end_when_quiet, daemon=True).start()
    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "6s", "--let-finish",
        "--progress-metric", f"{serve(answer)}:n_total", "-o", str(tmp_path / "record"),
        "--", sys.executable, "-c", program,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert is_quiet


@pytest.mark.parametrize(
    "text, says",
    [
        ("localhost:8000/metrics:a", "is not URL:NAME"),
        ("http://localhost:8000/metrics", "is not URL:NAME"),
        ("http://localhost:8000/metrics:9x", "is not URL:NAME"),
        ("http://localhost:99999/metrics:x", "there is no port 99999"),
        ("http://me:secret@localhost/metrics:x", "a user or a password"),
        ("ftp://localhost/metrics:x", "is not URL:NAME"),
        ("http://a..b/metrics:x", "there is no host a..b"),
        (f"http://{'a' * 64}/metrics:x", "there is no host aaa"),
        ("http://[zz]:1/metrics:x", "is not URL:NAME"),
        ("http://[1:2]:1/metrics:x", "there is no host [1:2]: it is not an IPv6 address"),
        ("http://localhost/m\u00e9trics:x", "write /m%C3%A9trics for the path"),
        ('http://localhost/metrics:x{a="1"', "do not end with }"),
        ("http://localhost/metrics:x{a=1}", "is not a list of labels"),
        ('http://localhost/metrics:x{a=~"1"}', "is not a list of labels"),
    ],
)
def test_what_is_no_metric_is_a_line(text, says):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_line_refuses_what_does_not_go_together():
    url = "http://localhost:1/metrics:x"
    for more in (["--progress", "a:b"], ["--progress-regex", "x"]):
        done = speed_bump("rank", "--progress-metric", url, *more, "--", "true")
        assert done.returncode == 2
        assert "the metric is the unit of work" in done.stderr


@pytest.mark.parametrize(
    "option, says",
    [
        ("--progress-metric", "--progress-metric: '' is not URL:NAME such as"),
        ("--progress-regex", "--progress-regex: it is empty"),
    ],
)
def test_an_empty_text_is_an_error_and_no_other_unit(tmp_path, option, says):
    """As from an unset shell variable."""
    started = tmp_path / "started"
    done = speed_bump("rank", *TARGETS, option, "", "--", "touch", str(started))
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert not started.exists()


def test_a_url_a_name_with_colons_and_labels_are_told_apart():
    found = parse(
        'http://localhost:8000/metrics:vllm:request_success_total{a="x,}",b="\\""}'
    )
    assert found == Metric(
        "http://localhost:8000/metrics",
        "vllm:request_success_total",
        (("a", "x,}"), ("b", '"')),
    )
    assert parse("https://h:nv_inference_count").url == "https://h/metrics"
    assert parse("http://[::1]:8002/x/y:n") == Metric("http://[::1]:8002/x/y", "n")


def test_without_the_library_a_line_says_how_to_get_it():
    hidden = (
        "import sys; sys.modules['prometheus_client'] = None; sys.argv[0] = 'speed-bump';"
        "from speed_bump.command.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [
            sys.executable, "-c", hidden, "rank", "--progress-metric",
            "http://localhost:1:x", "--", "true",
        ],
        env=environment(), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "pip install 'speed-bump[metrics]'" in done.stderr


# ----------------------------------------------------------------------- reading

FAMILY = """\
# HELP jobs_total Jobs.
# TYPE jobs_total counter
jobs_total{model="a",why="stop"} 10
jobs_total{model="a",why="length"} 5
jobs_total{model="b",why="stop"} 100
"""


def test_series_that_match_are_added_up(serve):
    url = serve(FAMILY)
    assert counted(read(url, "jobs_total")) == 115
    assert counted(read(url, "jobs_total", (("model", "a"),))) == 15
    assert counted(read(url, "jobs_total", (("model", "a"), ("why", "stop")))) == 10
    with pytest.raises(MetricError) as caught:
        read(url, "jobs_total", (("model", "c"), ("why", "stop")))
    assert 'no series with {model="c",why="stop"}; it has {model="' in str(caught.value)
    assert 'model="b",why="stop"' in str(caught.value)


def test_a_series_without_labels_is_named_in_words(serve):
    with pytest.raises(MetricError) as caught:
        read(serve("# TYPE n_total counter\nn_total 3\n"), "n_total", (("a", "b"),))
    assert 'no series with {a="b"}; it has one without labels' in str(caught.value)


def test_what_is_not_a_number_is_said(serve):
    text = '# TYPE n_total counter\nn_total{a="b"} NaN\nn_total{a="c"} 1\n'
    with pytest.raises(MetricError) as caught:
        read(serve(text), "n_total", (("a", "b"),))
    assert str(caught.value).endswith(': n_total{a="b"} is not a number')
    assert caught.value.waits and not caught.value.absent


def test_a_certificate_that_is_not_trusted_is_not_waited_for(tmp_path):
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    subprocess.run(
        [
            "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            "-subj", "/CN=localhost", "-keyout", key, "-out", certificate,
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        with pytest.raises(MetricError) as caught:
            read(f"https://localhost:{server.server_port}/metrics", "jobs_total")
    finally:
        server.shutdown()
        server.server_close()
    assert not caught.value.waits
    assert "signed certificate" in str(caught.value)


# It was not compiled, or the OpenSSL that it was compiled for is not there.
@pytest.mark.parametrize(
    "ssl_module", ["raise ModuleNotFoundError('_ssl')", "raise ImportError('libssl')"]
)
def test_a_python_without_ssl_has_all_but_https(tmp_path, ssl_module):
    (tmp_path / "_ssl.py").write_text(ssl_module)
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import speed_bump.command.main\n"
        "from speed_bump.experiment.program.metric import Metric, MetricError, Source\n"
        "try:\n"
        "    Source(Metric('https://localhost/metrics', 'jobs_total')).read()\n"
        "except MetricError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout == (
        "https://localhost/metrics can't be asked (this Python has no ssl module)\n"
    )


def test_a_histogram_has_a_count_a_sum_and_buckets(serve):
    url = serve(
        "# TYPE t_seconds histogram\n"
        't_seconds_bucket{le="0.1"} 3\nt_seconds_bucket{le="+Inf"} 4\n'
        "t_seconds_sum 1.5\nt_seconds_count 4\n"
    )
    for name in ("t_seconds", "t_seconds_count"):
        reading = read(url, name)
        (value,) = reading.series.values()
        assert (value.count, value.sum, value.buckets) == (4, 1.5, (3, 4))
        assert reading.bounds == (0.1, math.inf)
        assert reading.begin_ns < reading.time_ns < reading.end_ns


@pytest.mark.parametrize(
    "family, second",
    [
        ("t_seconds", 1.0),
        ("t_milliseconds", 1e-3),
        ("t_ms", 1e-3),
        ("t_microseconds", 1e-6),
        ("t_us", 1e-6),
        # Units are counted, but no time.
        ("t_bytes", 0.0),
    ],
)
def test_the_unit_of_time_of_a_histogram_is_the_end_of_its_name(
    serve, plan, family, second
):
    asked = itertools.count(1)

    def answer(it):
        n = next(asked)
        it.send(
            f"# TYPE {family} histogram\n"
            f'{family}_bucket{{le="20"}} {n}\n{family}_bucket{{le="+Inf"}} {n}\n'
            f"{family}_sum {15 * n}\n{family}_count {n}\n"
        )

    url = serve(answer)
    for name in (family, f"{family}_count", f"{family}_sum", f"{family}_bucket"):
        reading = read(url, name)
        (value,) = reading.series.values()
        assert reading.is_histogram
        assert value.sum == pytest.approx(15 * second * value.count)
        bounds = (20 * second, math.inf) if second else ()
        assert reading.bounds == pytest.approx(bounds)
        assert len(value.buckets) == len(bounds)
    meter = Meter(Source(Metric(url, family)), plan)
    meter.start()
    meter.begin_look()
    try:
        pace = until(meter.pace)
    finally:
        meter.close()
    # Slots become longer.
    assert pace.latency_ns == pytest.approx(15e9 * second)


def test_a_histogram_of_no_time_counts_work_and_that_is_said_once(serve, tmp_path):
    begin = time.monotonic()

    def answer(it):
        n = int(100 * (time.monotonic() - begin))
        it.send(
            "# TYPE n_bytes histogram\n"
            f'n_bytes_bucket{{le="9"}} {n}\nn_bytes_bucket{{le="+Inf"}} {n}\n'
            f"n_bytes_sum {5 * n}\nn_bytes_count {n}\n"
        )

    numbers = tmp_path / "numbers.json"
    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "10s", "--progress-metric",
        f"{serve(answer)}:n_bytes", "-o", str(tmp_path / "record"), "--json",
        str(numbers), "--", sys.executable, "-c", PROGRAM,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("n_bytes counts work alone") == 1
    assert json.loads(numbers.read_text())["mean_latency"] is None
    assert "latency: a request takes" not in done.stdout


def test_open_metrics_are_read(serve):
    text = (
        "# TYPE jobs counter\njobs_total 7.0\njobs_created 1.0\n"
        "# TYPE other gauge\nother 1.0\n# EOF\n"
    )
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    url = serve(lambda it: it.send(text, kind=kind))
    source = Source(Metric(url, "jobs_total"))
    # The second reading skips other metrics.
    assert [counted(source.read()) for _ in range(2)] == [7, 7]
    source.close()


def test_redirects_to_other_hosts_are_not_followed(serve):
    def answer(it):
        if it.path == "/metrics":
            it.send("", 307, Location="/elsewhere")
        elif it.path == "/elsewhere":
            it.send(FAMILY)
        else:
            it.send("", 302, Location="http://localhost:1/metrics")

    url = serve(answer)
    assert counted(read(url, "jobs_total")) == 115
    with pytest.raises(MetricError) as caught:
        read(url.replace("/metrics", "/away"), "jobs_total")
    assert "redirects to http://localhost:1, which is not followed" in str(caught.value)
    assert not caught.value.waits


@pytest.mark.parametrize(
    "location",
    [
        "http://127.0.0.1:99999/",
        "http://[bad/",
        "http://a..b/",
        "/m\u00e9trics",
    ],
)
def test_a_redirect_to_what_is_no_url_is_a_line(serve, location):
    url = serve(lambda it: it.send("", 302, Location=location))
    with pytest.raises(MetricError) as caught:
        read(url, "jobs_total")
    assert f"{url} redirects to {location!r}: " in str(caught.value)
    assert not caught.value.waits


def test_a_proxy_that_is_no_url_is_a_line(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://localhost:99999")
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(MetricError) as caught:
        read("http://192.0.2.7:8000/metrics", "jobs_total")
    assert "http://192.0.2.7:8000/metrics can't be asked (Port" in str(caught.value)
    assert not caught.value.waits


@pytest.mark.parametrize("bound", ["abc", "NaN"])
def test_a_bucket_without_a_bound_is_a_line(serve, bound):
    url = serve(
        "# TYPE t_seconds histogram\n"
        f't_seconds_bucket{{le="{bound}"}} 3\nt_seconds_bucket{{le="+Inf"}} 4\n'
        "t_seconds_sum 1.5\nt_seconds_count 4\n"
    )
    with pytest.raises(MetricError) as caught:
        read(url, "t_seconds")
    assert f'(le="{bound}" is not a number)' in str(caught.value)
    assert not caught.value.waits


def test_an_answer_that_does_not_end_is_given_up(serve):
    gone = threading.Event()

    def drip(it):
        it.send_response(200)
        it.send_header("Content-Length", "1000000")
        it.end_headers()
        # Each byte arrives in time, but the answer is never complete.
        while not gone.wait(0.01):
            it.wfile.write(b"#")

    url = serve(drip)
    try:
        with pytest.raises(MetricError) as caught:
            read(url, "jobs_total", timeout_s=0.5)
    finally:
        gone.set()
    assert "does not answer within 0.5 s" in str(caught.value)
    assert caught.value.waits


def test_a_reading_does_not_wait_for_an_acknowledgement(serve, monkeypatch):
    """Header and body are sent apart: the body waits for the acknowledgement."""
    source = Source(Metric(serve(FAMILY), "jobs_total"))
    at_once = metrics._acknowledge_at_once
    took = {True: [], False: []}
    try:
        for k in range(40):
            is_quick = k % 2 == 0
            monkeypatch.setattr(
                metrics, "_acknowledge_at_once", at_once if is_quick else lambda _: None
            )
            # For the second reading the kernel has forgotten the first one.
            for _ in range(2):
                reading = source.read()
            took[is_quick].append(reading.end_ns - reading.begin_ns)
    finally:
        source.close()
    quick, slow = (sorted(took[is_quick])[5] for is_quick in (True, False))
    assert quick < slow / 2


def test_an_answer_that_is_too_large_is_refused(serve, monkeypatch):
    monkeypatch.setattr(metrics, "MAX_BYTES", 1 << 20)
    url = serve(FAMILY + "# " + "x" * (1 << 20) + "\n")
    with pytest.raises(MetricError) as caught:
        read(url, "jobs_total")
    assert "more than 1 MB" in str(caught.value)
    assert not caught.value.waits


def test_a_proxy_is_not_asked_for_this_machine(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert counted(read(serve(FAMILY), "jobs_total")) == 115
    # For other names it is.
    asked = []

    def proxy(it):
        asked.append(it.path)
        it.send(FAMILY)

    monkeypatch.setenv("http_proxy", serve(proxy).removesuffix("/metrics"))
    assert counted(read("http://192.0.2.7:8000/metrics", "jobs_total")) == 115
    assert asked == ["http://192.0.2.7:8000/metrics"]


def test_what_is_no_exposition_is_said(serve):
    url = serve("<html>{</html>\n")
    with pytest.raises(MetricError) as caught:
        read(url, "jobs_total")
    assert "no metrics in the format of Prometheus" in str(caught.value)
    url = serve(lambda it: it.send("no", 404))
    with pytest.raises(MetricError) as caught:
        read(url, "jobs_total")
    assert "answers 404" in str(caught.value)
    assert not caught.value.waits


# --------------------------------------------------------------------------- slots


SLOT = np.dtype([(n, "<u8") for n in ("number", "end", "units", "cpu", "wait")] +
                [("tid", "<u4"), ("complete", "<u4"), ("waited", "<u8")])  # fmt: skip


def read_slots(plan, count):
    """Wait for a number of slots."""
    found = []

    def more():
        found.extend(np.frombuffer(plan.read().slots, SLOT))
        return len(found) >= count

    until(more)
    return found


class Counter:
    """The counter of a server: advances by ``step`` at each reading."""

    def __init__(self, step=3):
        self.value, self.step, self.asked = 1000, step, 0

    def __call__(self, it):
        self.value += self.step
        self.asked += 1
        it.send(f"# TYPE n_total counter\nn_total {self.value}\n")


def test_a_restart_of_the_server_costs_one_slot(serve, plan):
    counter = Counter()
    meter = Meter(Source(Metric(serve(counter), "n_total")), plan)
    meter.start()
    meter.measure(5_000_000)
    try:
        before = read_slots(plan, 5)
        counter.value = 0
        after = read_slots(plan, 10)
    finally:
        meter.close()
    slots = [*before, *after]
    lost = [s for s in slots if not s["complete"]]
    assert len(lost) == 1
    for a, b in itertools.pairwise(slots):
        assert b["units"] - a["units"] == (3 if b["complete"] else 0)
    # For all other slots, the uncertainty of the end is known.
    known = {int(s["number"]) for s in slots if s["complete"]}
    assert known <= set(meter.slots)
    assert int(lost[0]["number"]) not in meter.slots
    assert all(meter.slots[n].uncertain_ns > 0 for n in known)
    assert not meter.refused


def test_a_metric_that_goes_down_all_the_time_is_refused(serve, plan):
    def of_one_of_two(it, asked=[0]):  # noqa: B006
        asked[0] += 1
        value = 5000 + asked[0] if asked[0] % 2 else asked[0]
        it.send(f"# TYPE n_total counter\nn_total {value}\n")

    meter = Meter(Source(Metric(serve(of_one_of_two), "n_total")), plan)
    meter.start()
    meter.measure(1_000_000)
    try:
        until(lambda: meter.refused)
    finally:
        meter.close()
    assert "one process of several answers each time" in meter.refused


def test_what_ends_the_thread_that_reads_is_said(serve, plan):
    """Without this no slot would end, and the run would last for its whole budget."""

    class Broken(Source):
        def read(self):
            raise ZeroDivisionError("of\nits own")

    meter = Meter(Broken(Metric(serve(Counter()), "n_total")), plan)
    meter.start()
    try:
        until(lambda: meter.refused, 20)
    finally:
        meter.close()
    assert meter.refused == "n_total can't be read (of its own)"


def test_slots_are_of_the_time_that_was_asked_and_end_with_a_reading(serve, plan):
    counter = Counter()
    meter = Meter(Source(Metric(serve(counter), "n_total")), plan)
    meter.start()
    # Longer than readings take on a busy machine.
    meter.measure(200_000_000)
    try:
        slots = read_slots(plan, 12)[2:]
    finally:
        meter.close()
    lengths = np.diff([int(s["end"]) for s in slots])
    # Not shorter on average; on a busy machine some are longer.
    assert lengths.mean() > 190_000_000
    assert {int(n) for n in np.diff([int(s["units"]) for s in slots])} == {3}
    assert all(s["tid"] == 0 for s in slots)


def test_the_pace_of_a_counter_is_seen(serve, plan):
    """A pace of a counter that advances at each 5th reading, by 50."""

    class Seldom(Counter):
        def __call__(self, it):
            self.step = 0 if self.asked % 5 else 50
            super().__call__(it)

    meter = Meter(Source(Metric(serve(Seldom()), "n_total")), plan)
    meter.start()
    meter.begin_look()
    try:
        until(lambda: (seen := meter.pace()) and seen.changes >= 10)
        pace = meter.pace()
    finally:
        meter.close()
    assert 0.15 < pace.changes / pace.readings < 0.3
    assert pace.late_ns == pace.update_ns == pytest.approx(50 * pace.unit_ns, rel=0.01)


MS = 1_000_000


def pace(unit_ms, update_ms=None, reading_ms=1, latency_ms=0, changed=0.5):
    update_ms = unit_ms if update_ms is None else update_ms
    return Pace(
        unit_ms * MS, update_ms * MS, reading_ms * MS, latency_ms * MS,
        100, int(100 * changed),
    )  # fmt: skip


@pytest.mark.parametrize(
    "seen, least_ms, most_ms",
    [
        # Many units, updated immediately.
        (pace(0.1, 10, changed=1.0), 50, 50),
        # Enough units per slot that one more or less has little effect.
        (pace(20), 320, 320),
        # A metric that is updated seldom, and in larger steps.
        (pace(1, 100), 500, 500),
        # A slow endpoint: the time of counting is known to half of a reading.
        (pace(1, reading_ms=30), 600, 600),
        # At least one request per slot.
        (pace(10, latency_ms=250), 500, 500),
        # If the budget is too short, there are fewer of these, but enough.
        (pace(100), 600, 600),
        (pace(1, reading_ms=200), 1000, 1000),
    ],
)
def test_slots_are_as_long_as_the_metric_needs(seen, least_ms, most_ms):
    assert least_ms * MS <= slot_of(seen, 90.0, "x") <= most_ms * MS


@pytest.mark.parametrize(
    "seen, why, budget",
    [
        (pace(1, 5000), "it is updated once in 5.00 s", "600s"),
        (pace(2000), "a unit of it takes 2.00 s", "320s"),
        (pace(1, reading_ms=2000), "reading it takes 2.00 s", "400s"),
    ],
)
def test_a_metric_that_is_too_slow_for_the_budget_is_refused(seen, why, budget):
    with pytest.raises(MetricError) as caught:
        slot_of(seen, 60.0, "x_total")
    assert f"x_total: {why}" in str(caught.value)
    assert f"give --budget {budget} or more" in str(caught.value)
    slot_of(seen, float(budget[:-1]), "x_total")


def test_a_counter_that_is_updated_rarely_is_refused_by_rank(serve, tmp_path):
    begin = time.monotonic()

    def now_and_then(it):
        steps = int((time.monotonic() - begin) / 2)
        it.send(f"# TYPE n_total counter\nn_total {1000 * steps}\n")

    url = serve(now_and_then)
    done = speed_bump(
        "rank", "-t", "__main__:f", "--budget", "30s", "--progress-metric",
        f"{url}:n_total", "-o", str(tmp_path / "record"), "--",
        sys.executable, "-c", PROGRAM,
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(r"n_total: it is updated once in \d+(\.\d+)? s", done.stderr)
    assert "or a metric that is updated more often" in done.stderr


# ------------------------------------------------------------------- estimates

UNIT_NS, SLOT_NS, DOSE = 10 * MS, 160 * MS, 0.3


def timed(seed, truth, latency_ns=5 * MS):
    """A server that finishes units at random times; "f" has this criticality."""
    draw = np.random.default_rng(seed)
    delay = ((Delay(int(DOSE * UNIT_NS)),),)
    arms = (Arm(("m:f",), delay), Arm(("m:g",), delay), SHAM)
    chances = (chance_of_one(3),) * 3
    rest = Block(
        "census", (), np.zeros(20, np.uint64), np.zeros(20, np.uint8), (), (1,), True, ()
    )
    blocks, which = [], [np.full(64, -1)]
    for _ in range(4):
        masks, _ = one_at_a_time(draw, 60, chances, HOLDS)
        levels = np.zeros(60, np.uint8)
        blocks += [
            Block("single", arms, masks, levels, chances, HOLDS, True, (DOSE,)), rest
        ]  # fmt: skip
        which += [np.full(60, len(blocks) - 2), np.full(20, len(blocks) - 1)]
    mask = np.concatenate([np.zeros(64, np.uint64), *(b.masks for b in blocks)])
    block = np.concatenate(which)
    n = len(mask)
    on = np.stack([mask & np.uint64(1), mask & np.uint64(2)], 1) > 0
    time_ns = SLOT_NS * draw.uniform(0.97, 1.03, n)
    units = draw.poisson(time_ns / (UNIT_NS * (1 + truth * DOSE * on[:, 0])))
    delivered = units[:, None] * DOSE * UNIT_NS * on
    good = np.ones(n, bool)
    even = SLOT_NS // UNIT_NS
    times, counts = by_units(time_ns, units, mask == 0, good, even)
    unknown = np.full(n, math.nan)
    metered = Metered(
        np.ones(n),
        units.astype(float),
        units * (latency_ns + truth * DOSE * UNIT_NS * on[:, 0]),
        units[:, None].astype(float),
        np.array([math.inf]),
    )
    slots = Slots(
        np.arange(n), block, np.ones(n, np.int64), np.cumsum(time_ns).astype(np.int64),
        times, counts, mask, np.zeros(n, np.uint8), good, unknown, unknown,
        np.stack([units, units], 1).astype(float), delivered,
    )  # fmt: skip
    header = {"metric": {"name": "x"}}
    return Record(header, ("m:f", "m:g"), slots, blocks, UNIT_NS, even, metered=metered)


@pytest.mark.parametrize("truth", [0.0, 0.5, 1.0])
def test_what_chance_does_to_the_count_of_a_slot_is_no_effect(truth):
    """Units per slot are as random as possible, and delays are proportional to units."""
    found = []
    for seed in range(24):
        fitted = effects(table(timed(seed, truth)))
        (effect,), (other,) = (fitted.of((name,)) for name in ("m:f", "m:g"))
        found.append((effect.c - truth, other.c))
    off = np.array(found)
    error = off.std(axis=0) / math.sqrt(len(off))
    assert (np.abs(off.mean(axis=0)) < 3 * error).all(), (off.mean(axis=0), error)


def test_what_a_delay_adds_to_the_mean_latency_is_found():
    off = []
    for seed in range(12):
        found = mean_latency(timed(seed, 1.0))
        assert found.mean_ns == pytest.approx(5 * MS, rel=0.01)
        off.append((found.added["m:f"].value - 1, found.added["m:g"].value))
        assert found.added["m:f"].low < 1.02 and found.added["m:g"].high > -0.02
    assert (np.abs(np.mean(off, axis=0)) < 0.03).all(), off


def test_latencies_of_many_slots_are_not_told():
    found = mean_latency(timed(1, 1.0, latency_ns=2000 * MS))
    assert not found.added
    assert "which is 12 slots" in found.refusal
