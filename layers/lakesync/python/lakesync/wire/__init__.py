"""Bytes ⇄ core values: protobuf and JSON over the network, and the buffer's stored forms.

`records` contains merged rows and runs of deltas, `log_entries` the log as stored, `proto` and
`jsonish` the two encodings of the messages, `json_frames` the second's frames of WebSockets.
Decoding is strict: what `lakesync.core` would refuse is refused here, by field.
"""

from __future__ import annotations

from typing import Final

DOORS: Final = (
    "batch_json",
    "incoming",
    "json_frames",
    "jsonish",
    "log_entries",
    "proto",
    "records",
)
"""What other folders may import."""
