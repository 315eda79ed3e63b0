# SPDX-License-Identifier: MIT
"""A counter or a histogram that a server exports for Prometheus, read over HTTP.

``prometheus-client`` parses the text. It is needed only here, as the extra
``speed-bump[metrics]``.
"""

from __future__ import annotations

import difflib
import http.client
import io
import ipaddress
import math
import re
import socket
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from speed_bump.config import ConfigError

if TYPE_CHECKING:
    from prometheus_client import Metric as Family
    from prometheus_client.samples import Sample

# A Python without OpenSSL, or compiled for another version than is here, has none of
# them, and no https.
SSL_ERRORS: tuple[type[OSError], ...] = ()
CERTIFICATE_ERRORS: tuple[type[OSError], ...] = ()
with suppress(ImportError):
    import ssl

    SSL_ERRORS, CERTIFICATE_ERRORS = (ssl.SSLError,), (ssl.SSLCertVerificationError,)

OPTION = "--progress-metric"
EXAMPLE = 'http://localhost:8000/metrics:requests_total{method="POST"}'
# Limits for the total time and the size of an answer.
TIMEOUT_S = 5.0
MAX_BYTES = 16 << 20
MAX_REDIRECTS = 3
REDIRECTS = (301, 302, 303, 307, 308)
# Plain text is parsed faster; Prometheus clients request both.
ACCEPT = "text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0;q=0.5"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABELS = re.compile(r'\s*(?:[a-zA-Z_]\w*\s*=\s*"(?:[^"\\]|\\.)*"\s*(?:,\s*|$))*')
# The series of a histogram, and of a counter.
SUFFIXES = ("_count", "_sum", "_bucket", "_total")
# The unit in which a histogram sums up time, by the end of its name: seconds.
TIMES = {
    "_seconds": 1.0,
    "_milliseconds": 1e-3,
    "_ms": 1e-3,
    "_microseconds": 1e-6,
    "_us": 1e-6,
}
# At most this many existing names and labels are listed.
MAX_NEAREST = 3

Labels = tuple[tuple[str, str], ...]


class MetricError(Exception):
    """The metric can't be read; the message is one line.

    ``waits``: a later attempt may succeed: the server is not up, or has done no work yet.
    ``has_answer``: the server is up. ``absent``: it does not have the metric, or no
    series of it with these labels.
    """

    def __init__(
        self,
        text: str,
        *,
        waits: bool = False,
        has_answer: bool = True,
        absent: bool = False,
    ) -> None:
        super().__init__(text)
        self.waits = waits
        self.has_answer = has_answer
        self.absent = absent


@dataclass(frozen=True)
class Metric:
    """The metric: the sum of all series with this name and these labels."""

    url: str
    name: str
    labels: Labels = ()

    @property
    def series(self) -> str:
        """The name with the labels, for display."""
        return self.name + labels_text(self.labels)

    @property
    def text(self) -> str:
        """The unit of work, for display."""
        return f"count of {self.series} at {self.url}"


def labels_text(labels: Iterable[tuple[str, str]]) -> str:
    """The labels as written after a name; "" for none."""
    parts = [f'{key}="{value}"' for key, value in labels]
    return "{" + ",".join(parts) + "}" if parts else ""


def parse(text: str) -> Metric:
    """Parse URL:NAME{LABELS}.

    Raises:
        ConfigError: it is invalid, or prometheus-client is not installed
    """
    try:
        from prometheus_client import parser
    except ImportError:
        raise ConfigError(
            f"{OPTION}: prometheus-client is not installed: "
            "pip install 'speed-bump[metrics]'"
        ) from None
    place, brace, inside = text.partition("{")
    wrong = f"{OPTION}: {text!r} is not URL:NAME such as {EXAMPLE}"
    if brace and not inside.endswith("}"):
        raise ConfigError(f"{OPTION}: {text!r}: the labels do not end with }}")
    url, name = _split(place, wrong)
    if not brace:
        return Metric(url, name)
    if not LABELS.fullmatch(inside[:-1]):
        raise ConfigError(
            f"{OPTION}: {{{inside} is not a list of labels such as "
            '{method="POST",code="200"}'
        )
    # By the same rules as the server's text.
    (family,) = parser.text_string_to_metric_families(f"x{{{inside} 0\n")
    return Metric(url, name, tuple(sorted(family.samples[0].labels.items())))


