"""Files with a secret in them: each is made once, whole, with mode 0600.

Of several processes that make one at the same time, one wins and all read what it wrote.
"""

import os
import secrets
from pathlib import Path

from turnkeep.config import SECRET_CHARS, Settings
from turnkeep.errors import InvalidRequest, StorageFull, Unavailable

SECRET_KEYS = "secret.keys"


def secret_keys(settings: Settings) -> tuple[str, ...]:
    """The operator's secrets, or the one made once into the data directory. The first encrypts, all decrypt."""
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
    """Those that verify; the first signs. A short one could be guessed from what it signed, so it verifies nothing."""
    first, *others = secret_keys(settings)
    return (first, *(secret for secret in others if len(secret) >= SECRET_CHARS))


def make_folder(folder: Path) -> None:
    """The data directory, for its owner alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise Unavailable(f"The folder {folder} cannot be made: {exc.strerror}. Set TURNKEEP_DATA_DIR.") from exc


def kept(file: Path, value: str) -> str:
    """What the file says; `value` is written into it if it is not there."""
    if not file.exists():
        write_once(file, value)
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise Unavailable(f"{file} cannot be read: {exc.strerror}.") from exc


def write_once(file: Path, value: str) -> None:
    """Write the whole file under another name, then link it into place; the first one stays."""
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
