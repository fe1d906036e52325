"""A network that really drops packets, in network namespaces. It needs root, and the programs `ip` and `unshare`."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from tests.faults.processes import ROOT

_log = logging.getLogger(__name__)


@pytest.mark.nightly
@pytest.mark.alone
class TestALinkThatDropsPackets:
    async def test_to_the_primary_fails_no_turn_once_the_standby_is_promoted(self, tmp_path: Path) -> None:
        process = await asyncio.create_subprocess_exec(
            *("unshare", "--net", sys.executable, "-m", "tests.faults.dropped_packets", str(tmp_path)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(150):
            said, _ = await process.communicate()
        _log.warning(said.decode())
        assert process.returncode == 0, said.decode()
        assert b"a question was accepted" in said
        assert b"the kernel closed a connection" in said
