"""The certificate authorities that this server trusts, for all its HTTPS clients."""

import os
import ssl
from functools import cache

_CA_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
"""Where Linux distributions keep their authorities, for a Python whose OpenSSL was built to look elsewhere."""


@cache
def trusted_tls() -> ssl.SSLContext:
    """The trusted authorities: those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else the system's. Read once: it is slow."""
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if file:
        return ssl.create_default_context(cafile=file)
    if folder:
        return ssl.create_default_context(capath=folder)
    context = ssl.create_default_context()
    if not context.cert_store_stats()["x509_ca"] and ssl.get_default_verify_paths().capath is None:
        found = next(filter(os.path.isfile, _CA_FILES), None)
        if found is not None:
            context.load_verify_locations(found)
    return context
