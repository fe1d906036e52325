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
        of_kubernetes = {"TURNKEEP_DATA_DIR": str(tmp_path), "TURNKEEP_PORT": "tcp://10.0.0.7:80"}
        assert find_server(environ=of_kubernetes).url == "http://127.0.0.1:8787"

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

    @pytest.mark.parametrize("url", ["https://evil.example", "http://127.evil.example", "http://10.0.0.7:8787"])
    @pytest.mark.parametrize("name", ["TURNKEEP_KEY", "TURNKEEP_BOOTSTRAP_KEY", LOCAL_KEY])
    def test_a_key_is_not_sent_to_another_machine_that_a_file_names(self, tmp_path: Path, url: str, name: str) -> None:
        (tmp_path / "server.json").write_text(f'{{"url": "{url}", "pid": {os.getpid()}}}')
        environ = {"TURNKEEP_DATA_DIR": str(tmp_path)}
        assert find_server(environ=environ).key is None
        if name == LOCAL_KEY:
            (tmp_path / LOCAL_KEY).write_text("tk_local")
        else:
            environ[name] = "tk_local"
        with pytest.raises(InvalidRequest, match="set TURNKEEP_HOST"):
            find_server(environ=environ)
        host = url.partition("//")[2].partition(":")[0]
        for own in ({"TURNKEEP_URL": url}, {"TURNKEEP_HOST": host}):
            assert find_server(environ=environ | own).key == "tk_local"
        assert find_server(url, environ=environ).key == "tk_local"
        assert find_server(key="tk_given", environ=environ).key == "tk_given"

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:1", "http://127.8.0.1:1", "http://localhost:1", "http://[::1]:1"]
    )
    def test_but_to_this_machine(self, tmp_path: Path, url: str) -> None:
        (tmp_path / "server.json").write_text(f'{{"url": "{url}", "pid": {os.getpid()}}}')
        place = find_server(environ={"TURNKEEP_DATA_DIR": str(tmp_path), "TURNKEEP_KEY": "k"})
        assert (place.url, place.key, place.is_loopback) == (url, "k", True)

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
