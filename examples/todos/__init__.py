"""An example: a list of things to do that several people share, online or not."""
