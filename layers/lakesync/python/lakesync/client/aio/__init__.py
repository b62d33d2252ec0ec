"""The client for asyncio: the same names, awaited, over the same implementation."""
