"""The certificate of a deployment's server."""

from pathlib import Path

from cryptography import x509


def test_the_servers_certificate_is_signed_and_names_its_address(folder: Path) -> None:
    authority = x509.load_pem_x509_certificate((folder / "ca" / "ca.crt").read_bytes())
    server = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
