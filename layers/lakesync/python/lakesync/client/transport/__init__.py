"""How a client reaches its gateway: over HTTPS, or in the same process."""
