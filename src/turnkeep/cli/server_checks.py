"""The check-up of a server that runs: what it tells itself."""

import time
from email.utils import parsedate_to_datetime

import msgspec

from turnkeep.cli.findings import SECONDS, Trouble, files_found
from turnkeep.filebag.sweeping import BagReport
from turnkeep_client.discovery import ServerAddress
from turnkeep_client.wire import ModelName, Page

SKEW_SECONDS = 5.0


class ServerChecks:
    """What the server itself tells."""

    def __init__(self, place: ServerAddress) -> None:
        self._place = place

    async def is_ready(self) -> str:
        status, _, _ = await self._get("/healthz")
        if status != 200:
            raise Trouble(f"something else answers at {self._place.url}", "Check --url or TURNKEEP_URL.")
        status, _, body = await self._get("/readyz")
        if status != 200:
            raise Trouble(f"{self._place.url} is alive but not ready: {_detail(body)}", "See its log.")
        return f"{self._place.url} answers"

    async def knows_key(self) -> str:
        if self._place.key is None:
            raise Trouble("no key is known here", "Set TURNKEEP_KEY, or use the server's --data-dir.")
        status, _, body = await self._get("/v1/usage")
        if status == 401:
            raise Trouble("the server does not know this key", "Make one with `turnkeep keys create`.")
        if status != 200:
            raise Trouble(_detail(body), "See the server's log.")
        return "is valid"

    async def models(self) -> str:
        status, _, body = await self._get("/v1/models")
        if status != 200:
            raise Trouble(_detail(body), "A key that is valid can list them.")
        names = [model.id for model in msgspec.json.decode(body, type=Page[ModelName]).data]
        if names in ([], ["demo"]):
            raise Trouble(
                "only the demo model, which is made of rules",
                "Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENAI_BASE_URL where the server runs, and restart it.",
                state="warn",
            )
        return f"{len(names)} can be reached: {', '.join(names[:5])}{', …' if len(names) > 5 else ''}"

    async def files(self) -> str | None:
        status, _, body = await self._get("/v1/operator/files")
        if status == 403:
            return None  # for the operator's key alone
        if status != 200:
            raise Trouble(_detail(body), "See the server's log.")
        return files_found(msgspec.json.decode(body, type=BagReport))

    async def clock(self) -> str:
        _, headers, _ = await self._get("/healthz")
        said = headers.get("date")
        if said is None:
            raise Trouble("the server does not tell its time", "A proxy may remove the header Date.", state="warn")
        skew = time.time() - parsedate_to_datetime(said).timestamp()
        if abs(skew) > SKEW_SECONDS:
            raise Trouble(
                f"differs from the server's by {abs(skew):.0f} s", "Let both keep time (NTP); tokens expire by it."
            )
        return "agrees with the server's"

    async def _get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        import httpx

        headers = {"authorization": f"Bearer {self._place.key}"} if self._place.key and path.startswith("/v1") else {}
        try:
            async with httpx.AsyncClient(timeout=SECONDS, trust_env=not self._place.is_loopback) as http:
                answer = await http.get(self._place.url + path, headers=headers)
        except httpx.HTTPError as exc:
            raise Trouble(
                f"nothing answers at {self._place.url} ({str(exc) or type(exc).__name__})",
                "Start it with `turnkeep serve`." if self._place.is_loopback else "Is the address right, and is it up?",
            ) from exc
        return answer.status_code, dict(answer.headers), answer.content


def _detail(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body, type=dict)["detail"])
    except (msgspec.MsgspecError, KeyError):
        return "it did not say why"
