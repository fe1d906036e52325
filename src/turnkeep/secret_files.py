"""Files that hold a secret. Each is created once, complete, with mode 0600.

If several processes create one at the same time, one of them succeeds and all read what it wrote.
"""

import os
import secrets
from pathlib import Path

from turnkeep.config import SECRET_CHARS, Settings
from turnkeep.errors import InvalidRequest, StorageFull, Unavailable

SECRET_KEYS = "secret.keys"


def secret_keys(settings: Settings) -> tuple[str, ...]:
    """The operator's secrets, or the one in the data directory, created once. The first encrypts, all decrypt."""
    if settings.secret_keys:
        return settings.secret_keys
    file = settings.data_dir / SECRET_KEYS
    secret = kept(file, secrets.token_urlsafe(48))
    if len(secret) < SECRET_CHARS:
        raise InvalidRequest(
            f"The secret in {file} must have at least {SECRET_CHARS} characters. Bring the file back from a "
            "backup, or remove it to get a new secret; then users sign in again, and agents lose their credentials."
        )
    return (secret,)


def signing_secrets(settings: Settings) -> tuple[str, ...]:
    """The secrets that verify; the first signs. A short one could be guessed from a signature, so it is left out."""
    first, *others = secret_keys(settings)
    return (first, *(secret for secret in others if len(secret) >= SECRET_CHARS))


def make_folder(folder: Path) -> None:
    """Create the data directory, readable by its owner only."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise Unavailable(f"The folder {folder} cannot be made: {exc.strerror}. Set TURNKEEP_DATA_DIR.") from exc


def kept(file: Path, value: str) -> str:
    """The content of the file, which is created with `value` if it does not exist."""
    if not file.exists():
        write_once(file, value)
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise Unavailable(f"{file} cannot be read: {exc.strerror}.") from exc


def write_once(file: Path, value: str) -> None:
    """Write the file under another name, then link it to its own name. An existing file is not replaced."""
    make_folder(file.parent)
    draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, value.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(draft, file)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    except OSError as exc:
        raise StorageFull(f"{file} cannot be written: {exc.strerror}.") from exc
