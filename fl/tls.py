"""Certificates for TLS to workers on other machines."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Optional

import attr
import grpc


class CertificateError(Exception):
    """A certificate that cannot be used; the message is one line for the user."""


@attr.frozen(repr=False)
class Certificates:
    """What this side of a TLS connection has, as PEM.

    Attributes:
        ca: the authorities whose word on the worker's name is taken.
        cert: this side's own certificate, for workers that ask for one.
        key: its private key.
    """

    ca: bytes
    cert: Optional[bytes]
    key: Optional[bytes]

    def credentials(self) -> grpc.ChannelCredentials:
        """The same for gRPC."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)


def read(ca: str, cert: str, key: str) -> Certificates:
    """Reads and checks the files; the last two may be empty together.

    Raises:
        CertificateError: if one cannot be read, is none, or the two do not match.
    """
    made = Certificates(
        ca=_read("worker_ca", ca),
        cert=_read("worker_cert", cert) if cert else None,
        key=_read("worker_key", key) if key else None,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cafile=ca)
    except ssl.SSLError:
        raise CertificateError(
            f"--worker_ca: found no certificate in {ca}, must be a PEM file"
        ) from None
    if cert:
        _check_pair(context, cert, key)
    return made


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CertificateError(f"--{flag}: {path} cannot be read ({reason})") from None


def _check_pair(context: ssl.SSLContext, cert: str, key: str) -> None:
    try:
        # An empty password: a key that wants one must not make us ask on a terminal.
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError):
        raise CertificateError(
            f"--worker_cert: {cert} and --worker_key: {key} must be PEM files of a "
            "certificate and its private key, without a password"
        ) from None
