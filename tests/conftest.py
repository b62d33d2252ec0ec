"""How all tests run: Hypothesis profiles, and the databases that they share.

``fast``, the default, draws the same examples every time, so that a red build is red again.
``deep`` looks for new ones: ``pytest --hypothesis-profile deep tests/laws``.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fast", max_examples=100, derandomize=True, deadline=None, database=None, print_blob=True
)
settings.register_profile(
    "deep",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fast")

pytest_plugins = ["tests.support.databases", "tests.support.read_once"]
