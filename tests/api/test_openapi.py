"""The OpenAPI document: public names, and an example of every body that fits its schema."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from turnkeep_client import wire

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    file = tmp_path_factory.mktemp("openapi") / "openapi.json"
    subprocess.run([sys.executable, ROOT / "scripts/openapi_document.py", file], check=True, timeout=60)
    found: Json = msgspec.json.decode(file.read_bytes())
    return found


def bodies(document: Json) -> Iterator[tuple[str, Json]]:
    """Every body of a request or a response, with where it stands."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                yield f"{method} {path} {media_type}", content
            for status, response in operation["responses"].items():
                for media_type, content in response.get("content", {}).items():
                    yield f"{method} {path} {status} {media_type}", content
    for name, response in document["components"]["responses"].items():
        for media_type, content in response["content"].items():
            yield f"{name} {media_type}", content


class TestNames:
    def test_schemas_have_public_names(self, document: Json) -> None:
        names = list(document["components"]["schemas"])
        assert names == sorted(names)
        assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z]+", name)] == []

    def test_they_are_the_names_of_the_client(self, document: Json) -> None:
        items = {name.removesuffix("List") for name in document["components"]["schemas"]}
        assert {name for name in items if not hasattr(wire, name)} == {"BagReport"}

    def test_every_reference_leads_somewhere(self, document: Json) -> None:
        text = msgspec.json.encode(document).decode()
        for kind, name in set(re.findall(r"#/components/(\w+)/(\w+)", text)):
            assert name in document["components"][kind]


class TestExamples:
    def test_every_body_has_one_that_fits_its_schema(self, document: Json) -> None:
        seen = 0
        for place, content in bodies(document):
            assert "example" in content, place
            schema = {**content["schema"], "components": document["components"]}
            Draft202012Validator(schema).validate(content["example"])
            seen += 1
        assert seen > 100


class TestRequired:
    def test_a_response_names_what_the_server_always_writes(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        assert set(schemas["Usage"]["required"]) == set(schemas["Usage"]["properties"])
        assert "queued_turns" not in schemas["Conversation"]["required"]

    def test_a_request_names_what_the_caller_must_send(self, document: Json) -> None:
        schemas = document["components"]["schemas"]
        assert schemas["NewToken"]["required"] == ["user"]
        assert "3600" in schemas["NewToken"]["properties"]["ttl_seconds"]["description"]

    def test_no_schema_has_a_default_which_type_generators_take_for_presence(self, document: Json) -> None:
        for schema in document["components"]["schemas"].values():
            assert not any("default" in each for each in schema["properties"].values())
