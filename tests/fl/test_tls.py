"""TLS to a worker behind real proxies on this machine, with certificates made here."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Iterator, Optional

import attr
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from programs import free_port, program

from fl import tls, workers
from fl.runtime import Runtime, RuntimeFailure
from fl.tls import CertificateError
from fl.workers import RemoteWorker

WAIT_SECONDS = 20.0

HAPROXY = """
defaults
    mode tcp
    timeout connect 5s
    timeout client 1d
    timeout server 1d
listen worker
    bind 127.0.0.1:{port} ssl crt {folder}/server.pem alpn h2 {asks}
    server tff unix@{socket}
"""
HAPROXY_ASKS = "ca-file {folder}/ca.pem verify required"

NGINX = """
daemon off;
user {user};
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/nginx_body;
    client_max_body_size 0;
    grpc_read_timeout 1d;
    grpc_send_timeout 1d;
    server {{
        listen 127.0.0.1:{port} ssl http2;
        ssl_certificate {folder}/server.pem;
        ssl_certificate_key {folder}/server.pem;
        {asks}
        location / {{ grpc_pass grpc://unix:{socket}; }}
    }}
}}
"""
NGINX_ASKS = "ssl_client_certificate {folder}/ca.pem; ssl_verify_client on;"


@attr.frozen
class Proxy:
    """A program that ends TLS beside a worker.

    Attributes:
        command: how it is started, before the name of its configuration.
        configuration: what that holds.
        asks: the part of it that asks callers for a certificate.
    """

    command: tuple[str, ...]
    configuration: str
    asks: str


PROXIES = {
    "haproxy": Proxy(("haproxy", "-db", "-f"), HAPROXY, HAPROXY_ASKS),
    "nginx": Proxy(("nginx", "-c"), NGINX, NGINX_ASKS),
}
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
EXTENSIONS = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def make_authority(folder: Path, name: str) -> None:
    openssl(
        *("req", "-x509", *NEW_KEY, "-days", "1"),
        *("-subj", f"/CN={name}", "-keyout", str(folder / f"{name}.key")),
        *("-out", str(folder / f"{name}.pem")),
    )


def make_certificate(folder: Path, name: str, authority: str) -> None:
    """A certificate for this machine; the proxies want it in a file with its key."""
    request, extensions = folder / f"{name}.csr", folder / "extensions"
    extensions.write_text(EXTENSIONS)
    openssl(
        *("req", *NEW_KEY, "-subj", f"/CN={name}"),
        *("-keyout", str(folder / f"{name}.key"), "-out", str(request)),
    )
    openssl(
        *("x509", "-req", "-days", "1", "-in", str(request), "-CAcreateserial"),
        *("-CA", str(folder / f"{authority}.pem")),
        *("-CAkey", str(folder / f"{authority}.key")),
        *("-extfile", str(extensions), "-out", str(folder / f"{name}.crt")),
    )
    parts = [(folder / f"{name}.{end}").read_text() for end in ("crt", "key")]
    (folder / f"{name}.pem").write_text("".join(parts))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("the program openssl makes the certificates; there is none")
    folder = tmp_path_factory.mktemp("tls")
    for authority in ("ca", "other_ca"):
        make_authority(folder, authority)
    make_certificate(folder, "server", "ca")
    make_certificate(folder, "client", "ca")
    make_certificate(folder, "stranger", "other_ca")
    return folder


@contextlib.contextmanager
def behind(
    name: str, certificates: Path, folder: Path, asks: bool = True
) -> Iterator[str]:
    """A worker behind a proxy; lends its address."""
    proxy, port, door = PROXIES[name], free_port(), folder / "door"
    if shutil.which(name) is None:
        pytest.skip(f"needs the program {name}")
    text = proxy.configuration.format(
        port=port,
        user=getpass.getuser(),
        folder=certificates,
        socket=door,
        asks=proxy.asks.format(folder=certificates) if asks else "",
    )
    (folder / "configuration").write_text(text)
    with program(f"--socket={door}"):
        running = subprocess.Popen(
            [*proxy.command, str(folder / "configuration")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_for_port(port)
            yield f"127.0.0.1:{port}"
        finally:
            running.terminate()
            running.wait(WAIT_SECONDS)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise AssertionError("the proxy does not listen")


def read(folder: Path, ca: str, own: Optional[str] = None) -> tls.Certificates:
    cert, key = (f"{folder}/{own}.crt", f"{folder}/{own}.key") if own else ("", "")
    return tls.read(f"{folder}/{ca}.pem", cert, key)


@pytest.mark.parametrize("proxy", PROXIES)
def test_computations_through_tls(
    proxy: str, certificates: Path, tmp_path: Path
) -> None:
    """Both sides show certificates; 26 MB each way, the weights of a ResNet9."""
    increase = tff.tensorflow.computation(
        lambda x: x + 1, tff.TensorType(np.float32, [6_500_000])
    )
    with (
        behind(proxy, certificates, tmp_path) as address,
        Runtime([RemoteWorker(address, read(certificates, "ca", "client"))]),
    ):
        assert tf.reduce_all(increase(np.zeros(6_500_000, np.float32)) == 1)


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize(
    ("ca", "own", "what"),
    [
        ("other_ca", "client", "CERTIFICATE_VERIFY_FAILED"),
        ("ca", None, "did not answer"),
        ("ca", "stranger", "did not answer"),
        (None, None, "did not answer"),
    ],
)
def test_whoever_shows_no_right_certificate_is_refused(
    proxy: str,
    ca: Optional[str],
    own: Optional[str],
    what: str,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that others vouch for; no certificate, a stranger's, and no TLS."""
    monkeypatch.setattr(workers, "REACH_SECONDS", 2.0)
    shown = read(certificates, ca, own) if ca else None
    with (
        behind(proxy, certificates, tmp_path) as address,
        pytest.raises(RuntimeFailure, match=what),
    ):
        Runtime([RemoteWorker(address, shown)])


