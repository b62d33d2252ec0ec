"""The command line: `lakesync token | push | pull | flush | query | status | schema | rules | …`.

`app` lists the commands, which are modules of `commands`. They import large packages inside their
functions, so that ``lakesync --help`` answers at once.
"""
