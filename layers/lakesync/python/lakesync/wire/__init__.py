"""Bytes ⇄ core values: protobuf and JSON over the network, and the buffer's stored forms.

`records` contains runs of deltas, `row_state` merged rows, `proto` and `jsonish` the two encodings
of the messages. Decoding is strict: what `lakesync.core` would refuse is refused here, by field.
"""