def _split(place: str, wrong: str) -> tuple[str, str]:
    """The URL and the name, which may contain colons, as in vllm:request_success."""
    match = re.fullmatch(
        r"(https?)://(\[[0-9a-fA-F:.]+\]|[^][/:@\s]+)(:[0-9]+)?(/[^:\s]*)?:(.+)", place
    )
    if not match or not NAME.fullmatch(match[5]):
        if "@" in place.partition("://")[2].partition("/")[0]:
            raise ConfigError(f"{OPTION}: a URL with a user or a password is not read")
        raise ConfigError(wrong)
    port = match[3] or ""
    if port and not 0 < int(port[1:]) < 1 << 16:
        raise ConfigError(f"{OPTION}: there is no port {port[1:]}")
    if match[2].startswith("["):
        try:
            ipaddress.IPv6Address(match[2][1:-1])
        except ValueError:
            raise ConfigError(
                f"{OPTION}: there is no host {match[2]}: it is not an IPv6 address"
            ) from None
    path = match[4] if match[4] and match[4] != "/" else "/metrics"
    url = f"{match[1]}://{match[2]}{port}{path}"
    why = _why_no_url(url)
    if why:
        raise ConfigError(f"{OPTION}: {url}: {why}")
    return url, match[5]


def _why_no_url(url: str) -> str:
    """Why the URL is refused before a connection is made; "" if it is not."""
    try:
        parts = urllib.parse.urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return str(error)
    try:
        # As socket.getaddrinfo() does, but without an OSError.
        host.encode("idna")
    except UnicodeError:
        return f"there is no host {host}: a part of its name is empty or too long"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    if not re.fullmatch("[!-~]*", path):
        return f"write {urllib.parse.quote(path, safe='/?&=%:+,;@')} for the path"
    return "" if host else "there is no host"


# ---------------------------------------------------------------------- reading


@dataclass(frozen=True)
class Value:
    """One series: a count and, for a histogram, the sum and the counts of the buckets.

    The sum is in seconds, and 0 for a histogram of something other than time.
    """

    count: float
    sum: float = 0.0
    buckets: tuple[float, ...] = ()

    def went_down(self, before: Value) -> bool:
        """Whether it was reset since."""
        return self.count < before.count


@dataclass(frozen=True)
class Reading:
    """The result of a reading: series by their labels.

    Times are CLOCK_MONOTONIC, ns. The server read its counters at some time between
    ``begin_ns`` and ``end_ns``. ``bounds`` of the buckets are seconds; there are none if
    the metric does not count time.
    """

    begin_ns: int
    end_ns: int
    series: Mapping[Labels, Value]
    bounds: tuple[float, ...] = ()
    is_histogram: bool = False

    @property
    def time_ns(self) -> int:
        """The time in the middle of these."""
        return (self.begin_ns + self.end_ns) // 2

    @property
    def uncertain_ns(self) -> int:
        """The uncertainty of that time."""
        return (self.end_ns - self.begin_ns + 1) // 2


