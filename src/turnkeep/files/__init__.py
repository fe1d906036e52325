"""Files of conversations and workspaces: their bytes, names, media types and images.

A file is a row in the store and an object on a disk or in a bucket. This package writes both in the right order (the
object first, then the row), reads them back, and removes objects that no row names. All files of one conversation are
its *bag*; files that a user keeps beyond a conversation are the workspace's Files.

- `bag.py` is the entry point: receive, promise, complete, read, archive, save. It inspects bytes while they arrive.
- `multipart.py` parses HTTP forms.
- `names.py` and `media_types.py` decide which names and types are accepted; `keys.py` builds object keys from ids.
- `ports.py` is the interface of an object store; `objects.py` implements it for a local disk, `bucket.py` for S3 (the
  extra `turnkeep[s3]`).
- `orphans.py` compares rows with objects, and removes what uploads left behind.
- `zip_files.py` streams archives out, and checks archives that come from outside.
- `images.py` makes thumbnails, and images that every model accepts.
- `signed_urls.py` signs upload and download addresses.

The package knows no HTTP library, no route and no turn. Permissions are checked by the store. It reaches rows only
through `store.ports.FileStore`. Read `bag.py` first.
"""
