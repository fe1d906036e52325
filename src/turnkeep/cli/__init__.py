"""The command line: `turnkeep COMMAND`.

`main.py` holds the table of commands and imports only the one that was asked for, so that `turnkeep --help` stays fast.
Every other module imports what is slow (a database driver, the API, Rich) where it is used.

- Commands that talk to a server: `chat`, `conversations`, `transfer` (export, import), `agents`, `pages`, `tables`,
  `account` (models, usage). `server_options.py` gives them options and a client; `lookup.py` finds things by name.
- Commands of the operator: `serve`, `sandbox`, `doctor`, `database` (status, migrate), `tenants` (orgs, keys).
  `database.py` also opens the database for them, or asks the server that owns it; `setting_options.py` makes an option
  of each setting; `doctor_checks.py` checks each part of an installation.
- Output: everything is printed through `output.py`, or drawn with Rich through `screen.py`. Both clean it first,
  because names, titles and answers come from other people. The linter refuses `print` elsewhere.

A command parses its options, calls, and prints. Rules of the product belong to the server, and the wire to the client
package. Read `main.py` first, then a short command such as `account.py`.
"""
