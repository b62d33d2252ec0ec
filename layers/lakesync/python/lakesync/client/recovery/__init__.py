"""When the client must read again: after changed rules, or after a gateway's restore."""
