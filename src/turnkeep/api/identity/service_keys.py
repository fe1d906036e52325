"""Secrets that live in the data directory: the local service key, the signing secrets, and sign-in links."""

import hashlib
import secrets
from pathlib import Path

from turnkeep.clock import Clock, system_clock
from turnkeep.secretfiles import SECRET_KEYS, kept, make_folder, signing_secrets, write_once

__all__ = [
    "LOCAL_KEY",
    "SECRET_KEYS",
    "SigninLinks",
    "hash_key",
    "local_key",
    "make_folder",
    "new_service_key",
    "signing_secrets",
]

LOCAL_KEY = "local.key"
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
    return kept(data_dir / LOCAL_KEY, new_service_key())


class SigninLinks:
    """Tokens that sign browsers in until they expire, for any worker that shares the data directory."""

    def __init__(self, data_dir: Path, *, clock: Clock = system_clock) -> None:
        self._folder = data_dir / SIGNIN
        self._clock = clock

    def make(self, *, seconds: float = SIGNIN_SECONDS) -> str:
        token = secrets.token_urlsafe(24)
        write_once(self._file(token), str(self._clock() + int(seconds * 1000)))
        return token

    def admits(self, token: str) -> bool:
        """Whether the token was made here and has not expired. It stays good: people open a link again."""
        try:
            expires_at = int(self._file(token).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return False
        return self._clock() < expires_at

    def forget_all(self) -> None:
        """A server that starts prints a new link; those of earlier ones are worth nothing then."""
        for file in self._folder.glob("*") if self._folder.is_dir() else ():
            file.unlink(missing_ok=True)

    def _file(self, token: str) -> Path:
        return self._folder / hash_key(token).hex()
