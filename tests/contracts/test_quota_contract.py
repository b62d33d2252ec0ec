"""What every store of quotas promises: all that is reported is told, window by window."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from lakesync.buffer.admission import WINDOWS_AHEAD_MAX, ItemQuotas
from lakesync.errors import ValidationFailed
from lakesync.ports import Quota, Usage, WindowUsage

if TYPE_CHECKING:
    from lakesync.buffer.items import ItemStore
    from lakesync.ports import QuotaStore

ONE = Usage(1, 20, 300)
UNSET = Quota()


@pytest.fixture
def quotas(item_store: ItemStore) -> ItemQuotas:
    return ItemQuotas(item_store)


@pytest.mark.law("Q1")
def test_usage_of_a_window_is_summed_across_reports(quotas: QuotaStore, gateway: str) -> None:
    assert quotas.report(gateway, 7, ONE) == WindowUsage(7, ONE, UNSET)
    assert quotas.report(gateway, 7, ONE) == WindowUsage(7, Usage(2, 40, 600), UNSET)
    assert quotas.report(gateway, 7, Usage()).usage == Usage(2, 40, 600)
    assert quotas.report(f"{gateway}x", 7, ONE).usage == ONE


@pytest.mark.law("Q1")
def test_window_starts_at_zero_and_counts_reports_of_an_earlier_window(
    quotas: QuotaStore, gateway: str
) -> None:
    quotas.report(gateway, 7, ONE)

    assert quotas.report(gateway, 8, ONE) == WindowUsage(8, ONE, UNSET)
    assert quotas.report(gateway, 7, ONE) == WindowUsage(8, Usage(2, 40, 600), UNSET)


def test_window_of_a_clock_far_ahead_is_replaced(quotas: QuotaStore, gateway: str) -> None:
    quotas.report(gateway, 10_000, ONE)

    behind = 10_000 - WINDOWS_AHEAD_MAX
    assert quotas.report(gateway, behind - 1, ONE) == WindowUsage(behind - 1, ONE, UNSET)
    quotas.report(gateway, 10_000, ONE)
    assert quotas.report(gateway, behind, ONE).window == 10_000


@pytest.mark.law("Q1")
def test_concurrent_usage_reports_are_all_counted(quotas: QuotaStore, gateway: str) -> None:
    quotas.report(gateway, 7, Usage())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: quotas.report(gateway, 7, ONE), range(40)))

    assert quotas.report(gateway, 7, Usage()).usage == Usage(40, 800, 12_000)


def test_quota_set_for_a_gateway_is_returned_with_each_report(
    quotas: QuotaStore, gateway: str
) -> None:
    assert quotas.quota(gateway) == UNSET
    for quota in (Quota(5, None, 7), Quota(0, 0, 0), Quota(None, 9, None), UNSET):
        quotas.set_quota(gateway, quota)

        assert quotas.quota(gateway) == quota
        assert quotas.report(gateway, 7, ONE).quota == quota
    assert quotas.report(gateway, 7, Usage()).usage == Usage(4, 80, 1_200)


def test_invalid_gateway_id_is_refused(quotas: QuotaStore) -> None:
    with pytest.raises(ValidationFailed):
        quotas.report("a|b", 7, ONE)
    with pytest.raises(ValidationFailed):
        quotas.quota("a|b")
    with pytest.raises(ValidationFailed):
        quotas.set_quota("a|b", UNSET)
