"""Client certificates of nodes, as attacks on a platform that speaks TLS: a token alone is worth nothing."""

import asyncio
import hashlib
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from server.tests.support.agents import MachineKeys, encoded
from server.tests.support.server_process import FIRST_ADMIN, PASSWORD, ServerGroup, ServerProcess
from tests.support.certificates import TestAuthority
from tests.support.waiting import until
from tools.ports import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

CLAIMS = "/api/v1/agent/claims"
CERTIFICATES = "/api/v1/agent/certificates"
ALLOCATIONS = "/api/v1/agent/allocations"
OPEN = httpx.Limits(keepalive_expiry=None)


@dataclass
class CertifiedMachine(MachineKeys):
    """A machine that asks for client certificates; each is in a file of its own."""

    directory: Path = Path()
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    def asking(self, signer: MachineKeys | None = None) -> dict[str, str]:
        """A request for a certificate, with the proof of this machine's node key or of another one."""
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nod_anything")])
        request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, SHA256())
        text = request.public_bytes(Encoding.PEM).decode()
        digest = hashlib.sha256(text.encode()).hexdigest()
        signed = f"mooring-certificate-v1\n{digest}\n{self.signing_key}"
        return {"certificate_request": text, "proof": encoded((signer or self).signing.sign(signed.encode()))}

    def store(self, certificate: str) -> Path:
        path = self.directory / f"{self.name}.pem"
        private = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.write_bytes(private + certificate.encode())
        return path


@dataclass
class Site:
    """A platform with TLS, its admin, and clients with and without certificates."""

    served: ServerProcess
    authority: TestAuthority
    directory: Path
    admin: httpx.AsyncClient

    def client(self, certificate: Path | None = None, token: str = "") -> httpx.AsyncClient:
        context = self.authority.trusted
        if certificate is not None:
            context.load_cert_chain(certificate)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.AsyncClient(base_url=self.served.url, verify=context, headers=headers, timeout=50, limits=OPEN)

    async def machine(self) -> tuple[CertifiedMachine, Path, str]:
        """A node with its certificate and its token."""
        machine = CertifiedMachine(directory=self.directory)
        asked = machine.asking()
        body: dict[str, Any] = {
            "certificate_request": asked["certificate_request"],
            "certificate_proof": asked["proof"],
        }
        async with self.client() as client:
            enrolled = await machine.enrol(client, self.admin, **body)
            return machine, machine.store(enrolled["certificate"]), await machine.token(client)


async def open_site(fleet: ServerGroup, directory: Path, **settings: str) -> Site:
    authority = TestAuthority(directory)
    served = await fleet.start("serve", **authority.issue().environment, **settings)
    site = Site(served, authority, directory, httpx.AsyncClient())
    body = {"email": FIRST_ADMIN, "one_time_code": served.code, "new_password": PASSWORD}
    async with site.client() as caller:
        token = (await caller.post("/api/v1/sign-in", json=body)).raise_for_status().json()["token"]
    await site.admin.aclose()
    site.admin = site.client(token=token)
    return site


async def claim(client: httpx.AsyncClient) -> tuple[int, Any]:
    answer = await client.post(CLAIMS, json={"free": 1})
    return answer.status_code, answer.json().get("code")