class Source:
    """A source of a metric, which keeps a connection. For use by one thread at a time."""

    def __init__(self, metric: Metric, timeout_s: float = TIMEOUT_S) -> None:
        self.metric = metric
        self._timeout_s = timeout_s
        self._url = metric.url
        self._connection: _Connection | None = None
        # Once the name of the family is known, only lines with that name are parsed.
        self._family = ""

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None

    def read(self) -> Reading:
        """Read the metric now.

        Raises:
            MetricError: it can't be read
        """
        begin_ns, end_ns, data, is_open = self._get()
        try:
            return self._found(begin_ns, end_ns, data, is_open)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise MetricError(
                f"{self._url}: no metrics in the format of Prometheus"
                + (f" ({error})" if str(error) else "")
            ) from None

    def _found(self, begin_ns: int, end_ns: int, data: bytes, is_open: bool) -> Reading:
        if self._family:
            word = self._family.encode()
            data = b"\n".join(line for line in data.split(b"\n") if word in line)
            data += b"\n# EOF\n" if is_open else b"\n"
        families = list(_families(data.decode("utf-8", "replace"), is_open))
        family = _named(families, self.metric.name)
        if family is None:
            raise self._no_such(families)
        is_histogram = family.type == "histogram"
        second = time_unit(family.name) if is_histogram else 0.0
        found = _values(family, self.metric, second)
        self._family = family.name
        if not found:
            raise self._no_such_labels(family)
        bounds = tuple(second * b for b in sorted(_bounds(family))) if second else ()
        return Reading(begin_ns, end_ns, found, bounds, is_histogram=is_histogram)

    def _no_such(self, families: Sequence[Family]) -> MetricError:
        names = [_told_name(f) for f in families if f.type in ("counter", "histogram")]
        text = f"{self._url} has no metric {self.metric.name}"
        if not families:
            return MetricError(f"{text}: it has none at all", waits=True, absent=True)
        near = nearest(self.metric.name, names)
        if near:
            text += f"; nearest of its counters and histograms: {', '.join(near)}"
        else:
            text += ", and no counter and no histogram"
        return MetricError(text, waits=True, absent=True)

    def _no_such_labels(self, family: Family) -> MetricError:
        known = sorted(
            {
                labels_text(sorted(_labels(s.labels).items()))
                for s in family.samples
                if _counts(family, s)
            }
        )
        text = f"{self._url}: {self.metric.name} has no series"
        if not known:
            return MetricError(f"{text} yet", waits=True)
        if any(_counts(family, s) and _is_of(self.metric, s) for s in family.samples):
            return MetricError(
                f"{self._url}: {self.metric.series} is not a number", waits=True
            )
        wanted = labels_text(self.metric.labels)
        near = nearest(wanted, known)
        return MetricError(
            f"{text} with {wanted}; it has "
            + ", ".join(labels or "one without labels" for labels in near)
            + (f" and {len(known) - len(near)} more" if len(known) > len(near) else ""),
            waits=True,
            absent=True,
        )

    # ------------------------------------------------------------------- HTTP

    def _get(self) -> tuple[int, int, bytes, bool]:
        """The times of request and answer, its text, and whether that is OpenMetrics."""
        deadline = time.monotonic() + self._timeout_s
        for _ in range(MAX_REDIRECTS + 1):
            # A server may have closed the connection that was kept: try a new one.
            is_kept = self._connection is not None
            try:
                answer = self._ask(deadline)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if is_kept and not isinstance(error, TimeoutError):
                    continue
                raise MetricError(
                    self._why(error),
                    # The next attempt would fail in the same way.
                    waits=not isinstance(error, CERTIFICATE_ERRORS),
                    has_answer=False,
                ) from None
            except ValueError as error:
                # Such as a proxy that is not a URL.
                self.close()
                raise MetricError(f"{self._url} can't be asked ({error})") from None
            begin_ns, end_ns, response, data = answer
            if response.status in REDIRECTS:
                self._follow(response)
                continue
            if response.status != http.client.OK:
                raise MetricError(
                    f"{self._url} answers {response.status} {response.reason}".rstrip(),
                    # The server may be starting.
                    waits=response.status >= 500,
                    has_answer=response.status < 500,
                )
            kind = response.headers.get_content_type()
            return begin_ns, end_ns, data, kind == "application/openmetrics-text"
        raise MetricError(f"{self._url}: too many redirects", waits=False)

    def _ask(self, deadline: float) -> tuple[int, int, http.client.HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = _Connection(self._url)
        begin_ns = time.monotonic_ns()
        response, data = self._connection.get(deadline)
        end_ns = time.monotonic_ns()
        if len(data) > MAX_BYTES:
            self.close()
            raise MetricError(
                f"{self._url} answers with more than {MAX_BYTES >> 20} MB, which is "
                "too much to be read again and again"
            )
        if response.will_close:
            self.close()
        return begin_ns, end_ns, response, data

    def _follow(self, response: http.client.HTTPResponse) -> None:
        here = urllib.parse.urlsplit(self._url)
        location = response.headers.get("Location", "")
        try:
            url = urllib.parse.urljoin(self._url, location)
            why = _why_no_url(url)
        except ValueError as error:
            why = str(error)
        if why:
            raise MetricError(f"{self._url} redirects to {location!r}: {why}")
        there = urllib.parse.urlsplit(url)
        if there.hostname != here.hostname or there.scheme not in (here.scheme, "https"):
            raise MetricError(
                f"{self._url} redirects to {there.scheme}://{there.netloc}, which is not "
                "followed: give that URL if it is the right one"
            )
        self.close()
        self._url = url

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"{self._url} does not answer within {self._timeout_s:g} s"
        if isinstance(error, SSL_ERRORS):
            why = getattr(error, "verify_message", "") or getattr(error, "reason", error)
            return f"{self._url}: {why}"
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return f"{self._url} does not answer ({text})"


class _Connection:
    """A connection to the host of a URL, or to the proxy for it."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname or ""
        proxy = _proxy(parts.scheme, host)
        self._path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Accept": ACCEPT, "User-Agent": "speed-bump"}
        to = urllib.parse.urlsplit(proxy or url)
        is_secure = parts.scheme == "https"
        self._made: http.client.HTTPConnection
        if is_secure and not SSL_ERRORS:
            raise ValueError("this Python has no ssl module")
        if is_secure:
            self._made = http.client.HTTPSConnection(to.hostname or "", to.port)
        else:
            self._made = http.client.HTTPConnection(to.hostname or "", to.port)
        if proxy and is_secure:
            self._made.set_tunnel(host, parts.port)
        elif proxy:
            self._path = url

    def close(self) -> None:
        self._made.close()

    def get(self, deadline: float) -> tuple[http.client.HTTPResponse, bytes]:
        made = self._made
        if made.sock is None:
            made.timeout = _left(deadline)
            made.connect()
        made.sock.settimeout(_left(deadline))

        def respond(sock: Any, *more: Any, **options: Any) -> http.client.HTTPResponse:
            return http.client.HTTPResponse(_Timed(sock, deadline), *more, **options)  # type: ignore[arg-type]

        made.response_class = respond  # type: ignore[assignment]
        made.request("GET", self._path, headers=self._headers)
        response = made.getresponse()
        data = response.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES:
            response.read()
        return response, data


class _Timed:
    """A socket with a deadline for all of its reads together, not for each of them."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._socket = sock
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Raw(self._socket, self._deadline))


