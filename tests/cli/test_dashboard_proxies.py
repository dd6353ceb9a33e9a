"""The proxies whose `X-Forwarded-For` a real `duly dashboard` process trusts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from duly.limits import LOGIN_FAILURES

pytestmark = [pytest.mark.stores("sqlite"), pytest.mark.timeout(120)]
TOKEN = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for these tests only


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a dashboard with these options and settings. Returns its address."""
    processes: list[subprocess.Popen[str]] = []

    def run(*options: str, **settings: str) -> str:
        url = f"sqlite:///{tmp_path / 'proxied.db'}"
        command = [sys.executable, "-m", "duly", "dashboard", "--url", url, "--create"]
        process = subprocess.Popen(
            [*command, "--port", "0", "--json", *options],
            # uvicorn's own variable must not change which proxies duly trusts.
            env=os.environ | {"DULY_DASHBOARD_TOKEN": TOKEN, "FORWARDED_ALLOW_IPS": "*"} | settings,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        said = "".join(iter(process.stdout.readline, "}\n")) + "}"
        return str(json.loads(said)["address"])

    yield run
    for process in processes:
        process.kill()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def guess_from_invented_addresses(address: str) -> list[int]:
    with httpx2.Client(base_url=address, timeout=60) as client:
        return [
            client.get(
                "/runs",
                headers={
                    "Authorization": f"Bearer wrong-{number}",
                    "X-Forwarded-For": f"10.1.0.{number}",
                },
            ).status_code
            for number in range(LOGIN_FAILURES + 1)
        ]


def test_a_client_cannot_bypass_the_login_limit_with_invented_addresses(start):
    statuses = guess_from_invented_addresses(start())

    assert statuses == [403] * LOGIN_FAILURES + [429]


@pytest.mark.parametrize("is_option", [True, False], ids=["option", "setting"])
def test_a_trusted_proxy_supplies_the_address_of_the_client(start, is_option):
    proxies = "10.0.0.1,127.0.0.0/8"
    address = (
        start("--forwarded-allow-ips", proxies)
        if is_option
        else start(DULY_DASHBOARD_FORWARDED_ALLOW_IPS=proxies)
    )

    assert guess_from_invented_addresses(address) == [403] * (LOGIN_FAILURES + 1)
