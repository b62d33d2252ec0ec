"""Bytes ⇄ core values: protobuf and JSON over the network, and what the buffer stores.

`records` holds runs of deltas, `row_state` merged rows, `proto` and `jsonish` the two encodings of
the messages. Decoding is strict: what `lakesync.core` would refuse is refused here, by field.
"""
