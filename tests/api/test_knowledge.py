"""Pages, tables and rows over HTTP: who may, CSV in and out, and what is refused."""

import asyncio
import csv
import io
from typing import Any

import msgspec
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of
from turnkeep.knowledge import csv_files

Json = Any
CSV = {"content-type": "text/csv"}
COLUMNS = [{"name": "Name", "type": "text"}, {"name": "Price", "type": "number"}, {"name": "Since", "type": "date"}]

BAD_QUESTIONS: list[dict[str, str]] = [
    {"filter": "nonsense"},
    {"filter": "{}"},
    {"filter": '[{"column":"Nope","value":1}]'},
    {"filter": '[{"column":"Price","op":"like","value":1}]'},
    {"filter": '[{"column":"Price","value":"cheap"}]'},
    {"filter": '[{"column":"Price","op":"contains","value":"1"}]'},
    {"filter": '[{"column":"Price","op":"in","value":3}]'},
    {"filter": '[{"column":"Price","op":"gt"}]'},
    {"filter": '[{"column":"Since","op":"gt","value":"yesterday"}]'},
    {"filter": "[" * 5000},
    {"filter": '[{"column":"Price","value":1}' + ',{"column":"Price","value":1}' * 10 + "]"},
    {"sort": "Nope"},
    {"sort": "--Price"},
    {"cursor": "x"},
    {"q": "a", "cursor": "WyJhIl0"},
    {"format": "xml"},
    {"format": "csv", "q": "x"},
    {"format": "csv", "from_row": "2"},
    {"from_row": "0"},
    {"from_row": "1000000000"},
    {"from_row": "2", "q": "x"},
    {"from_row": "2", "sort": "Price"},
]
BAD_ROWS: list[Json] = [
    {"Nope": 1},
    {"Price": "a lot"},
    {"Price": True},
    {"Since": "31.12.2024"},
    {"Since": "2024-02-30"},
    {"Name": []},
    {"Name": "x" * 32_769},
]
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "'=1", "''=1", "\t=1", "'", "'quoted'", "a=b"]
NO_TABLES: list[tuple[str | bytes, str]] = [
    ("Name,Price\na,1,extra\n", "Line 2 has 3 cells"),
    ("Name,Price\na,1\nb\n", "Line 3 has 1 cells"),
    ("Name,Price\na,cheap\n", "Line 2: 'cheap' in the column 'Price'"),
    ("Name,Nope\na,1\n", "no column 'Nope'"),
    ("Name,name\na,b\n", "twice"),
    ("Name,\na,b\n", "no name"),
    ("", "empty"),
    ("\n\n", "empty"),
    ('Name,Price\n"never ends,1\n', "does not end"),
    ('Name,Price\n"a"b,1\n', "no CSV"),
    ("Name\n" + "x" * 200_000 + "\n", "a cell has over"),
    (b"Name\n" + b"x" * 10_000_000 + b"\n", "Line 2 has over"),
    (b'Name\n"' + (b"x" * 1000 + b"\n") * 10_000 + b'"\n', "a cell has over"),
    (b"Name\ncaf\xe9\n", "Line 2 of the file is not utf-8"),
    (b"Name\r\n" + b"caf\xc3\xa9\r\n" * 20_000 + b"\xe9\n" + b"x\n" * 9, "Line 20002 of the file is not utf-8"),
    (b"\xe9\nx\n", "Line 1 of the file is not utf-8"),
    (b"\xff\xfeN\x00a\x00m\x00e\x00\n\x00\x00\xd8", "Line 2 of the file is not utf-16"),
    (b"Name\na\0b\n", "NUL"),
    (b"PK\x03\x04rest", "spreadsheet"),
    ("Name\nfine\n" + "x" * 40_000 + "\n", "Line 3: A cell in the column 'Name' has 40,000 characters"),
]
ENCODINGS: list[tuple[bytes, str | None]] = [
    ("Name\ncafé\n".encode("utf-8-sig"), None),
    ("Name\ncafé\n".encode("utf-16"), None),
    (b"Name\ncaf\xe9\n", "windows-1252"),
]


async def a_table(service: Client, name: str = "Spices", rows: list[Json] | None = None) -> str:
    response = await service.post("/v1/tables", json={"name": name, "columns": COLUMNS})
    assert response.status_code == 201, response.text
    table_id: str = response.json()["id"]
    if rows:
        assert (await service.post(f"/v1/tables/{table_id}/rows", json={"rows": rows})).status_code == 201
    return table_id


