"""Where the client looks for its server and its key, and to whom it sends which."""

import os
from pathlib import Path

import pytest

from turnkeep.api.identity.service_keys import LOCAL_KEY
from turnkeep.cli.database import remember_server
from turnkeep.config import Settings
from turnkeep.errors import InvalidRequest
from turnkeep_client.discovery import KEY_FILE, find_server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data directory as a running server leaves it; the server is this very process."""
    (tmp_path / LOCAL_KEY).write_text("tk_local\n")
    remember_server(Settings(data_dir=tmp_path), 4321)
    return tmp_path


class TestFinding:
    def test_what_the_caller_says_wins(self, folder: Path) -> None:
        environ = {"TURNKEEP_URL": "http://other:1", "TURNKEEP_KEY": "k2", "TURNKEEP_DATA_DIR": str(folder)}
        place = find_server("https://mine.example/", "k1", environ=environ)
        assert (place.url, place.key) == ("https://mine.example", "k1")

    def test_then_the_environment(self, folder: Path) -> None:
        environ = {"TURNKEEP_URL": "http://other:1", "TURNKEEP_KEY": "k2", "TURNKEEP_DATA_DIR": str(folder)}
        place = find_server(environ=environ)
        assert (place.url, place.key) == ("http://other:1", "k2")

    def test_then_the_data_directory_of_a_server_that_runs(self, folder: Path) -> None:
        place = find_server(environ={"TURNKEEP_DATA_DIR": str(folder)})
        assert (place.url, place.key) == ("http://127.0.0.1:4321", "tk_local")
        assert find_server(data_dir=folder, environ={"TURNKEEP_URL": "http://other:1"}) == place

    def test_then_the_default_address(self, tmp_path: Path) -> None:
        place = find_server(environ={"TURNKEEP_DATA_DIR": str(tmp_path), "TURNKEEP_PORT": "9000"})
        assert (place.url, place.key) == ("http://127.0.0.1:9000", None)

    def test_the_local_key_is_sent_to_the_local_server_alone(self, folder: Path) -> None:
        environ = {"TURNKEEP_DATA_DIR": str(folder)}
        assert find_server("https://elsewhere.example", environ=environ).key is None
        assert find_server("http://127.0.0.1:9999", environ=environ).key is None
        assert find_server("http://127.0.0.1:4321", environ=environ).key == "tk_local"

    def test_a_server_that_died_is_not_found(self, folder: Path) -> None:
        gone = os.fork()
        if gone == 0:
            os._exit(0)
        os.waitpid(gone, 0)
        (folder / "server.json").write_text(f'{{"url": "http://127.0.0.1:4321", "pid": {gone}}}')
        assert find_server(environ={"TURNKEEP_DATA_DIR": str(folder)}).url == "http://127.0.0.1:8787"

    @pytest.mark.parametrize(
        "url", ["localhost", "ftp://x", "http://", "http://a:b", "http://x/?key=1", "http://u:p@x"]
    )
    def test_what_is_no_address_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidRequest):
            find_server(url, environ={})

    def test_a_key_is_not_shown(self) -> None:
        assert "tk_secret" not in repr(find_server("http://x", "tk_secret", environ={}))

    def test_the_key_has_the_servers_own_file_name(self) -> None:
        assert KEY_FILE == LOCAL_KEY
