"""Settings: read once, refused clearly, never shown with their secrets."""

import re
from pathlib import Path

import pytest

from turnkeep.config import (
    VARIABLES,
    ConfigFile,
    Settings,
    Variable,
    exposed_secrets,
    find_config_file,
    mask_url,
    read_settings,
)
from turnkeep.errors import InvalidRequest
from turnkeep.sandbox.settings import read_runner_settings
from turnkeep.secret_files import SECRET_KEYS, secret_keys, signing_secrets

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"

CONTRACT = {
    "TURNKEEP_HOST": "127.0.0.1",
    "TURNKEEP_PORT": 8787,
    "TURNKEEP_DATA_DIR": Path(".turnkeep"),
    "TURNKEEP_DATABASE_URL": "sqlite:///.turnkeep/turnkeep.db",
    "TURNKEEP_FILES_URL": "file:///.turnkeep/files",
    "TURNKEEP_REDIS_URL": None,
    "TURNKEEP_BOOTSTRAP_KEY": None,
    "TURNKEEP_SECRET_KEYS": (),
    "TURNKEEP_PUBLIC_URL": None,
    "TURNKEEP_SANDBOX_URL": None,
    "TURNKEEP_REPLAY_TURNS": 20,
    "TURNKEEP_CONTEXT_CHARS": 400_000,
    "TURNKEEP_TOOL_ROUNDS": 5,
    "TURNKEEP_TOOL_RESULT_CHARS": 4_000,
    "TURNKEEP_MAX_FILE_BYTES": 52_428_800,
    "TURNKEEP_MAX_FILES_PER_MESSAGE": 10,
    "TURNKEEP_LEASE_SECONDS": 10,
    "TURNKEEP_DISCONNECT_GRACE_SECONDS": 30,
    "TURNKEEP_BAG_URL_TTL_SECONDS": 300,
    "TURNKEEP_MODEL": "demo",
    "TURNKEEP_PROVIDER_TIMEOUT_SECONDS": 60,
    "TURNKEEP_TOOL_TIMEOUT_SECONDS": 30,
    "TURNKEEP_TURN_TIMEOUT_SECONDS": 28_800,
    "TURNKEEP_RETENTION_DAYS": 30,
    "TURNKEEP_ALLOWED_ORIGINS": (),
    "TURNKEEP_MAX_BODY_BYTES": 1_048_576,
    "TURNKEEP_ALLOW_PRIVATE_ADDRESSES": False,
}


