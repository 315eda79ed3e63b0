# SPDX-License-Identifier: MIT
"""The units of work of frameworks: the only table of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from speed_bump.config import matches


@dataclass(frozen=True)
class Framework:
    """A framework, and how it is recognised.

    Args:
        name: for display
        what: a unit of work, for display
        unit: functions each call of which is a unit; the first that is called is used
        sign: functions that are called before the first unit, if units will follow
    """

    name: str
    what: str
    unit: tuple[str, ...]
    sign: tuple[str, ...] = ()

    @property
    def serves(self) -> bool:
        """Whether its units come from outside."""
        return self.what in ("a request", "a task")


# The first one at work is used: a framework that drives others comes before them.
FRAMEWORKS = (
    Framework(
        "vLLM",
        "a step of the engine",
        (
            "vllm.v1.engine.core:EngineCore.step_with_batch_queue",
            "vllm.v1.engine.core:EngineCore.step",
        ),
        ("vllm.v1.engine.core:EngineCore.__init__",),
    ),
    Framework(
        "SGLang",
        "a step of the engine",
        ("sglang.srt.managers.scheduler:Scheduler.run_batch",),
        ("sglang.srt.managers.scheduler:Scheduler.__init__",),
    ),
    Framework(
        "Lightning",
        "a batch of training",
        (
            "lightning.pytorch.loops.training_epoch_loop:_TrainingEpochLoop.advance",
            "pytorch_lightning.loops.training_epoch_loop:_TrainingEpochLoop.advance",
        ),
        ("*lightning*.trainer.trainer:Trainer.__init__",),
    ),
    Framework(
        "Hugging Face Trainer",
        "a step of training",
        ("transformers.trainer:Trainer.training_step",),
        ("transformers.trainer:Trainer.__init__",),
    ),
    Framework(
        "Accelerate",
        "a step of the optimizer",
        ("accelerate.optimizer:AcceleratedOptimizer.step",),
        ("accelerate.optimizer:AcceleratedOptimizer.__init__",),
    ),
    Framework(
        "Ray",
        "a task",
        # Counted in the process that executes it, including actors with several methods.
        ("ray._private.worker:Worker.record_task_log_start",),
        ("ray._private.worker:init",),
    ),
    Framework(
        "torch",
        "a step of the optimizer",
        (
            # Wraps the step of every class, including those of the program.
            "torch.optim.optimizer:Optimizer.profile_hook_step.<locals>.wrapper",
            "torch.optim.*:*.step",
        ),
        ("torch.optim.optimizer:Optimizer.__init__",),
    ),
    Framework(
        "Flask",
        "a request",
        ("flask.app:Flask.wsgi_app",),
        ("flask.app:Flask.__init__",),
    ),
    Framework(
        "Django",
        "a request",
        (
            "django.core.handlers.base:BaseHandler.get_response",
            "django.core.handlers.base:BaseHandler.get_response_async",
        ),
        ("django.core.handlers.base:BaseHandler.load_middleware",),
    ),
    Framework(
        "uvicorn",
        "a request",
        ("uvicorn.protocols.http.*:RequestResponseCycle.run_asgi",),
        ("uvicorn.server:Server.__init__",),
    ),
    Framework(
        "hypercorn",
        "a request",
        ("hypercorn.protocol.http_stream:HTTPStream._send_closed",),
        ("hypercorn.*:worker_serve", "hypercorn.asyncio.run:*"),
    ),
    Framework(
        "gunicorn",
        "a request",
        (
            "gunicorn.workers.sync:SyncWorker.handle_request",
            "gunicorn.workers.gthread:ThreadWorker.handle_request",
            "gunicorn.workers.base_async:AsyncWorker.handle_request",
        ),
        ("gunicorn.arbiter:Arbiter.__init__",),
    ),
    Framework(
        "aiohttp",
        "a request",
        ("aiohttp.web_protocol:RequestHandler._handle_request",),
        ("aiohttp.web_server:Server.__init__",),
    ),
    Framework(
        "Celery",
        "a task",
        ("celery.app.trace:build_tracer.<locals>.trace_task",),
        ("celery.apps.worker:Worker.on_start",),
    ),
    Framework("pytest", "a test", ("_pytest.runner:runtestprotocol",)),
)

# Calls that must be seen before a function is the unit.
MIN_CALLS = 2


@dataclass(frozen=True)
class Known:
    """A framework that is at work, and the function that counts its units."""

    framework: Framework
    function: str

    @property
    def why(self) -> str:
        return f"{self.framework.what}, as {self.framework.name} is at work"


def known(calls: Mapping[str, int]) -> Known | None:
    """The framework whose units are called; ``calls`` is by function."""
    for framework in FRAMEWORKS:
        for pattern in framework.unit:
            found = [n for n in _named(pattern, calls) if calls[n] >= MIN_CALLS]
            if found:
                return Known(framework, max(found, key=lambda name: (calls[name], name)))
    return None


def pending(calls: Mapping[str, int]) -> Framework | None:
    """The framework that has started and has no unit yet."""
    for framework in FRAMEWORKS:
        if any(_named(pattern, calls) for pattern in framework.sign):
            return framework
    return None


def _named(pattern: str, calls: Mapping[str, int]) -> list[str]:
    if not set("*?[") & set(pattern):
        return [pattern] if pattern in calls else []
    start = pattern.partition("*")[0]
    return [n for n in calls if n.startswith(start) and matches(pattern, n)]
