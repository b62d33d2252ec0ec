"""The log: how a push becomes a commit (`commit`), and how commits are read in order (`read`)."""

from __future__ import annotations
