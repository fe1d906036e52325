"""`turnkeep pages` and `turnkeep tables`: imports are exported unchanged, and a bad file is refused with its line."""

import json
from pathlib import Path

from tests.cli.conftest import Shell


class TestPages:
    def test_are_written_found_shown_and_deleted(self, shell: Shell, tmp_path: Path) -> None:
        file = tmp_path / "handbook.md"
        file.write_text("# The Handbook\n\nSaffron is kept in the cellar.\n")
        made = shell.json("pages", "write", file)
        assert made["title"] == "The Handbook"
        assert [page["id"] for page in shell.lines("pages", "list", "saffron cellar")] == [made["id"]]
        assert shell.ok("pages", "show", "the handbook") == file.read_text()
        file.write_text("Nothing any more.\n")
        assert "is written" in shell.ok("pages", "write", file, "--page", "The Handbook")
        assert shell.lines("pages", "list", "saffron") == []
        assert "is deleted" in shell.ok("pages", "delete", made["id"])
        missing = shell.here("pages", "show", "The Handbook")
        assert missing.returncode == 1
        assert "No page is called" in missing.stderr


class TestTables:
    def test_csv_is_imported_searched_and_exported(self, shell: Shell, tmp_path: Path) -> None:
        file = tmp_path / "spices.csv"
        text = "Name,Price,Since\r\nSaffron,9.5,2024-01-01\r\nSalt,2,2023-01-01\r\nPepper,12,2024-06-01\r\n"
        file.write_bytes(text.encode())
        table = shell.json("tables", "import", file)
        assert (table["name"], table["row_count"]) == ("spices", 3)
        assert [column["type"] for column in table["columns"]] == ["text", "number", "date"]
        found = shell.lines(
            "tables", "rows", "spices", "--where", "Price>=9.5", "--where", "Since>2023-06-01", "--sort=-Price"
        )
        assert [row["values"]["Name"] for row in found] == ["Pepper", "Saffron"]
        assert [row["row"] for row in shell.lines("tables", "rows", "spices", "salt")] == [2]
        assert "Saffron\t9.5\t2024-01-01" in shell.ok("tables", "rows", table["id"])
        assert "3 rows are in" in shell.ok("tables", "import", file, "--table", "spices")
        out = tmp_path / "out.csv"
        shell.ok("tables", "export", "spices", out)
        assert out.read_bytes().decode() == text + text.split("\r\n", 1)[1]
        assert shell.ok("tables", "export", "spices").splitlines()[0] == "Name,Price,Since"
        refused = shell.here("tables", "export", "spices", tmp_path / "nowhere" / "out.csv")
        assert (refused.returncode, "cannot be written" in refused.stderr) == (1, True), refused.stderr
        assert "is deleted" in shell.ok("tables", "delete", "spices")

    def test_a_bad_file_is_refused_with_its_line(self, shell: Shell, tmp_path: Path) -> None:
        file = tmp_path / "bad.csv"
        file.write_text("a,b\n1,2\n3\n")
        done = shell.here("tables", "import", file)
        assert done.returncode == 1
        assert "Line 3 has 1 cells" in done.stderr
        assert [one for one in shell.lines("tables", "list") if one["name"] == "bad"] == []
        for arguments in (("tables", "import", tmp_path / "none.csv"), ("tables", "rows", "bad", "--where", "Price")):
            assert shell.here(*arguments).returncode in {1, 2}

    def test_the_import_shows_its_progress(self, shell: Shell, tmp_path: Path) -> None:
        file = tmp_path / "many.csv"
        file.write_text("Name,Price\n" + "".join(f"spice {n},{n}\n" for n in range(3_000)))
        with shell.terminal("tables", "import", file) as terminal:
            terminal.expect("importing")
            terminal.expect("3,000 rows are in")
        listed = [json.loads(line) for line in shell.ok("tables", "list", "--json").splitlines()]
        assert [one["row_count"] for one in listed if one["name"] == "many"] == [3_000]
