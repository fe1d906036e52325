"""A real identity provider as a process of its own: the package oidc-provider-mock."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from playwright.async_api import Page

from tests.ports import free_ports
from tests.server_process import SECONDS, clean_environment


class ProviderProcess:
    """Its issuer, and the people whom it knows."""

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer

    def add_person(self, subject: str, **claims: Any) -> str:
        """Add or change a person; the external id that a user gets from it."""
        httpx.put(f"{self.issuer}/users/{subject}", json=claims, trust_env=False).raise_for_status()
        return f"{self.issuer.partition('://')[2]}#{subject}"

    async def agree(self, page: Page, subject: str) -> None:
        """Sign in at the provider, whose form is shown, as this person."""
        await page.get_by_placeholder("sub").fill(subject)
        await page.get_by_role("button", name="Authorize").click()


@contextmanager
def running_provider() -> Iterator[ProviderProcess]:
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce", "true"]
    with subprocess.Popen(
        command, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            issuer = f"http://localhost:{port}"
            _wait_until_it_answers(issuer)
            yield ProviderProcess(issuer)
        finally:
            process.terminate()
            process.wait(SECONDS)


def _wait_until_it_answers(issuer: str) -> None:
    until = time.monotonic() + SECONDS
    while True:
        try:
            httpx.get(f"{issuer}/.well-known/openid-configuration", trust_env=False).raise_for_status()
        except httpx.HTTPError:
            assert time.monotonic() < until, "the identity provider does not start"
            time.sleep(0.1)
        else:
            return
