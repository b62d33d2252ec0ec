"""The log: how a push becomes a commit, and how commits are read back in order."""