class _Raw(io.RawIOBase):
    def __init__(self, sock: socket.socket, deadline: float) -> None:
        super().__init__()
        self._socket = sock
        # Keeps the socket open: http.client closes it before the last answer is read.
        self._file = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._socket.settimeout(_left(self._deadline))
        _acknowledge_at_once(self._socket)
        return self._file.readinto(buffer)


def _acknowledge_at_once(sock: socket.socket) -> None:
    """Make the kernel acknowledge the next data at once; the setting does not last.

    A server that sends the head and the body of an answer separately sends the body only
    when the head is acknowledged. On a kept connection the kernel delays that by 40 ms.
    """
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _proxy(scheme: str, host: str) -> str:
    """The proxy that the environment names; "" if none is used, as for this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return ""
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_loopback:
            return ""
    if urllib.request.proxy_bypass(host):
        return ""
    proxy = urllib.request.getproxies().get(scheme, "")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


# ---------------------------------------------------------------------- parsing


def _families(text: str, is_open: bool) -> Iterable[Family]:
    if is_open:
        from prometheus_client.openmetrics import parser as open_metrics

        parse_text: Any = open_metrics.text_string_to_metric_families
        return list(parse_text(text))
    from prometheus_client import parser

    found: Iterable[Family] = parser.text_string_to_metric_families(text)
    return found


def _named(families: Sequence[Family], name: str) -> Family | None:
    """The family of this name; if there are several, one that counts.

    Raises:
        MetricError: it does not count
    """
    stems = {name, *(name.removesuffix(end) for end in SUFFIXES)}
    found = [f for f in families if f.name in stems]
    # A family of exactly this name takes precedence, such as a gauge beside a counter.
    exact = [f for f in found if name in (f.name, f"{f.name}_total")]
    found = exact or found
    if not found:
        return None
    counting = [f for f in found if f.type in ("counter", "histogram")]
    if counting:
        return counting[0]
    family = found[0]
    if family.type in ("unknown", "untyped"):
        if name.endswith(("_total", "_count")):
            return family
        raise MetricError(
            f"{name} has no type: one whose name ends in _total or _count is taken for a "
            "counter"
        )
    article = "an" if family.type[0] in "aeiou" else "a"
    raise MetricError(
        f"{name} is {article} {family.type}; a counter or a histogram counts work"
    )


def _told_name(family: Family) -> str:
    """The name as a server writes it."""
    if family.type == "counter" and any(
        s.name == f"{family.name}_total" for s in family.samples
    ):
        return f"{family.name}_total"
    return str(family.name)


def _counts(family: Family, sample: Sample) -> bool:
    """Whether the value of the sample counts work."""
    if family.type == "histogram":
        return bool(sample.name == f"{family.name}_count")
    if family.type == "counter":
        return bool(sample.name == f"{family.name}_total")
    return bool(sample.name == family.name)


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if key != "le"}


def _is_of(metric: Metric, sample: Sample) -> bool:
    labels = _labels(sample.labels)
    return all(labels.get(key) == value for key, value in metric.labels)


def _bound(sample: Sample) -> float:
    text = sample.labels["le"]
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if math.isnan(found):
        raise ValueError(f'le="{text}" is not a number')
    return found


def _bounds(family: Family) -> set[float]:
    return {
        _bound(s)
        for s in family.samples
        if s.name == f"{family.name}_bucket" and "le" in s.labels
    }


def time_unit(family: str) -> float:
    """The unit of a histogram's sum, by its name, in s; 0: not a time, or unknown."""
    return next((TIMES[end] for end in TIMES if family.endswith(end)), 0.0)


