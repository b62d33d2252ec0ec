"""The BigQuery emulator, with the repeated work of its requests left out.

Runs in the emulator's own environment: `python -m tools.local_stack.bigquery_emulator`. What it
answers stays as it is. It reads each statement some twenty times, which is most of what a request
costs; here statements of one shape are read once. `names.py` lists what is patched, so that another
version of the emulator fails at its start, and in a test, with a sentence.
"""
