"""How a missing package is installed: from where LakeSync itself came."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this package, from the package's own origin.

    LakeSync is on no package index: its bare name would find nothing, or somebody else's package.
    """
    try:
        origin = json.loads(distribution("lakesync").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        origin = {}
    url = origin.get("url", "")
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    if not url:
        return f'pip install ".[{extra}]" in the folder of LakeSync'
    return f'pip install "lakesync[{extra}] @ {url}"'
