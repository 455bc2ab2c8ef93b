"""Certificates for the server and keys for nodes, in the forms that Flower takes."""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from undrift.core.errors import InvalidInput

try:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise InvalidInput("Flower is not installed: pip install 'undrift[flower]'") from error

YEARS = 2
AUTHORITY = "undrift certificate authority"
OWNER, EVERYONE = 0o600, 0o644  # who may read a file


def write_certificates(folder: Path, hosts: list[str]) -> list[Path]:
    """A certificate authority and the server's certificate for these names or addresses."""
    if not hosts:
        raise InvalidInput("say under which name nodes find the server, e.g. --host fl.example.org")
    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))  # the operator comes by loopback
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _certificate(AUTHORITY, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, SHA256())
    )
    leaf = (
        _certificate(hosts[0], server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in names]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, SHA256())
    )
    pem = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    return [
        _write(folder / "ca.crt", root.public_bytes(Encoding.PEM), EVERYONE),
        _write(folder / "ca.key", authority.private_bytes(*pem), OWNER),
        _write(folder / "server.crt", leaf.public_bytes(Encoding.PEM), EVERYONE),
        _write(folder / "server.key", server.private_bytes(*pem), OWNER),
    ]


def write_node_key(path: Path) -> list[Path]:
    """A node's key, and the public half that is registered with the server."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [_write(path, secret, OWNER), _write(path.with_name(f"{path.name}.pub"), public + b"\n", EVERYONE)]


def _certificate(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """What the certificates of the authority and of the server have in common."""
    named, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, AUTHORITY))
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=named,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=365 * YEARS),
    )


def _usage(signs: bool) -> x509.KeyUsage:
    others = (
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(
        digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, **dict.fromkeys(others, False)
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(path: Path, content: bytes, mode: int) -> Path:
    """A new file, with its mode from the first byte on; one that is there, or a link, is never written over."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError as error:
        raise InvalidInput(f"{path} is there already: keep it, or move it away first") from error
    with os.fdopen(file, "wb") as open_file:
        open_file.write(content)
    return path
