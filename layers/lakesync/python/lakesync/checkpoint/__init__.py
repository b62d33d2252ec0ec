"""Checkpoints: all rows of a gateway as objects on S3, ready to be sent.

`manifest` describes their content, `store` writes and reads them, `replay_from` says from where the
log continues behind them. `lakesync.maintenance` builds them and decides which are kept.
"""

from __future__ import annotations
