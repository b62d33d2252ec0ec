"""The common part of SQL destinations; each adds only a dialect."""
