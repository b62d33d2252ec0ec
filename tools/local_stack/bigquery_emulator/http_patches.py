"""Requests without what nobody reads: metrics, access logs, threads for work that does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.local_stack.emulator.names import emulator_module

if TYPE_CHECKING:
    from collections.abc import Callable


class _Nothing:
    """A layer around the application that does nothing."""

    def __init__(self, app: Callable[..., Any], **_: Any) -> None:
        self._app = app

    async def __call__(self, *request: Any) -> None:
        await self._app(*request)


def answer_without_records() -> None:
    """Measure and log no request: each of these layers starts tasks of its own for it."""
    app = emulator_module("bqemulator.api.app")
    for layer in ("AccessLogMiddleware", "CorrelationIdMiddleware", "MetricsMiddleware"):
        setattr(app, layer, _Nothing)


async def _run_here(function: Callable[..., Any], /, *values: Any, **named: Any) -> Any:
    return function(*values, **named)


def answer_in_one_thread() -> None:
    """Run every handler where the statements run: to change the thread costs more than they do."""
    for module in ("fastapi.routing", "fastapi.dependencies.utils"):
        emulator_module(module).run_in_threadpool = _run_here
