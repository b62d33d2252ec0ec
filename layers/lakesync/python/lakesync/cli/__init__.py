"""The command line: `lakesync token | push | pull | flush | query | status | schema | rules | …`.

`app` lists the commands, `commands` holds them, one module each. They import what is heavy inside
their functions, so that ``lakesync --help`` answers at once.
"""
