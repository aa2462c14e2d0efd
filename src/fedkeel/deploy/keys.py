"""Certificates and node keys for a deployment, made by the `cryptography` package that Flower depends on.

    ca.crt, ca.key            signs the server's certificate; devices trust it
    server.pem, server.key    the server's certificate
    node-0, node-0.pub        the key of a node; the server registers the public half

A private file is readable by its owner alone, from the moment it exists.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.flower.orders import flower

DAYS = 365
LOOPBACK = ("localhost", "127.0.0.1")


def write_private(file: Path, content: bytes) -> None:
    """Write a file that only its owner may read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_private(Path(folder, "key"), b"secret")
    ...     oct(Path(folder, "key").stat().st_mode & 0o777)
    '0o600'
    """
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)


def make_certificates(folder: Path, hosts: Sequence[str] = LOOPBACK) -> None:
    """Write a new CA and a server certificate for these names and addresses."""
    flower()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    ca, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    named = _name("fedkeel deployment CA")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates
    root = _builder(named, named, ca).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    root = root.add_extension(usage, critical=True)
    root = root.add_extension(x509.SubjectKeyIdentifier.from_public_key(ca.public_key()), critical=False)
    issued = _builder(_name(hosts[0]), named, server)
    issued = issued.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    issued = issued.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())
    issued = issued.add_extension(issuer, critical=False)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, builder, key in (("ca.crt", root, ca), ("server.pem", issued, server)):
        (folder / name).write_bytes(builder.sign(ca, hashes.SHA384()).public_bytes(_encoding().PEM))
        write_private(folder / f"{name.partition('.')[0]}.key", _private(key, "PKCS8"))


def make_node_key(file: Path) -> None:
    """Write the key of a node, and its public half to `file`.pub, in the format of OpenSSH."""
    flower()
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import PublicFormat

    key = ec.generate_private_key(ec.SECP384R1())
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(file, _private(key, "OpenSSH"))
    public = key.public_key().public_bytes(_encoding().OpenSSH, PublicFormat.OpenSSH)
    file.with_name(file.name + ".pub").write_bytes(public + b"\n")


def _encoding() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding


def _private(key: Any, form: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import NoEncryption, PrivateFormat

    content: bytes = key.private_bytes(_encoding().PEM, getattr(PrivateFormat, form), NoEncryption())
    return content


def _name(text: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _host(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: Any, issuer: Any, key: Any) -> Any:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
    return made.not_valid_after(now + datetime.timedelta(days=DAYS))
