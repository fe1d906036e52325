"""Knowledge: pages, tables and texts of files, which users write and import and which models search and cite.

- `tools.py` has the native tools that the runtime registers, and what they share: checked arguments, results within the
  limit, numbered sources.
- `table_rows.py` converts rows, filters and sort order to the types of a table's columns.
- `csv_files.py` reads and writes CSV, and imports a CSV file into a table, all of it or nothing.
- `file_texts.py` keeps the text of each file; `extraction.py` is the confined process that reads PDF and Office files.
  It needs the extra `turnkeep[documents]`, and says so about a file that it cannot read without it.

Rows, indexes and permissions belong to the store (`store.ports.KnowledgeStore`). This package knows no HTTP, no SQL and
no bucket; the bytes of a file come through a small protocol in `file_texts.py`. Read `tools.py` first.
"""
