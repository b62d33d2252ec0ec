"""The AWS emulator, with the gaps between it and AWS that LakeSync meets patched.

Runs in the emulator's own environment: `python -m tools.local_stack.emulator`. Every patch says in
its docstring what AWS does. `names.py` lists what is patched, so that another version of the
emulator which moved one of those names fails at its start, and in a test, with a sentence instead
of silence.
"""
