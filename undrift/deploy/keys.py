"""Certificates for the server and keys for nodes, in the forms that Flower takes."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput

YEARS = 2


def write_certificates(folder: Path, hosts: list[str]) -> list[Path]:
    """A certificate authority of one's own and the server's certificate for these names or addresses."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    if not hosts:
        raise InvalidInput("say under which name nodes find the server, e.g. --host fl.example.org")
    _make(folder)
    now = datetime.now(UTC)
    names = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))  # the operator comes by loopback

    def certificate(subject: str, key: Any, issuer: str, signer: Any, *extensions: Any) -> Any:
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=365 * YEARS))
        )
        for extension, critical in extensions:
            made = made.add_extension(extension, critical)
        return made.sign(signer, hashes.SHA256())

    authority = ec.generate_private_key(ec.SECP384R1())
    server = ec.generate_private_key(ec.SECP384R1())
    ca, own = "undrift certificate authority", hosts[0]
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = certificate(
        ca,
        authority,
        ca,
        authority,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage(x509, signs=True), True),
        (identifier, False),
    )
    leaf = certificate(
        own,
        server,
        ca,
        authority,
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(x509, signs=False), True),
        (x509.SubjectAlternativeName([_alternative(x509, host) for host in names]), False),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), False),
    )
    return [
        _public(folder / "ca.crt", root.public_bytes(_pem())),
        _secret(folder / "ca.key", _private(authority)),
        _public(folder / "server.crt", leaf.public_bytes(_pem())),
        _secret(folder / "server.key", _private(server)),
    ]


def write_node_key(path: Path) -> list[Path]:
    """A node's key, and the public half that is registered with the server."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    _make(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    secret = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    return [_secret(path, secret), _public(path.with_name(f"{path.name}.pub"), public + b"\n")]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        import cryptography  # noqa: F401
    except ImportError as error:
        raise InvalidInput("Flower is not installed: pip install 'undrift[flower]'") from error


def _usage(x509: Any, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem() -> Any:
    from cryptography.hazmat.primitives.serialization import Encoding

    return Encoding.PEM


def _private(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization as s

    return key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())


def _secret(path: Path, content: bytes) -> Path:
    """Readable by its owner only, from its first byte on; never written over."""
    _free(path)
    path.touch(mode=0o600)
    path.write_bytes(content)
    return path


def _public(path: Path, content: bytes) -> Path:
    _free(path)
    path.write_bytes(content)
    return path


def _free(path: Path) -> None:
    if path.exists():
        raise InvalidInput(f"{path} is there already: keep it, or move it away first")