async def dial_relay(site: Site, url: str, certificate: Path | None, token: str) -> int:
    """The status of a node's dial to the relay; no visit waits there, so 404 means that it was let in."""
    context, parts = site.authority.trusted, urlsplit(url)
    if certificate is not None:
        context.load_cert_chain(certificate)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        head = f"GET /tunnels/tsk_1 HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
        writer.write(f"{head}Upgrade: mooring-tunnel\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        return int((await reader.readuntil(b"\r\n")).split()[1])
    finally:
        writer.close()


async def test_a_nodes_token_counts_only_with_its_own_certificate(fleet: ServerGroup, tmp_path: Path) -> None:
    site = await open_site(fleet, tmp_path)
    one, certificate, token = await site.machine()
    _, certificate_of_other, token_of_other = await site.machine()
    foreign = TestAuthority(tmp_path, "Foreign authority").issue(one.node_id)
    (tmp_path / "foreign.pem").write_bytes(foreign.key.read_bytes() + foreign.certificate.read_bytes())
    async with site.client(certificate, token) as own:
        assert await claim(own) == (200, None)
    required = (403, "certificate_required")
    for shown, with_token in ((None, token), (certificate_of_other, token), (certificate, token_of_other)):
        async with site.client(shown, with_token) as thief:
            assert await claim(thief) == required
            assert (await thief.get(ALLOCATIONS)).status_code == 403
    async with site.client(tmp_path / "foreign.pem", token) as forged:
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            await claim(forged)
    denied = (await site.admin.get("/api/v1/platform/audit", params={"limit": "50"})).json()["items"]
    assert any("belongs to another node" in str(each.get("reason")) for each in denied)


async def test_a_stolen_token_gets_no_certificate(fleet: ServerGroup, tmp_path: Path) -> None:
    site = await open_site(fleet, tmp_path)
    machine, _, token = await site.machine()
    thief = CertifiedMachine(directory=tmp_path, signing=machine.signing)
    rows = {
        "the thief's own node key": (thief.asking(MachineKeys()), 403),
        "another request than was signed": ({**thief.asking(), "proof": machine.asking()["proof"]}, 403),
        "not a request": ({**machine.asking(), "certificate_request": "nonsense"}, 403),
    }
    async with site.client(token=token) as client:
        for body, status in rows.values():
            assert (await client.post(CERTIFICATES, json=body)).status_code == status
        renewed = await client.post(CERTIFICATES, json=machine.asking())
        assert renewed.status_code == 201, renewed.text
        named = x509.load_pem_x509_certificate(renewed.json()["certificate"].encode()).subject
        assert named.rfc4514_string() == f"CN={machine.node_id}"


async def test_the_certificate_of_a_retired_node_is_revoked_with_it(fleet: ServerGroup, tmp_path: Path) -> None:
    site = await open_site(fleet, tmp_path)
    machine, certificate, token = await site.machine()
    async with site.client(certificate, token) as client:
        assert await claim(client) == (200, None)
        node = f"/api/v1/platform/nodes/{machine.node_id}"
        retired = await site.admin.post(f"{node}/retire", json={"reason": "it was stolen"})
        assert retired.status_code == 200, retired.text
        assert await claim(client) == (401, "unauthenticated")
        assert (await client.post(CERTIFICATES, json=machine.asking())).status_code == 401
        assert (await machine.exchange(client)).status_code == 401


async def test_an_expired_certificate_is_renewed_by_the_nodes_key(fleet: ServerGroup, tmp_path: Path) -> None:
    site = await open_site(fleet, tmp_path, MOORING_NODE_CERTIFICATE_HOURS=str(3 / 3_600))
    machine, certificate, token = await site.machine()
    ends_at = time.time() + 3
    async with site.client(certificate, token) as open_connection:
        assert await claim(open_connection) == (200, None)
        await until(lambda: time.time() > ends_at)
        # A connection that outlives its certificate is refused, and so is a new one.
        assert await claim(open_connection) == (403, "certificate_required")
    async with site.client(certificate, token) as late:
        with pytest.raises((httpx.HTTPError, ssl.SSLError)):
            await claim(late)
    async with site.client(token=token) as returned:
        renewed = await returned.post(CERTIFICATES, json=machine.asking())
        assert renewed.status_code == 201, renewed.text
    async with site.client(machine.store(renewed.json()["certificate"]), token) as own:
        assert await claim(own) == (200, None)


async def test_behind_a_proxy_the_certificates_can_be_turned_off(fleet: ServerGroup, tmp_path: Path) -> None:
    site = await open_site(fleet, tmp_path, MOORING_NODE_CERTIFICATES="off")
    machine = CertifiedMachine(directory=tmp_path)
    asked = machine.asking()
    body: dict[str, Any] = {"certificate_request": asked["certificate_request"], "certificate_proof": asked["proof"]}
    async with site.client() as client:
        assert (await machine.enrol(client, site.admin, **body))["certificate"] is None
        token = await machine.token(client)
    async with site.client(token=token) as own:
        assert await claim(own) == (200, None)
        assert (await own.post(CERTIFICATES, json=asked)).status_code == 409


async def test_the_relay_takes_a_nodes_dial_only_with_its_certificate(fleet: ServerGroup, tmp_path: Path) -> None:
    port = free_port()
    site = await open_site(fleet, tmp_path, MOORING_RELAY_LISTEN_PORT=str(port))
    _, certificate, token = await site.machine()
    _, certificate_of_other, _ = await site.machine()
    relay = f"https://127.0.0.1:{port}"
    assert await dial_relay(site, relay, certificate, token) == 404
    assert await dial_relay(site, relay, None, token) == 403
    assert await dial_relay(site, relay, certificate_of_other, token) == 403
