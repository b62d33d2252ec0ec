"""Reasons why a function leaves a batch, or a part of it, to Spark."""

from __future__ import annotations


class LeftToSpark(Exception):
    """A function cannot, or should not, apply a batch; nothing of it was done."""


class MergeLeft(LeftToSpark):
    """The batch is in the changes table, where live views read it; only its merge remains."""
