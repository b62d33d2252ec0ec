"""Names that no shard may have, as the template matches keys by their ending."""

from __future__ import annotations

import re
from pathlib import Path

from lakesync.core.layout import RESERVED_SHARDS

TEMPLATE = Path(__file__).parents[2] / "template.yaml"


def test_key_suffixes_matched_by_the_template_are_reserved_shard_names() -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    leading_keys = re.findall(r'"\*\|([a-z_]+)"', text)
    stream_filter = re.findall(r'"suffix":"\|([a-z_]+)"', text)
    assert leading_keys
    assert stream_filter
    assert {*leading_keys, *stream_filter} <= RESERVED_SHARDS
