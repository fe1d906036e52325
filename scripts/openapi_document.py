"""`python scripts/openapi_document.py FILE` writes the OpenAPI document of this checkout, for the page's types."""

import sys
from pathlib import Path

from turnkeep.api.app import all_endpoints
from turnkeep.api.identity.service_keys import SigninLinks
from turnkeep.api.identity.tokens import UserTokens
from turnkeep.api.openapi import document
from turnkeep.api.telemetry.metrics import Metrics


def write_document(file: Path) -> None:
    endpoints = all_endpoints(UserTokens(["a secret that signs nothing"]), SigninLinks(Path(), ["secret"]), Metrics())
    file.write_bytes(document(endpoints))


if __name__ == "__main__":
    write_document(Path(sys.argv[1]))
