# SPDX-License-Identifier: MIT
"""``slow()`` as a decorator, for every kind of function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def decorate(context: AbstractContextManager[Any], function: F) -> F:
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


def _plain(
    context: AbstractContextManager[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            return function(*args, **kwargs)

    return wrapper


def _coroutine(
    context: AbstractContextManager[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with context:
            return await function(*args, **kwargs)

    return wrapper


def _generator(
    context: AbstractContextManager[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with context:
            return (yield from function(*args, **kwargs))

    return wrapper


def _async_generator(
    context: AbstractContextManager[Any], function: Callable[..., Any]
) -> Callable[..., Any]:
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