def _values(family: Family, metric: Metric, second: float) -> dict[Labels, Value]:
    """The requested series. ``second``: the unit of the sum, in s; 0: it is no time."""
    counts: dict[Labels, float] = {}
    sums: dict[Labels, float] = {}
    buckets: dict[Labels, dict[float, float]] = {}
    for sample in family.samples:
        labels = _labels(sample.labels)
        if not _is_of(metric, sample):
            continue
        key = tuple(sorted(labels.items()))
        if _counts(family, sample):
            if math.isfinite(sample.value):
                counts[key] = counts.get(key, 0.0) + sample.value
        elif second and sample.name == f"{family.name}_sum":
            sums[key] = second * sample.value
        elif second and sample.name == f"{family.name}_bucket" and "le" in sample.labels:
            buckets.setdefault(key, {})[_bound(sample)] = sample.value
    return {
        key: Value(
            count,
            sums.get(key, 0.0),
            tuple(n for _, n in sorted(buckets.get(key, {}).items())),
        )
        for key, count in counts.items()
    }


def nearest(text: str, known: Sequence[str]) -> list[str]:
    """The most similar of the known texts, the best first."""
    found = difflib.get_close_matches(text, known, MAX_NEAREST, 0.0)
    return found or list(known[:MAX_NEAREST])
