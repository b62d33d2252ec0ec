"""What a stack's operator would list for the databases of the tests, which are on this machine."""

LOOPBACK = ("127.0.0.1/32", "localhost")
