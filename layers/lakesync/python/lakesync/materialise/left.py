"""Why a function leaves a batch, or a part of it, to Spark."""

from __future__ import annotations


class LeftToSpark(Exception):
    """A function cannot bring a batch into the lake, or should not; nothing was done of it."""


class MergeLeft(LeftToSpark):
    """The batch is in the changes table, where live views read it; only its merge is left."""
