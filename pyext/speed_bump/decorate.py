# SPDX-License-Identifier: MIT
"""``slow()`` as a decorator, for every kind of function."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, TypeVar

from speed_bump._core import Slow

F = TypeVar("F", bound=Callable[..., Any])


def decorate(context: Slow, function: F) -> F:
    """Let ``function`` run within ``context``, from its start to its end."""
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator(context, function)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(context, function)
    elif inspect.iscoroutinefunction(function):
        wrapper = _coroutine(context, function)
    else:
        wrapper = _plain(context, function)
    return functools.wraps(function)(wrapper)  # type: ignore[return-value]


def _plain(context: Slow, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    def at_once(*args: Any, **kwargs: Any) -> Any:
        return context._run(function, *args, **kwargs)

    # From 3.14 on, a signal may be handled before a with statement has begun its block.
    return wrapper if sys.version_info < (3, 14) else at_once


def _coroutine(context: Slow, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            return await function(*args, **kwargs)

    return wrapper


def _generator(context: Slow, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with context:
            return (yield from function(*args, **kwargs))

    return wrapper


def _async_generator(context: Slow, function: Callable[..., Any]) -> Callable[..., Any]:
    # Does what "yield from" would do, which asynchronous generators don't have.
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        with context:
            inner = function(*args, **kwargs)
            try:
                item = await inner.__anext__()
                while True:
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        item = await inner.athrow(error)
                    else:
                        item = await inner.asend(sent)
            except StopAsyncIteration:
                pass
            finally:
                await inner.aclose()

    return wrapper
