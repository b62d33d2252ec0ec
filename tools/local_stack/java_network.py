"""Java behind a proxy: the proxy and the certificates that everything else here uses."""

from __future__ import annotations

import contextlib
import os
import re
import urllib.request
import warnings
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tools.local_stack import paths

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_PASSWORD = "changeit"  # noqa: S105 - Java wants one; the certificates are public


def network_options() -> list[str]:
    """Options for a Java that fetches something."""
    return [*_proxy_options(), *_certificate_options()]


def _proxy_options() -> list[str]:
    """Java does not read HTTPS_PROXY."""
    proxy = urlsplit(urllib.request.getproxies().get("https", ""))
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 80}"]


def _certificate_options() -> list[str]:
    """Java has certificates of its own, and does not read SSL_CERT_FILE."""
    bundle = os.environ.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    store = paths.JARS / "certificates.p12"
    if not bundle or not _write_store(bundle, store):
        return []
    return [
        f"-Djavax.net.ssl.trustStore={store}",
        f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}",
        "-Djavax.net.ssl.trustStoreType=PKCS12",
    ]


def _write_store(bundle: str, store: Path) -> bool:
    """Put the certificates of a PEM file into a store that Java reads; whether it could be done."""
    # Only here: most commands never fetch anything, and this library takes a while to load.
    from cryptography.hazmat.primitives.serialization import (  # noqa: PLC0415
        BestAvailableEncryption,
        pkcs12,
    )

    try:
        certificates = _certificates(Path(bundle).read_bytes())
    except OSError:
        return False
    named = [pkcs12.PKCS12Certificate(c, str(n).encode()) for n, c in enumerate(certificates)]
    store.parent.mkdir(parents=True, exist_ok=True)
    encryption = BestAvailableEncryption(_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_java_truststore(named, encryption))
    return bool(named)


def _certificates(pem: bytes) -> list[Certificate]:
    """The certificates of a bundle, without those that are too old-fashioned to be read."""
    from cryptography import x509  # noqa: PLC0415

    readable = []
    for block in _BLOCK.findall(pem):
        with warnings.catch_warnings(), contextlib.suppress(ValueError):
            warnings.simplefilter("ignore")
            readable.append(x509.load_pem_x509_certificate(block))
    return readable
