"""What the tools of the local stack raise."""


class LocalStackError(Exception):
    """Something on this machine is in the way; the text is one sentence that says what to do."""
