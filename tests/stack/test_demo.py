"""The demo in small: one day of flights, through every part of the deployed stack."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console

from tests.support.deployed import Glue, Tenant
from tools.demo.lake import DemoLake
from tools.demo.screen import Screen
from tools.demo.second_act import SecondAct
from tools.demo.setting import Setting
from tools.demo.story import Story
from tools.local_stack.stack import socket_address

if TYPE_CHECKING:
    from pathlib import Path

    from tools.local_stack.stack import Stack


def test_every_database_and_client_of_the_demo_has_the_expected_rows(
    stack: Stack, glue: Glue, tmp_path: Path
) -> None:
    glue.settle()
    tenant = Tenant(stack)
    sockets = socket_address(stack.endpoint, tenant.aws.output("SocketUrl"))
    folder = tmp_path / "clients"
    setting = Setting(stack.http, tenant.gateway, stack.jwt_secret, folder, sockets)
    lake = DemoLake(tenant.aws, stack.http, tenant.gateway, lambda: setting.token("demo", "admin"))
    printed = io.StringIO()
    outcome = Story(setting, lake, Screen(Console(file=printed)), days=1).tell()
    assert [(v.holder, v.sentence) for v in outcome.verdicts if not v.right] == []
    assert [v.rows for v in outcome.verdicts] == [841, 280, 297, 841, 841, 842]
    assert printed.getvalue().count("Glue run took") == 2
    assert "on the airline's screen after" in printed.getvalue()


def test_captured_database_client_mysql_and_lake_of_the_demo_have_the_same_rows(
    stack: Stack, glue: Glue, tmp_path: Path
) -> None:
    glue.settle()
    tenant = Tenant(stack)
    setting = Setting(stack.http, tenant.gateway, stack.jwt_secret, tmp_path / "clients")
    lake = DemoLake(tenant.aws, stack.http, tenant.gateway, lambda: setting.token("demo", "admin"))
    printed = io.StringIO()
    verdicts = SecondAct(setting, lake, tenant.aws, Screen(Console(file=printed))).tell()
    assert [(v.holder, v.sentence) for v in verdicts if not v.right] == []
    assert [v.rows for v in verdicts] == [838] * 5