class TestReading:
    def test_the_defaults_are_those_of_the_contract(self) -> None:
        settings = read_settings({})
        fields = {variable.name: variable.field for variable in VARIABLES}
        assert {name: getattr(settings, fields[name]) for name in CONTRACT} == CONTRACT

    def test_a_flag_wins_over_the_environment_and_that_over_the_default(self) -> None:
        environ = {"TURNKEEP_PORT": "1", "TURNKEEP_HOST": " ::1 ", "TURNKEEP_MODEL": ""}
        settings = read_settings(environ, {"port": "2", "model": None})
        assert (settings.port, settings.host, settings.model) == (2, "::1", "demo")

    def test_variables_that_kubernetes_sets_for_services_are_left_alone(self) -> None:
        """Those of the services `turnkeep`, `turnkeep-web` and `turnkeep-sandbox`, as a pod has them."""
        environ: dict[str, str] = {}
        for service in ("TURNKEEP", "TURNKEEP_WEB", "TURNKEEP_SANDBOX"):
            environ |= {
                f"{service}_SERVICE_HOST": "10.0.0.7",
                f"{service}_SERVICE_PORT": "80",
                f"{service}_SERVICE_PORT_HTTP": "80",
                f"{service}_PORT": "tcp://10.0.0.7:80",
                f"{service}_PORT_80_TCP": "tcp://10.0.0.7:80",
                f"{service}_PORT_80_TCP_PROTO": "tcp",
                f"{service}_PORT_80_TCP_PORT": "80",
                f"{service}_PORT_80_TCP_ADDR": "10.0.0.7",
                f"{service}_PORT_53_UDP": "udp://10.0.0.7:53",
            }
        assert read_settings(environ).port == 8787
        assert read_runner_settings(environ).port == 8788
        file = ConfigFile(path=Path("turnkeep.toml"), values={"TURNKEEP_PORT": "9000"})
        assert read_settings(environ, file=file).port == 9000
        for name in ("TURNKEEP_WEB_PORT", "TURNKEEP_PROT"):
            with pytest.raises(InvalidRequest, match=f"{name} is no setting"):
                read_settings({name: "9000"})

    def test_addresses_follow_the_data_directory(self) -> None:
        settings = read_settings({"TURNKEEP_DATA_DIR": "/srv/data"})
        assert settings.database_url == "sqlite:////srv/data/turnkeep.db"
        assert settings.sqlite_path == Path("/srv/data/turnkeep.db")
        assert settings.files_path == Path("/srv/data/files")
        assert settings.is_sqlite

    @pytest.mark.parametrize(
        "files_url, expected",
        [
            (None, Path(".turnkeep/files")),
            ("file:///srv/files", Path("/srv/files")),
            ("file:////srv/files", Path("/srv/files")),
            ("file://localhost/srv/my%20files", Path("/srv/my files")),
        ],
    )
    def test_the_folder_of_files(self, files_url: str | None, expected: Path) -> None:
        environ = {} if files_url is None else {"TURNKEEP_FILES_URL": files_url}
        assert read_settings(environ).files_path == expected

    def test_lists_are_separated_by_commas(self) -> None:
        new, old = "n" * 32, "o" * 32
        environ = {
            "TURNKEEP_SECRET_KEYS": f"{new}, {old}",
            "TURNKEEP_ALLOWED_ORIGINS": "https://A.example, http://b:1/",
        }
        settings = read_settings(environ)
        assert settings.secret_keys == (new, old)
        assert settings.allowed_origins == ("https://a.example", "http://b:1")

    def test_origins_are_written_as_browsers_write_them(self) -> None:
        environ = {
            "TURNKEEP_ALLOWED_ORIGINS": "https://A.example:443, http://[::1]:80, http://b.example:443",
            "TURNKEEP_FRAME_ANCESTORS": "self, https://a.example:8443/, 'SELF'",
        }
        settings = read_settings(environ)
        assert settings.allowed_origins == ("https://a.example", "http://[::1]", "http://b.example:443")
        assert settings.frame_ancestors == ("'self'", "https://a.example:8443", "'self'")
        assert read_settings({}).frame_ancestors == ()

    @pytest.mark.parametrize("name", ["TURNKEEP_FRAME_ANCESTORS", "TURNKEEP_ALLOWED_ORIGINS"])
    @pytest.mark.parametrize(
        "text",
        [
            *("*", "https://*", "https://*.example.com", "app.example.com", "https:", "data:", "'none'", "null"),
            *("https://a.example/path", "https://a.example?q", "https://a.example#f", "https://user@a.example"),
            *(
                "https://a.example;script-src *",
                "https://a.example script-src",
                'https://a.example"',
                "ftp://a.example",
            ),
            *("https://a.example:99999", "https://ä.example", "https://a.example, *", "https://a.example\nx: y"),
        ],
    )
    def test_what_is_no_origin_is_refused(self, name: str, text: str) -> None:
        with pytest.raises(InvalidRequest, match=f"{name} must be origins such as https://app.example.com"):
            read_settings({name: text})

    def test_a_brand(self, tmp_path: Path) -> None:
        logo = tmp_path / "logo.PNG"
        logo.write_bytes(b"a picture")
        environ = {
            "TURNKEEP_BRAND_NAME": " Zoë & Söhne ",
            "TURNKEEP_BRAND_LOGO": str(logo),
            "TURNKEEP_BRAND_COLORS": "#7A1FA2, #fff",
        }
        settings = read_settings(environ)
        assert (settings.brand_name, settings.brand_logo) == ("Zoë & Söhne", logo)
        assert settings.brand_colors == ("#7a1fa2", "#fff")

    def test_a_brand_that_cannot_be_shown_is_refused(self, tmp_path: Path) -> None:
        for name, body in (("logo.exe", b"x"), ("empty.svg", b""), ("large.png", b"x" * 262_145)):
            (tmp_path / name).write_bytes(body)
        (tmp_path / "folder.svg").mkdir()
        logos = [str(tmp_path / name) for name in ("logo.exe", "empty.svg", "large.png", "folder.svg", "none.svg")]
        for variable, texts in (
            ("TURNKEEP_BRAND_NAME", ["x" * 61, "two\nlines", "a\u202eb"]),
            ("TURNKEEP_BRAND_LOGO", logos),
            ("TURNKEEP_BRAND_COLORS", ["red", "#12345", "#fff;}", "#fff,#fff,#fff", "url(x)"]),
        ):
            for text in texts:
                with pytest.raises(InvalidRequest, match=f"{variable} must be"):
                    read_settings({variable: text})

    @pytest.mark.parametrize(
        "host, port, expected",
        [
            ("127.0.0.1", 8787, "http://127.0.0.1:8787"),
            ("0.0.0.0", 80, "http://127.0.0.1:80"),
            ("::", 80, "http://[::1]:80"),
        ],
    )
    def test_the_address_for_people(self, host: str, port: int, expected: str) -> None:
        assert Settings(host=host).address(port) == expected
        assert Settings(host=host, public_url="https://chat.example").address(port) == "https://chat.example"


