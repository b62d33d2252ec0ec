"""The composition root: makes Lambda functions of the engine.

`settings` reads the environment, `wiring` builds the objects of one cold start, `http` and `api`
turn requests into calls, `auth` and `tokens` say who is calling, `observe` logs and counts.
Everybody below is free of AWS, HTTP and the environment because this package is not.
"""
