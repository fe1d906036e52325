"""Credentials at rest: sealed, bound to their org, and readable after a change of keys."""

import pytest

from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec, SecretPlace, with_secrets
from turnkeep.tools.vault import SecretUnreadable, Vault

ORG = OrgId("org_1")
SECRET = "Bearer äöü 🔑"

SPEC = AgentSpec(
    name="A",
    tools=("look", {"type": "http", "name": "t", "url": "https://example.com", "headers": {"Authorization": SECRET}}),
    mcp_servers=(
        {"name": "m", "url": "https://example.com", "headers": {"X-Key": SECRET}},
        {"name": "c", "command": "x", "env": {"KEY": SECRET}},
    ),
    environment={"variables": {"TOKEN": SECRET}, "setup_script": "true"},
)


class TestASealedText:
    def test_is_opened_by_the_same_keys(self) -> None:
        for text in ("", SECRET, "x" * 100_000, "tks1.looks-sealed"):
            assert Vault(["k"]).open(ORG, Vault(["k"]).seal(ORG, text)) == text

    def test_never_looks_the_same(self) -> None:
        vault = Vault(["k"])
        assert vault.seal(ORG, SECRET) != vault.seal(ORG, SECRET)

    def test_survives_a_change_of_keys(self) -> None:
        sealed = Vault(["old"]).seal(ORG, SECRET)
        assert Vault(["new", "old"]).open(ORG, sealed) == SECRET
        again = Vault(["new", "old"]).seal(ORG, SECRET)
        assert Vault(["new"]).open(ORG, again) == SECRET
        with pytest.raises(SecretUnreadable):
            Vault(["new"]).open(ORG, sealed)

    def test_is_renewed_only_where_the_first_key_does_not_open_it(self) -> None:
        old, both = Vault(["old"]), Vault(["new", "old"])
        sealed = old.seal(ORG, SECRET)
        assert old.renew(ORG, sealed) == sealed
        renewed = both.renew(ORG, sealed)
        assert Vault(["new"]).open(ORG, renewed) == SECRET
        assert both.renew(ORG, renewed) == renewed
        assert Vault(["new"]).open(ORG, both.renew(ORG, SECRET)) == SECRET
        with pytest.raises(SecretUnreadable):
            Vault(["other"]).renew(ORG, sealed)

    def test_of_another_org_is_not_opened(self) -> None:
        vault = Vault(["k"])
        with pytest.raises(SecretUnreadable):
            vault.open(OrgId("org_2"), vault.seal(ORG, SECRET))

    def test_that_was_changed_is_not_opened(self) -> None:
        vault = Vault(["k"])
        sealed = vault.seal(ORG, SECRET)
        for spoiled in (sealed[:-4], sealed[:8] + "AAAA" + sealed[12:], "tks1.", "tks1.%", "tks1.ä"):
            with pytest.raises(SecretUnreadable):
                vault.open(ORG, spoiled)

    def test_needs_a_key(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            Vault([])


class TestAnAgentsSecrets:
    def test_are_all_found(self) -> None:
        places: list[str] = []

        def note(place: SecretPlace, text: str) -> str:
            places.append(str(place))
            return text

        with_secrets(SPEC, note)
        assert places == [
            "tools.t.headers.Authorization",
            "mcp_servers.m.headers.X-Key",
            "mcp_servers.c.env.KEY",
            "environment.TOKEN",
        ]

    def test_are_nowhere_in_a_sealed_spec(self) -> None:
        vault = Vault(["k"])
        sealed = with_secrets(SPEC, lambda _, text: vault.seal(ORG, text))
        assert SECRET not in str(sealed)
        assert vault.open_spec(ORG, sealed) == SPEC
