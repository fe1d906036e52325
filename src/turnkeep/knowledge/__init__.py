"""Knowledge: pages, tables and files as things to write, import, search and cite."""