async def add(service: Client, table_id: str, name: str, *, key: str, kind: str = "json") -> Json:
    """One row, in either way."""
    if kind == "csv":
        return await send_csv(service, table_id, f"Name\n{name}\n", **{"idempotency-key": key})
    rows = {"rows": [{"Name": name}]}
    return await service.post(f"/v1/tables/{table_id}/rows", json=rows, headers={"idempotency-key": key})


async def names_in(service: Client, table_id: str) -> list[str]:
    return [row["values"]["Name"] for row in (await service.read(f"/v1/tables/{table_id}/rows"))["data"]]


async def send_csv(service: Client, table_id: str, text: str | bytes, **headers: str) -> Json:
    content = text if isinstance(text, bytes) else text.encode()
    return await service.post(f"/v1/tables/{table_id}/rows", content=content, headers=CSV | headers)


class TestPages:
    @both
    async def test_are_written_by_admins_and_read_by_members(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        admin = await server.user(service, "root", role="admin")
        made = (await admin.post("/v1/pages", json={"title": "Refunds", "content": "Within *30* days."})).json()
        assert (await user.read(f"/v1/pages/{made['id']}"))["content"] == "Within *30* days."
        assert code_of(await user.post("/v1/pages", json={"title": "Mine"})) == (403, "forbidden")
        changed = (await admin.patch(f"/v1/pages/{made['id']}", json={"content": "Never."})).json()
        assert (changed["title"], changed["content"]) == ("Refunds", "Never.")
        replaced = (await admin.put(f"/v1/pages/{made['id']}", json={"title": "Returns"})).json()
        assert (replaced["title"], replaced["content"]) == ("Returns", "")
        assert [page["title"] for page in (await user.read("/v1/pages"))["data"]] == ["Returns"]
        assert (await admin.delete(f"/v1/pages/{made['id']}")).status_code == 204
        assert code_of(await user.get(f"/v1/pages/{made['id']}")) == (404, "not_found")

    async def test_are_searched_in_parts_with_a_snippet(self, service: Client, user: Client) -> None:
        for number in range(3):
            await service.post("/v1/pages", json={"title": f"P{number}", "content": "# Spices\n\nSaffron grows here."})
        first = await user.read("/v1/pages", params={"q": "saffron", "limit": 2})
        rest = await user.read("/v1/pages", params={"q": "saffron", "limit": 2, "cursor": first["next_cursor"]})
        assert {page["title"] for page in first["data"] + rest["data"]} == {"P0", "P1", "P2"}
        assert first["data"][0]["snippet"] == "# Spices Saffron grows here."
        assert first["data"][0]["place"] == "Spices"
        assert rest["next_cursor"] is None


class TestTables:
    @both
    async def test_hold_rows_by_the_names_of_their_columns(self, service: Client, user: Client) -> None:
        table_id = await a_table(service)
        path = f"/v1/tables/{table_id}/rows"
        added = await service.post(path, json={"rows": [{"name": "Salt", "Price": "2.5"}, {"Since": "2024-02-29"}]})
        assert added.json()["rows"] == 2
        assert added.json()["table"]["row_count"] == 2
        rows = (await user.read(path))["data"]
        assert rows[0]["values"] == {"Name": "Salt", "Price": 2.5, "Since": None}
        changed = await service.patch(f"{path}/1", json={"values": {"PRICE": 3}})
        assert changed.json()["values"] == {"Name": "Salt", "Price": 3, "Since": None}
        replaced = await service.put(f"{path}/1", json={"values": {"Name": "Mint"}})
        assert replaced.json()["values"] == {"Name": "Mint", "Price": None, "Since": None}
        assert (await service.delete(f"{path}/2")).status_code == 204
        assert [row["row"] for row in (await user.read(path))["data"]] == [1]
        assert code_of(await user.post(path, json={"rows": [{}]})) == (403, "forbidden")

    async def test_columns_are_added_and_renamed(self, service: Client) -> None:
        table_id = await a_table(service, rows=[{"Name": "Salt", "Price": 2}])
        columns = [
            {"name": "Title", "was": "Name"},
            {"name": "Price", "type": "number"},
            {"name": "Since", "type": "date"},
            {"name": "Live", "type": "boolean"},
        ]
        changed = await service.patch(f"/v1/tables/{table_id}", json={"columns": columns, "description": "All of them"})
        assert [column["name"] for column in changed.json()["columns"]] == ["Title", "Price", "Since", "Live"]
        row = await service.read(f"/v1/tables/{table_id}/rows/1")
        assert row["values"] == {"Title": "Salt", "Price": 2, "Since": None, "Live": None}
        assert code_of(await service.patch(f"/v1/tables/{table_id}", json={"columns": columns[:1]})) == (
            422,
            "invalid_request",
        )
        kept = [{"name": "Title"}, *columns[1:3]]
        assert code_of(await service.patch(f"/v1/tables/{table_id}", json={"columns": kept})) == (409, "conflict")

    async def test_are_filtered_sorted_and_searched_in_parts(self, service: Client, user: Client) -> None:
        rows = [{"Name": f"Spice {n}", "Price": n, "Since": f"2024-01-{n:02}"} for n in range(1, 21)]
        path = f"/v1/tables/{await a_table(service, rows=rows)}/rows"
        asked = {"filter": '[{"column":"price","op":"gt","value":5}]', "sort": "-Price", "limit": "10"}
        first = await user.read(path, params=asked)
        rest = await user.read(path, params=asked | {"cursor": first["next_cursor"]})
        prices = [row["values"]["Price"] for row in first["data"] + rest["data"]]
        assert prices == list(range(20, 5, -1))
        dates = {"filter": '[{"column":"Since","op":"le","value":"2024-01-02"}]'}
        assert len((await user.read(path, params=dates))["data"]) == 2
        assert next(row["row"] for row in (await user.read(path, params={"q": "spice 7"}))["data"]) == 7
        plain = await user.read(path, params={"limit": 15})
        following = await user.read(path, params={"limit": 15, "cursor": plain["next_cursor"]})
        assert [row["row"] for row in plain["data"] + following["data"]] == list(range(1, 21))

    @both
    async def test_are_listed_from_a_row_on_whether_or_not_it_is_there(self, service: Client, user: Client) -> None:
        path = f"/v1/tables/{await a_table(service, rows=[{'Price': n} for n in range(1, 31)])}/rows"
        for number in (11, 12):
            await service.delete(f"{path}/{number}")
        first = await user.read(path, params={"from_row": 11, "limit": 5})
        assert [row["row"] for row in first["data"]] == [13, 14, 15, 16, 17]
        following = await user.read(path, params={"from_row": 11, "limit": 5, "cursor": first["next_cursor"]})
        assert [row["row"] for row in following["data"]] == [18, 19, 20, 21, 22]
        beyond = await user.read(path, params={"from_row": 999_999_999})
        assert beyond == {"data": [], "next_cursor": None}

    async def test_a_bad_question_says_what_is_wrong_with_it(self, service: Client) -> None:
        table_id = await a_table(service, rows=[{"Name": "Salt"}])
        for params in BAD_QUESTIONS:
            response = await service.get(f"/v1/tables/{table_id}/rows", params=params)
            assert code_of(response) == (422, "invalid_request"), params

    async def test_a_row_that_does_not_fit_is_refused_with_all_beside_it(self, service: Client) -> None:
        table_id = await a_table(service)
        for row in BAD_ROWS:
            response = await service.post(f"/v1/tables/{table_id}/rows", json={"rows": [{"Name": "fine"}, row]})
            assert code_of(response) == (422, "invalid_request"), row
        assert (await service.read(f"/v1/tables/{table_id}"))["row_count"] == 0


class TestAddingAgain:
    """`Idempotency-Key`, on rows as JSON and as CSV alike."""

    @both
    @pytest.mark.parametrize("kind", ["json", "csv"])
    async def test_under_the_same_key_adds_once(self, service: Client, kind: str) -> None:
        table_id = await a_table(service)
        first, again = [await add(service, table_id, "Salt", key="k", kind=kind) for _ in range(2)]
        assert (first.status_code, first.json()["rows"]) == (201, 1)
        assert (again.status_code, again.json()) == (201, first.json())
        assert await names_in(service, table_id) == ["Salt"]

    @both
    @pytest.mark.parametrize("kind", ["json", "csv"])
    async def test_other_rows_under_the_same_key_are_a_conflict(self, service: Client, kind: str) -> None:
        table_id = await a_table(service)
        await add(service, table_id, "Salt", key="k", kind=kind)
        for other, name in (("json", "Mint"), ("csv", "Mint"), ({"json": "csv", "csv": "json"}[kind], "Salt")):
            refused = await add(service, table_id, name, key="k", kind=other)
            assert code_of(refused) == (409, "idempotency_conflict")
            assert refused.headers["x-should-retry"] == "false"
            assert "turn_id" not in refused.json()
        assert await names_in(service, table_id) == ["Salt"]

    @pytest.mark.parametrize("kind", ["json", "csv"])
    async def test_keys_differ_by_their_last_character(self, service: Client, kind: str) -> None:
        table_id = await a_table(service)
        for number in (1, 2):
            key = "k" * 254 + str(number)
            assert (await add(service, table_id, f"n{number}", key=key, kind=kind)).status_code == 201
        assert await names_in(service, table_id) == ["n1", "n2"]
        for key in ("", "k" * 256):
            assert code_of(await add(service, table_id, "n3", key=key, kind=kind)) == (422, "invalid_request")

    async def test_is_one_request_however_its_json_is_spelled(self, service: Client) -> None:
        path = f"/v1/tables/{await a_table(service)}/rows"
        headers = {"idempotency-key": "k", "content-type": "application/json"}
        for text in ('{"rows":[{"Name":"Salt","Price":2}]}', '{"rows": [ {"Price": 2, "Name": "S\\u0061lt"} ]}'):
            assert (await service.post(path, content=text, headers=headers)).json()["first_row"] == 1

    async def test_is_answered_also_when_the_columns_have_changed_since(self, service: Client) -> None:
        table_id = await a_table(service)
        first = await add(service, table_id, "Salt", key="k")
        renamed = [{"name": "Title", "type": "text", "was": "Name"}, *COLUMNS[1:]]
        changed = await service.patch(f"/v1/tables/{table_id}", json={"columns": renamed})
        assert changed.status_code == 200, changed.text
        again = await add(service, table_id, "Salt", key="k")
        assert (again.status_code, again.json()["first_row"]) == (201, first.json()["first_row"])

    async def test_a_key_is_the_tables_and_its_senders_own(self, server: ApiServer, service: Client) -> None:
        one, two = await a_table(service), await a_table(service, "Other")
        assert (await add(service, one, "Salt", key="k")).status_code == 201
        assert (await add(service, two, "Mint", key="k")).status_code == 201
        for_ann = await server.client(service.key, Turnkeep_User="ann")
        assert (await add(for_ann, one, "Anise", key="k")).status_code == 201
        assert await names_in(service, one) == ["Salt", "Anise"]

    async def test_an_import_that_failed_leaves_its_key_unused(self, service: Client) -> None:
        table_id = await a_table(service)
        headers = {"idempotency-key": "k"}
        assert (await send_csv(service, table_id, "Name,Price\na,1\nb\n", **headers)).status_code == 422
        assert (await send_csv(service, table_id, "Name,Price\na,1\nb,2\n", **headers)).json()["rows"] == 2

    async def test_an_import_with_progress_lines_gives_the_same_result(self, service: Client) -> None:
        table_id = await a_table(service)
        headers = {"idempotency-key": "k", "accept": "application/x-ndjson"}
        ends = [(await send_csv(service, table_id, "Name\na\nb\n", **headers)).text.splitlines()[-1] for _ in range(2)]
        assert ends[0] == ends[1]
        assert '"rows":2' in ends[0]
        other = (await send_csv(service, table_id, "Name\nc\n", **headers)).text
        assert '"code":"idempotency_conflict"' in other
        assert await names_in(service, table_id) == ["a", "b"]


class TestCsv:
    @both
    async def test_goes_in_and_comes_out_the_same(self, service: Client, user: Client) -> None:
        table_id = await a_table(service)
        text = 'Name,Price,Since\r\n"Salt, fine",2.5,2024-01-01\r\n"two\nlines",-3,\r\nмята,,2024-12-31\r\n'
        added = await send_csv(service, table_id, text)
        assert added.status_code == 201, added.text
        assert added.json()["rows"] == 3
        response = await user.get(f"/v1/tables/{table_id}/rows", headers={"accept": "text/csv"})
        assert response.headers["content-type"] == "text/csv; charset=utf-8"
        assert "attachment" in response.headers["content-disposition"]
        assert response.text == text

    async def test_makes_a_table_whose_columns_are_found_out(self, service: Client) -> None:
        text = (
            "id;amount;day;at;ok;note\n007;1.5;2024-01-01;2024-01-01T10:00:00+02:00;true;=1+1\n008;-2;2024-01-02;;no;\n"
        )
        made = await service.post("/v1/tables", params={"name": "Found"}, content=text, headers=CSV)
        assert made.status_code == 201, made.text
        types = {column["name"]: column["type"] for column in made.json()["columns"]}
        assert types == {
            "id": "text",
            "amount": "number",
            "day": "date",
            "at": "datetime",
            "ok": "boolean",
            "note": "text",
        }
        rows = (await service.read(f"/v1/tables/{made.json()['id']}/rows"))["data"]
        assert rows[0]["values"] == {
            "id": "007",
            "amount": 1.5,
            "day": "2024-01-01",
            "at": "2024-01-01T08:00:00.000Z",
            "ok": True,
            "note": "=1+1",
        }

    async def test_a_formula_leaves_as_text_and_comes_back_as_it_was(self, service: Client) -> None:
        table_id = await a_table(service, rows=[{"Name": cell, "Price": -1} for cell in FORMULAS])
        exported = (await service.get(f"/v1/tables/{table_id}/rows?format=csv")).text
        for shown, price, _ in list(csv.reader(io.StringIO(exported)))[1:]:
            assert price == "-1"
            assert not shown.startswith(("=", "+", "-", "@", "\t"))
        again = await a_table(service, "Again")
        assert (await send_csv(service, again, exported)).status_code == 201
        rows = (await service.read(f"/v1/tables/{again}/rows"))["data"]
        assert [row["values"]["Name"] for row in rows] == FORMULAS

    async def test_what_is_no_table_is_refused_whole_and_the_line_is_named(self, service: Client) -> None:
        table_id = await a_table(service, rows=[{"Name": "kept"}])
        for text, told in NO_TABLES:
            response = await send_csv(service, table_id, text)
            assert code_of(response) == (422, "invalid_request"), response.text
            assert told in response.json()["detail"]
        assert (await service.read(f"/v1/tables/{table_id}"))["row_count"] == 1
        assert (await send_csv(service, table_id, "Name\nfine\n")).status_code == 201

    async def test_other_encodings_are_read_when_they_say_so(self, service: Client) -> None:
        table_id = await a_table(service)
        for content, charset in ENCODINGS:
            kind = "text/csv" if charset is None else f"text/csv; charset={charset}"
            assert (await send_csv(service, table_id, content, **{"content-type": kind})).status_code == 201
        rows = (await service.read(f"/v1/tables/{table_id}/rows"))["data"]
        assert [row["values"]["Name"] for row in rows] == ["café"] * len(ENCODINGS)

    async def test_a_failed_import_of_a_new_table_leaves_none(self, service: Client) -> None:
        response = await service.post("/v1/tables", params={"name": "Bad"}, content="a,b\n1\n", headers=CSV)
        assert code_of(response) == (422, "invalid_request")
        assert code_of(await service.post("/v1/tables", content="a\n1\n", headers=CSV)) == (422, "invalid_request")
        assert (await service.read("/v1/tables"))["data"] == []

    async def test_tells_how_it_goes_on_and_how_it_ended(
        self, service: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_files, "WRITTEN_AT_ONCE", 10)
        table_id = await a_table(service)
        text = "Name,Price\n" + "".join(f"r{n},{n}\n" for n in range(35))
        response = await send_csv(service, table_id, text, accept="application/x-ndjson")
        lines = [msgspec.json.decode(line) for line in response.text.splitlines()]
        imported = [line["rows"] for line in lines if line.get("stage") == "imported"]
        assert imported == [10, 20, 30, 35]
        assert (lines[-1]["type"], lines[-1]["rows"], lines[-1]["table"]["row_count"]) == ("result", 35, 35)
        response = await send_csv(service, table_id, "Name\na\nb,c\n", accept="application/x-ndjson")
        last = msgspec.json.decode(response.text.splitlines()[-1])
        assert (last["type"], last["code"]) == ("error", "invalid_request")
        assert "Line 3" in last["message"]

    async def test_who_leaves_in_the_middle_takes_the_import_back(
        self, service: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(csv_files, "WRITTEN_AT_ONCE", 1)
        table_id = await a_table(service)
        text = "Name,Price\n" + "".join(f"r{n},{n}\n" for n in range(5_000))
        headers = CSV | {"accept": "application/x-ndjson"}
        async with service.stream("POST", f"/v1/tables/{table_id}/rows", content=text, headers=headers) as response:
            async for line in response.aiter_lines():
                if "imported" in line:
                    break
        async with asyncio.timeout(30):
            while (await send_csv(service, table_id, "Name\nfine\n")).status_code == 409:
                pass
        rows = (await service.read(f"/v1/tables/{table_id}/rows"))["data"]
        assert [row["values"]["Name"] for row in rows] == ["fine"]
