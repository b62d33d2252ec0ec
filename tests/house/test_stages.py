"""`tools/test.sh` looks for tests with a marker in the folders that have some, and in no other."""

import re

from tests.support.repository import ROOT, modules


def test_every_test_that_needs_spark_is_in_a_folder_of_that_stage() -> None:
    stage = re.search(
        r'tests "([^"]+)" "spark and not stack"', (ROOT / "tools/test.sh").read_text()
    )
    assert stage is not None
    folders = tuple(f"{folder}/" for folder in stage[1].split())
    marked = [module.name for module in modules("tests/") if "pytest.mark.spark" in module.text]
    assert marked
    assert [name for name in marked if not name.startswith((*folders, "tests/house/"))] == []
