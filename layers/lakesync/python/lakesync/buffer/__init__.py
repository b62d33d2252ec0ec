"""The durable buffer: heads, commit log, row states, configuration.

`dynamo` implements it in one DynamoDB table, `memory_buffer` in this process; both pass
``tests/contracts``.
"""