class TestAFile:
    def file(self, folder: Path, text: str) -> ConfigFile:
        (folder / "turnkeep.toml").write_text(text, encoding="utf-8")
        found = find_config_file({}, str(folder / "turnkeep.toml"))
        assert found is not None
        return found

    def test_is_overridden_by_the_environment_and_that_by_a_flag(self, tmp_path: Path) -> None:
        file = self.file(tmp_path, 'port = 1\nhost = "::1"\nmodel = "openai/gpt-5"\n')
        environ = {"TURNKEEP_PORT": "2", "TURNKEEP_HOST": "0.0.0.0", "TURNKEEP_MODEL": ""}
        settings = read_settings(environ, {"port": "3"}, file)
        assert (settings.port, settings.host, settings.model, settings.lease_seconds) == (
            3,
            "0.0.0.0",
            "openai/gpt-5",
            10,
        )

    def test_has_numbers_lists_switches_and_a_table_for_the_runner(self, tmp_path: Path) -> None:
        text = """
            lease_seconds = 2.5
            allow_private_addresses = true
            database_prepared_statements = false
            allowed_origins = ["https://a.example", "https://b.example"]
            [sandbox]
            turns = 3
            driver = "docker"
        """
        file = self.file(tmp_path, text)
        settings, runner = read_settings({}, file=file), read_runner_settings({}, file=file)
        assert (settings.lease_seconds, settings.allow_private_addresses) == (2.5, True)
        assert settings.database_prepared_statements is False
        assert settings.allowed_origins == ("https://a.example", "https://b.example")
        assert (runner.turns, runner.driver) == (3, "docker")

    @pytest.mark.parametrize(
        "text, words",
        [
            ("prot = 1", "`prot` in .*turnkeep.toml is no setting. Did you mean port?"),
            ("[sandbox]\ntruns = 1", r"`truns` of \[sandbox\] in .* is no setting. Did you mean turns?"),
            ("[server]\nport = 1", "`server` in .* is no setting"),
            ("sandbox = 1", "must be a table"),
            ("port = 'eighty'", "`port` in .*turnkeep.toml must be a whole number"),
            ("port = [1]", "`port` in .* must be a text, a number"),
            ("port = ", "cannot be read"),
        ],
    )
    def test_that_is_wrong_is_refused_with_its_name(self, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises(InvalidRequest, match=words):
            read_settings({}, file=self.file(tmp_path, text))

    def test_with_secrets_that_others_can_read_is_known(self, tmp_path: Path) -> None:
        text = """
            port = 1
            bootstrap_key = "tk_1"
            database_url = "postgresql://me:word@db/turnkeep"
            redis_url = "redis://cache"
            [sandbox]
            secret = "0123456789abcdef0123456789abcdef"
        """
        file = self.file(tmp_path, text)
        for mode in (0o644, 0o640, 0o604):
            file.path.chmod(mode)
            assert exposed_secrets(file) == ["bootstrap_key", "database_url", "sandbox_secret"]
        file.path.chmod(0o600)
        assert exposed_secrets(file) == []
        harmless = self.file(tmp_path, "port = 1")
        harmless.path.chmod(0o644)
        assert exposed_secrets(harmless) == []

    def test_is_found_by_name_by_variable_and_here(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert find_config_file({}) is None
        for name in ("turnkeep.toml", "other.toml"):
            (tmp_path / name).write_text("port = 1")
        assert [find_config_file(environ) for environ in ({}, {"TURNKEEP_CONFIG": "other.toml"})] == [
            ConfigFile(path=Path(name), values={"TURNKEEP_PORT": "1"}) for name in ("turnkeep.toml", "other.toml")
        ]
        with pytest.raises(InvalidRequest, match=r"There is no file missing\.toml"):
            find_config_file({}, "missing.toml")


class TestUnknownNames:
    @pytest.mark.parametrize(
        "name, suggestion",
        [
            ("TURNKEEP_LEASE_SECOND", " Did you mean TURNKEEP_LEASE_SECONDS?"),
            ("TURNKEEP_SANDBOX_TURN", " Did you mean TURNKEEP_SANDBOX_TURNS?"),
            ("TURNKEEP_QQQ", ""),
        ],
    )
    def test_are_refused_with_a_suggestion(self, name: str, suggestion: str) -> None:
        for read in (read_settings, read_runner_settings):
            with pytest.raises(InvalidRequest, match=re.escape(f"{name} is no setting.{suggestion} Unset it.")):
                read({name: "1"})

    def test_do_not_count_if_they_are_empty_or_of_a_client(self) -> None:
        environ = {"TURNKEEP_QQQ": " ", "TURNKEEP_URL": "http://x", "TURNKEEP_KEY": "k", "TURNKEEP_SANDBOX_TURNS": "3"}
        assert read_settings(environ) == Settings()


class TestRefusing:
    @pytest.mark.parametrize(
        "name, text",
        [
            ("TURNKEEP_PORT", "eighty"),
            ("TURNKEEP_PORT", "65536"),
            ("TURNKEEP_PORT", "-1"),
            ("TURNKEEP_DATABASE_URL", "mysql://x/y"),
            ("TURNKEEP_FILES_URL", "ftp://x"),
            ("TURNKEEP_REDIS_URL", "http://x"),
            ("TURNKEEP_LEASE_SECONDS", "nan"),
            ("TURNKEEP_LEASE_SECONDS", "0"),
            ("TURNKEEP_RETENTION_DAYS", "-1"),
            ("TURNKEEP_ALLOWED_ORIGINS", "app.example"),
            ("TURNKEEP_ALLOWED_ORIGINS", "https://app.example/path"),
            ("TURNKEEP_PUBLIC_URL", "chat.example"),
            ("TURNKEEP_ALLOW_PRIVATE_ADDRESSES", "maybe"),
            ("TURNKEEP_LOG_LEVEL", "loud"),
            ("TURNKEEP_MAX_BODY_BYTES", "1e6"),
        ],
    )
    def test_a_bad_value_is_refused_with_its_name_and_what_is_allowed(self, name: str, text: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read_settings({name: text})
        variable = next(variable for variable in VARIABLES if variable.name == name)
        assert name in refused.value.detail
        assert variable.allowed in refused.value.detail
        assert text in refused.value.detail

    def test_a_flag_is_named_as_it_was_typed(self) -> None:
        with pytest.raises(InvalidRequest, match="--port must be"):
            read_settings({}, {"port": "x"})

    def test_a_secret_that_could_be_guessed_signs_nothing(self) -> None:
        for short in ("s" * 31, f"short,{'l' * 32}"):
            with pytest.raises(InvalidRequest, match="at least 32 characters") as refused:
                read_settings({"TURNKEEP_SECRET_KEYS": short})
            assert short not in refused.value.detail
        # What such a secret encrypted before can still be read, but it verifies no token.
        long, other, short = "l" * 32, "o" * 32, "short"
        settings = read_settings({"TURNKEEP_SECRET_KEYS": f"{long},{short},{other}"})
        assert secret_keys(settings) == (long, short, other)
        assert signing_secrets(settings) == (long, other)

    @pytest.mark.parametrize("kept", ["", "short"])
    def test_nor_does_one_in_the_data_directory(self, tmp_path: Path, kept: str) -> None:
        (tmp_path / SECRET_KEYS).write_text(kept)
        with pytest.raises(InvalidRequest, match="at least 32 characters"):
            signing_secrets(Settings(data_dir=tmp_path))

    def test_a_bad_secret_is_not_repeated(self) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read_settings({"TURNKEEP_BOOTSTRAP_KEY": "two words"})
        assert "two words" not in refused.value.detail
        with pytest.raises(InvalidRequest) as refused:
            read_settings({"TURNKEEP_DATABASE_URL": "mysql://me:hidden@db/x"})
        assert "hidden" not in refused.value.detail


class TestSecrets:
    def test_they_are_masked(self) -> None:
        settings = Settings(
            bootstrap_key="hidden1",
            secret_keys=("hidden2", "hidden3"),
            database_url="postgresql://me:hidden4@db:5432/x",
            redis_url="redis://:hidden5@cache/0",
        )
        assert "hidden" not in repr(settings)
        assert "hidden" not in str(settings)
        assert "postgresql://me:***@db:5432/x" in repr(settings)

    def test_an_address_without_a_password_stays(self) -> None:
        for text in ("sqlite:///x.db", "redis://cache/0", "not an address", "http://[bad"):
            assert mask_url(text) == text


class TestTheReference:
    @pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
    def test_it_has_every_setting_with_its_default_and_flag(self, variable: Variable) -> None:
        row = re.search(rf"^\| `{variable.name}` \|.*$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
        assert row is not None, f"{variable.name} is not in {REFERENCE.name}"
        shown = variable.shown_default
        assert shown in row[0].replace("`", ""), f"{variable.name}: {shown} is not in {row[0]}"

    def test_it_names_no_setting_that_does_not_exist(self) -> None:
        named = set(re.findall(r"`(TURNKEEP_[A-Z_]+)`", REFERENCE.read_text(encoding="utf-8")))
        assert named <= {variable.name for variable in VARIABLES} | {"TURNKEEP_CONFIG"}
