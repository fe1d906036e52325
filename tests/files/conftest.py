"""`objects` runs on a local disk and on a real S3 server: each test of the contract, whole, on both."""

import secrets
from pathlib import Path

import pytest

from tests import buckets
from turnkeep.files.objects import open_objects
from turnkeep.files.ports import Objects


@pytest.fixture(params=["local", "s3"])
def files_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return f"file://{tmp_path / 'files'}"
    for name, value in buckets.shared_environ().items():
        monkeypatch.setenv(name, value)
    return f"s3://{buckets.BUCKET}/{secrets.token_hex(8)}"


@pytest.fixture
def objects(files_url: str, tmp_path: Path) -> Objects:
    return open_objects(files_url, folder=tmp_path / "files")
