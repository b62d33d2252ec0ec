"""The durable buffer: heads, commit log, row states, configuration.

`dynamo` implements it in one DynamoDB table, `memory` in this process; both pass
``tests/contracts``.
"""
