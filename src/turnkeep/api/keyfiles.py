"""Secrets that live in the data directory: the local service key, the signing secrets, and sign-in links.

Each file is made once, whole, with mode 0600; of several processes that make it at once, one wins and all read it.
"""

import hashlib
import os
import secrets
from pathlib import Path

from turnkeep.clock import Clock, system_clock
from turnkeep.config import Settings
from turnkeep.errors import StorageFull, Unavailable

LOCAL_KEY = "local.key"
SECRET_KEYS = "secret.keys"
SIGNIN = "signin"
SIGNIN_SECONDS = 24 * 3600


def new_service_key() -> str:
    """`tk_` and 32 random bytes."""
    return "tk_" + secrets.token_urlsafe(32)


def hash_key(key: str) -> bytes:
    """What is stored of a key. It is random and long, so a plain hash is enough."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def local_key(data_dir: Path) -> str:
    """The service key of this data directory, made on first use."""
    return _kept(data_dir / LOCAL_KEY, new_service_key())


def signing_secrets(settings: Settings) -> tuple[str, ...]:
    """The operator's secrets, or the one made once into the data directory."""
    return settings.secret_keys or (_kept(settings.data_dir / SECRET_KEYS, secrets.token_urlsafe(48)),)


class SigninLinks:
    """Tokens that sign a browser in, each exactly once, for any worker that shares the data directory."""

    def __init__(self, data_dir: Path, *, clock: Clock = system_clock) -> None:
        self._folder = data_dir / SIGNIN
        self._clock = clock

    def make(self, *, seconds: float = SIGNIN_SECONDS) -> str:
        token = secrets.token_urlsafe(24)
        _write_once(self._file(token), str(self._clock() + int(seconds * 1000)))
        return token

    def spend(self, token: str) -> bool:
        """True for exactly one caller, before it expires. Removing the file is what spends it."""
        file = self._file(token)
        try:
            expires_at = int(file.read_text(encoding="ascii"))
            file.unlink()
        except (FileNotFoundError, ValueError):
            return False
        return self._clock() < expires_at

    def forget_expired(self) -> None:
        for file in self._folder.glob("*") if self._folder.is_dir() else ():
            try:
                if int(file.read_text(encoding="ascii")) <= self._clock():
                    file.unlink()
            except (FileNotFoundError, ValueError):
                continue

    def _file(self, token: str) -> Path:
        return self._folder / hash_key(token).hex()


def make_folder(folder: Path) -> None:
    """The data directory, for its owner alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise Unavailable(f"The folder {folder} cannot be made: {exc.strerror}. Set TURNKEEP_DATA_DIR.") from exc


def _kept(file: Path, value: str) -> str:
    if not file.exists():
        _write_once(file, value)
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as exc:
        raise Unavailable(f"{file} cannot be read: {exc.strerror}.") from exc


def _write_once(file: Path, value: str) -> None:
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
