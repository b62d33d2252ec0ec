"""How all tests run: Hypothesis profiles, and the databases that they share.

``fast``, the default, draws the same examples every time, so that a red build is red again.
``fresh`` draws others, as many, and ``deep`` many others: ``pytest --hypothesis-profile deep``.
"""

import gc

from hypothesis import HealthCheck, settings

# Tests make many objects and little garbage, beside the million that imports make: with Python's
# own thresholds a sixth of the time goes into looking for cycles.
gc.set_threshold(20_000, 20, 20)

settings.register_profile(
    "fast", max_examples=100, derandomize=True, deadline=None, database=None, print_blob=True
)
settings.register_profile("fresh", max_examples=100, deadline=None, database=None, print_blob=True)
settings.register_profile(
    "deep",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fast")

pytest_plugins = ["tests.support.databases", "tests.support.read_once"]


def pytest_collection_finish() -> None:
    """Leave what imports and collection made out of later searches for cycles."""
    gc.freeze()
