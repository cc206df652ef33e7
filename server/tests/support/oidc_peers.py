"""Identity providers for tests: one whose ID tokens are as wrong as a test wants, and a browser's part of a sign-in.

The hostile provider holds its clients to PKCE, the redirect URI and the client's secret, as a strict one does.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
from joserfc import jwk, jwt

CLIENT, SECRET = "mooring", "a secret: of the client"
CONSOLE = {"x-mooring-console": "1"}


@dataclass
class HostileProvider:
    """A provider, and what the next ID token is to be."""

    issuer: str
    key: Any = field(default_factory=lambda: jwk.ECKey.generate_key("P-256", {"kid": "one", "use": "sig"}))
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)  # over those of an honest token
    userinfo: dict[str, Any] = field(default_factory=dict)
    signs: Any = None  # another key than the published one
    header: dict[str, str] = field(default_factory=lambda: {"alg": "ES256", "kid": "one"})
    unsigned: bool = False
    keys_read: int = 0
    last_subject: object = None
    metadata: dict[str, Any] = field(default_factory=dict)  # over what an honest provider says of itself

    def answer(self, method: str, target: str, body: bytes, headers: Any) -> tuple[int, dict[str, Any]]:
        path = urlsplit(target).path
        if path == "/.well-known/openid-configuration":
            named = {name: f"{self.issuer}/{name}" for name in ("authorization_endpoint", "token_endpoint", "jwks_uri")}
            return 200, {"issuer": self.issuer, **named, "userinfo_endpoint": f"{self.issuer}/me"} | self.metadata
        if path == "/jwks_uri":
            self.keys_read += 1
            return 200, {"keys": [self.key.as_dict(private=False)]}
        if path == "/me":
            return 200, {"sub": self.last_subject} | self.userinfo
        if (method, path) == ("POST", "/token_endpoint"):
            return self._token(body, headers)
        return 404, {}

    def code_for(self, authorization_url: str) -> dict[str, str]:
        """Sign somebody in, as the provider's page would: the parameters that the browser takes back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(authorization_url).query).items()}
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def _token(self, body: bytes, headers: Any) -> tuple[int, dict[str, Any]]:
        form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        asked = self.codes.pop(form.get("code", ""), None)
        verifier = form.get("code_verifier", "").encode()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier).digest()).rstrip(b"=").decode()
        basic = base64.b64encode(f"{CLIENT}:a%20secret%3A%20of%20the%20client".encode()).decode()
        if (
            asked is None
            or challenge != asked["code_challenge"]
            or form["redirect_uri"] != asked["redirect_uri"]
            or headers["authorization"] != f"Basic {basic}"
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "opaque", "token_type": "Bearer", "id_token": self._id_token(asked)}

    def _id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        honest = {"iss": self.issuer, "aud": CLIENT, "sub": "subject-1", "iat": now, "exp": now + 300}
        claims = honest | {"nonce": asked["nonce"], "email": "ada@corp.example", "email_verified": True} | self.claims
        self.last_subject = claims["sub"]
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.unsigned:
            parts = ({"alg": "none"}, claims)
            encoded = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts)
            return ".".join((*encoded, ""))
        return str(jwt.encode(self.header, claims, self.signs or self.key, algorithms=["ES256", "HS256"]))


@contextmanager
def hostile_provider() -> Iterator[HostileProvider]:
    """The provider on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            status, document = provider.answer(self.command, self.path, body, self.headers)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    provider = HostileProvider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class SignInAttempt:
    """A browser that began to sign in at a provider."""

    client: httpx.AsyncClient
    provider_id: str
    authorization_url: str
    cookie: str

    async def finish(self, answer: dict[str, str], *, cookie: str | None = None) -> httpx.Response:
        """The browser comes back from the provider with this answer."""
        sent = {"cookie": self.cookie if cookie is None else cookie, "sec-fetch-site": "cross-site"}
        path = f"/api/v1/sign-in/providers/{self.provider_id}/callback"
        return await self.client.get(path, params=answer, headers=sent)


async def begin_sign_in(client: httpx.AsyncClient, provider_id: str, to: str = "/workloads?q=a") -> SignInAttempt:
    """What the console's button does."""
    headers = {**CONSOLE, "origin": str(client.base_url).rstrip("/")}
    body = {"identity_provider_id": provider_id, "to": to}
    answer = await client.post("/api/v1/sign-in/providers", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return SignInAttempt(client, provider_id, answer.json()["authorization_url"], cookie)
