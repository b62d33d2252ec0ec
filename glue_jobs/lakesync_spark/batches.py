"""Claims of the lake: which batches wait to be applied to it."""

from lakesync.core.claims import CLAIMS, Batch, parse_claim

__all__ = ["CLAIMS", "Batch", "parse_claim"]
