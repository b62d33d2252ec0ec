"""Faults put in on purpose, to show that the simulation finds them: those of all modules here."""

from importlib import import_module
from pkgutil import iter_modules

from tests.simulation.deliberate.registry import FAULTS, Deliberate, broken

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FAULTS", "Deliberate", "broken"]
