"""A certificate authority for one federation: it signs the server's certificate. Also: a key for each site."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from spherefed.errors import ConfigError, install_extra

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ModuleNotFoundError as missing:
    raise ConfigError(f"certificates need more packages: {install_extra('flower')}") from missing

YEARS = 2
"""How long certificates are valid."""
CURVE = ec.SECP384R1()
"""The elliptic curve that Flower's node authentication requires."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority that signs the server's certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def new(name: str) -> "Authority":
        key = ec.generate_private_key(CURVE)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} authority")])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        built = (
            _valid(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return Authority(key, built.sign(key, hashes.SHA384()))

    def certify(self, hosts: list[str]) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        """A key and a certificate for a server with these host names and IP addresses."""
        key = ec.generate_private_key(CURVE)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        built = (
            _valid(subject, self.certificate.subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(issuer, critical=False)
        )
        return key, built.sign(self.key, hashes.SHA384())


def write_private(path: Path, key: ec.EllipticCurvePrivateKey, *, openssh: bool = False) -> None:
    """Write the key without a passphrase, in a file that only its owner can read."""
    form = serialization.PrivateFormat.OpenSSH if openssh else serialization.PrivateFormat.PKCS8
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_site_key(path: Path, name: str) -> bytes:
    """Write a new private key that authenticates a site; return the public key as one line."""
    key = ec.generate_private_key(CURVE)
    write_private(path, key, openssh=True)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return line + f" {name}\n".encode()


def public_key_pem(path: Path) -> bytes:
    """Read a site's public key (one line, the format of `ssh-keygen`); return it as PEM, as Flower sends it."""
    try:
        found = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path} contains no public key; give a file with one line like 'ecdsa-sha2-nistp384 AAAA… NAME'"
        ) from error
    if not isinstance(found, ec.EllipticCurvePublicKey):
        raise ConfigError(f"{path} has a key of another kind; Flower needs a NIST curve: ssh-keygen -t ecdsa -b 384")
    return found.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _valid(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # the clocks of machines differ
        .not_valid_after(now + timedelta(days=365 * YEARS))
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
