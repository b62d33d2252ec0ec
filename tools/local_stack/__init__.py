"""AWS on this machine: an emulator, real Spark behind its Glue, DynamoDB Local, and the deployment.

`python -m tools.local_stack up | down | status` is the command; tests use `start_emulator`,
`start_dynamodb_local`, `start_postgres` and `start_mariadb`. The product never imports anything
from here and cannot see the difference.
"""
