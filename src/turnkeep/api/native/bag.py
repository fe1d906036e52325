"""The bag as a turn's sandbox sees it: fetched as a zip by a signed address, and added to with a one-time token."""

from starlette.types import ASGIApp

from turnkeep.api import file_wire as wire
from turnkeep.api.http.downloads import SAFE_HEADERS, disposition, streamed
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response
from turnkeep.api.identity.service_keys import hash_key
from turnkeep.api.turn_tokens import bearer, sandbox_turn_id
from turnkeep.errors import NotFound, Unauthorized
from turnkeep.filebag.forms import file_parts
from turnkeep.filebag.keys import Folder
from turnkeep.filebag.signing import UrlSigner
from turnkeep.ids import OrgId, TurnId

OUTPUT_FILES = 100
"""So many files one turn may write back."""

endpoints = Endpoints("sandbox")

ONE = "/v1/sandbox/{turn_id}"


def bag_path(signer: UrlSigner, *, org_id: OrgId, turn_id: TurnId, attempt: int, expires_at: int) -> str:
    """Where the sandbox of this attempt fetches the bag, until then: a path, to be put behind the server's address."""
    path = ONE.format(turn_id=turn_id) + "/bag.zip"
    return signer.sign("GET", path, org_id=org_id, expires_at=expires_at, facts={"attempt": attempt})


@endpoints.add(
    "GET",
    f"{ONE}/bag.zip",
    policy=Policy.SIGNED,
    replies=(Reply(status=200, meaning="The files of the bag", type=bytes, media_type="application/zip"),),
    errors=(404, 503),
)
async def read_bag(call: Call[Nothing, Nothing]) -> ASGIApp:
    """The bag of a running turn as a zip, for whoever has the signed address that was made for its sandbox."""
    method, path = call.target.split(" ", 1)
    grant = call.runtime.addresses.verify(method, path, call.query_string)
    turn_id = sandbox_turn_id(call)
    try:
        bag = await call.runtime.store.turn_bag(turn_id, int(grant.facts["attempt"]))
    except NotFound as exc:
        raise Unauthorized("This address is not valid any more: its turn has ended.") from exc
    if bag.org_id != grant.org_id:
        raise Unauthorized("This address is not valid.")
    archive = call.runtime.bag.archive(bag.files)
    headers = {
        **SAFE_HEADERS,
        "content-type": "application/zip",
        "content-disposition": disposition("bag.zip"),
        "cache-control": "no-store",
    }
    return await streamed(200, headers, archive.size, archive.blocks)


@endpoints.add(
    "POST",
    f"{ONE}/results",
    policy=Policy.TURN,
    raw_body="multipart/form-data",
    replies=(Reply(status=201, meaning="The files, as they are called in the bag", type=wire.Files),),
    errors=(404, 413, 422, 503, 507),
)
async def write_back(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Add what a turn's sandbox made to the bag. The upload token is spent with it, and not by a form that fails."""
    turn_id = sandbox_turn_id(call)
    token_hash, folder = await _folder(call, turn_id)
    parts = file_parts(
        call.headers.get("content-type", ""),
        body_chunks(call.receive),
        max_files=OUTPUT_FILES,
        advice="Nothing was kept and the token is still good, for one form: send fewer, or pack them into an archive.",
    )
    files = await call.runtime.bag.write_back(token_hash, folder, parts)
    return json_response(wire.Files(data=[wire.File.of(file) for file in files]), status=201)


async def _folder(call: Call[Nothing, Nothing], turn_id: TurnId) -> tuple[bytes, Folder]:
    """The token's hash and the bag it opens. Looked at before anything is read; spent when the rows are made."""
    refusal = Unauthorized("This needs the upload token of the turn: `Authorization: <token>`. Each is good for once.")
    token_hash = hash_key(bearer(call))
    binding = await call.runtime.store.peek_token(token_hash, "upload")
    if binding is None or binding.turn_id != turn_id:
        raise refusal
    try:
        bag = await call.runtime.store.turn_bag(turn_id, binding.attempt)
    except NotFound as exc:
        raise refusal from exc
    return token_hash, Folder(bag.workspace_id, bag.conversation_id)
