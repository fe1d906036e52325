"""Signatures: what is written does not change, because tokens and addresses outlive an upgrade."""

from collections.abc import Callable

import pytest

from turnkeep.api.identity.tokens import Claims, UserTokens
from turnkeep.engine.sandbox.runner_client import GatewayTokens
from turnkeep.files.signed_urls import UrlSigner
from turnkeep.ids import KeyId, OrgId, TurnId, UserId, WorkspaceId
from turnkeep.signed_values import SigningKeys

SECRETS = ["current secret", "old secret ä"]
EXPIRES = 4_102_444_800_000
CLAIMS = Claims(
    org=OrgId("org_1"),
    ws=WorkspaceId("ws_1"),
    user=UserId("user_1"),
    role="member",
    exp=EXPIRES,
    key=KeyId("key_1"),
    rpm=5,
)
ENCODED_CLAIMS = (
    "eyJvcmciOiJvcmdfMSIsIndzIjoid3NfMSIsInVzZXIiOiJ1c2VyXzEiLCJyb2xlIjoibWVtYmVyIiwiZXhwIjo0MTAyNDQ0ODAwMDAwLCJrZXki"
    "OiJrZXlfMSIsInJwbSI6NX0"
)


class TestFormats:
    def test_user_tokens(self) -> None:
        tokens = UserTokens(SECRETS)
        token = f"tku_{ENCODED_CLAIMS}.pXT8ZuEnNS4ZP3Za7nR6FzuP1aJiFL1MdFFUVPOX7XQ"
        assert tokens.sign(CLAIMS) == token
        assert tokens.verify(token) == CLAIMS

    def test_addresses(self) -> None:
        path = "/v1/files/file_1/content"
        address = UrlSigner(SECRETS).sign("PUT", path, org_id=OrgId("org_1"), expires_at=EXPIRES, facts={"size": 5})
        assert address == (
            f"{path}?org=org_1&size=5&expires=4102444800000&kid=4b827368e4b5"
            "&signature=EBFtln1sLvLIvB1z9xb1J1YAKHROw1SQ_8lb3VgrbEg"
        )

    def test_gateway_tokens(self) -> None:
        assert GatewayTokens(SECRETS).make(TurnId("turn_1"), 2, expires_at=EXPIRES) == (
            "tkg_turn_1.2.4102444800000.fb86c31b191eb1f48c60185c8c61c4b5732924bc435c3076a1d1ed7fedde1458"
        )


class TestSigningKeys:
    def test_the_first_secret_signs_and_all_verify(self) -> None:
        old, both = SigningKeys(["old"], purpose="tests"), SigningKeys(["new", "old"], purpose="tests")
        assert both.is_signed(b"message", old.sign(b"message"))
        assert not old.is_signed(b"message", both.sign(b"message"))

    def test_a_named_key_is_the_only_one_that_counts(self) -> None:
        old, both = SigningKeys(["old"], purpose="tests"), SigningKeys(["new", "old"], purpose="tests")
        assert both.is_signed(b"message", old.sign(b"message"), key_id=old.key_id)
        assert not both.is_signed(b"message", old.sign(b"message"), key_id=both.key_id)
        assert not both.is_signed(b"message", old.sign(b"message"), key_id="0" * 12)

    def test_a_signature_holds_for_one_message_and_one_purpose(self) -> None:
        keys = SigningKeys(["secret"], purpose="tests")
        assert not keys.is_signed(b"another message", keys.sign(b"message"))
        assert not SigningKeys(["secret"], purpose="others").is_signed(b"message", keys.sign(b"message"))

    @pytest.mark.parametrize("change", [str.upper, lambda text: text + " ", lambda text: text + "=", lambda _: "ä"])
    def test_a_signature_is_written_one_way_only(self, change: Callable[[str], str]) -> None:
        keys = SigningKeys(["secret"], purpose="tests", encode=bytes.hex)
        assert not keys.is_signed(b"message", change(keys.sign(b"message")))

    def test_needs_a_secret(self) -> None:
        with pytest.raises(ValueError, match="at least one secret"):
            SigningKeys([], purpose="tests")
