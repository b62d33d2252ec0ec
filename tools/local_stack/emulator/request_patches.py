"""Determines which service a request is for, without reading descriptions of services."""

# The emulator's own names are private; names.py watches over them.
# ruff: noqa: SLF001

from __future__ import annotations

import functools

from tools.local_stack.emulator.names import emulator_module


def know_services_without_their_descriptions() -> None:
    """AWS: a service is asked, and others are not held up.

    The emulator reads the descriptions of all 400 services when it meets one that it does not
    emulate: seconds in which it serves nobody. By their names alone it knows nearly all of them.
    """
    router = emulator_module("ministack.core.router")
    original = router._is_aws_service_name

    def is_service(name: str) -> bool:
        return name in _named() or original(name)

    router._is_aws_service_name = is_service


@functools.cache
def _named() -> frozenset[str]:
    """Return the names of all services; some requests are signed for one without the hyphen."""
    names = emulator_module("botocore.session").get_session().get_available_services()
    return frozenset(names) | {name.replace("-", "") for name in names}
