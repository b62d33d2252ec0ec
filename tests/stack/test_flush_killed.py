"""The flush, killed before each of its steps, on the deployed table, bucket and queue.

The code that is killed is the deployed one, in this process; the one that finishes is the deployed
function. What the lake makes of it is in ``test_lake.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.killed_flush import STEPS, TABLES, Killed, claims, fill, flush_here

if TYPE_CHECKING:
    from tests.support.deployed import Tenant

pytestmark = pytest.mark.usefixtures("by_hand", "credentials")


def test_flush_has_exactly_the_listed_steps(tenant: Tenant) -> None:
    fill(tenant)
    assert flush_here(tenant, 100) == 100 - len(STEPS)


@pytest.mark.parametrize("killed_before", range(len(STEPS)), ids=STEPS)
def test_flush_killed_before_any_step_is_finished_by_the_next(
    tenant: Tenant, killed_before: int
) -> None:
    fill(tenant)
    with pytest.raises(Killed):
        flush_here(tenant, killed_before)
    fill(tenant, first=10)
    tenant.flush()
    assert tenant.flush()["batches"] == 0
    for table in TABLES:
        made = [claim for claim in claims(tenant) if claim["table"] == table]
        # The killed one's range came first, whole, and what was pushed later is a batch of its
        # own; unless the range had not been recorded yet.
        assert [claim["deltas"] for claim in made] == ([20] if killed_before == 0 else [10, 10])
        begins = [claim["after"] for claim in made]
        assert begins == ["0", *(claim["last"] for claim in made[:-1])]
    path = f"/admin/metrics/{tenant.gateway}"
    metrics = tenant.call("GET", path, token=tenant.token(role="admin")).json()
    assert (metrics["unflushedBytes"], metrics["unflushedAgeMs"]) == (0, 0)