def test_a_worker_may_ask_for_no_certificate(
    certificates: Path, tmp_path: Path
) -> None:
    with (
        behind("haproxy", certificates, tmp_path, asks=False) as address,
        Runtime([RemoteWorker(address, read(certificates, "ca"))]) as runtime,
    ):
        assert runtime.workers[0].check()


@pytest.mark.parametrize(
    ("ca", "cert", "key", "what"),
    [
        ("missing", "", "", r"--worker_ca: .*missing cannot be read \(No such file"),
        ("server.key", "", "", "--worker_ca: found no certificate in"),
        ("extensions", "", "", "--worker_ca: found no certificate in"),
        ("ca.pem", "missing", "client.key", "--worker_cert: .*cannot be read"),
        ("ca.pem", "client.crt", "missing", "--worker_key: .*cannot be read"),
        ("ca.pem", "client.crt", "server.key", "certificate and its private key"),
        ("ca.pem", "extensions", "client.key", "certificate and its private key"),
        ("ca.pem", "client.crt", "locked.key", "without a password"),
    ],
)
def test_files_that_are_no_certificates(
    ca: str, cert: str, key: str, what: str, certificates: Path
) -> None:
    locked = certificates / "locked.key"
    if not locked.exists():
        source = str(certificates / "client.key")
        openssl(
            *("pkey", "-aes128", "-passout", "pass:secret"),
            *("-in", source, "-out", str(locked)),
        )
    paths = [str(certificates / name) if name else "" for name in (ca, cert, key)]
    with pytest.raises(CertificateError, match=what):
        tls.read(*paths)


def test_keys_do_not_show(certificates: Path) -> None:
    """Not in a message, not in a traceback with values."""
    shown = repr(read(certificates, "ca", "client"))
    assert "PRIVATE" not in shown
