"""Speaks OpenID Connect with an identity provider: discovery, keys, the exchange of a code, and the ID token's proof.

Every address goes through the egress guard, since a tenant's admin gave it, and every answer is bounded. What a
provider says of itself and its keys are kept for some minutes. A token with an unknown key lets the keys be read again,
at most once in a while, so that a stranger cannot make this process ask.

Only asymmetric signatures count (RS256, ES256): with them nobody but the provider can have made the token. `joserfc`
verifies them; decision 54 says why.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode, urlsplit

from mooring.core.identity.identity_provider import IdentityProvider
from mooring.core.identity.provider_sign_in import refused
from mooring.core.kernel.errors import Code, Refusal
from mooring.gateways.egress import EgressClient, EgressFailed, EgressRequest
from mooring.gateways.lazy_import import lazy_module

if TYPE_CHECKING:
    from joserfc import errors, jwk, jwt
else:
    errors, jwk, jwt = (lazy_module(f"joserfc.{name}") for name in ("errors", "jwk", "jwt"))

ALGORITHMS: Final = ["RS256", "ES256"]
ANSWER_BYTES_MAX: Final = 262_144
ID_TOKEN_LENGTH_MAX: Final = 65_536
CODE_LENGTH_MAX: Final = 4_096
DEADLINE_SECONDS: Final = 10.0
KEPT_FOR: Final = timedelta(minutes=10)
KEYS_AGE_MIN: Final = timedelta(seconds=30)
KEPT_MAX: Final = 100
LEEWAY_SECONDS: Final = 60
ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "jwks_uri")


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None
    posts_secret: bool  # it takes the client's secret in the body only
    names_itself: bool  # its redirects name their issuer (RFC 9207)


@dataclass(frozen=True, slots=True)
class Redirect:
    """What the browser brings back from the provider."""

    code: str
    redirect_uri: str
    verifier: str
    nonce: str


@dataclass(slots=True)
class _Kept:
    metadata: Metadata
    until: datetime
    keys: jwk.KeySet | None = None
    keys_read_at: datetime | None = None


class ProviderCache:
    """What providers said of themselves, for some minutes. One per process."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def get(self, issuer: str, now: datetime) -> _Kept | None:
        kept = self._kept.get(issuer)
        return kept if kept is not None and kept.until > now else None

    def store(self, metadata: Metadata, now: datetime) -> _Kept:
        kept = self._kept[metadata.issuer] = _Kept(metadata, now + KEPT_FOR)
        self._kept.move_to_end(metadata.issuer)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return kept


@dataclass(frozen=True, slots=True)
class ProviderClient:
    """Asks one provider, at one moment."""

    outbound: EgressClient
    cache: ProviderCache
    provider: IdentityProvider
    now: datetime

    async def metadata(self) -> Metadata:
        """What the provider says of itself, which must be what the admin called it."""
        return (await self._discovered()).metadata

    async def authorization_url(self, redirect_uri: str, *, state: str, nonce: str, verifier: str) -> str:
        """Where the browser goes to sign in at the provider."""
        endpoint = (await self.metadata()).authorization_endpoint
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.provider.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    async def claims(self, redirect: Redirect, secret: str | None) -> dict[str, Any]:
        """The claims of the person who comes back with this code, proven by the ID token."""
        found = await self._discovered()
        tokens = await self._exchange(found.metadata, redirect, secret)
        id_token = tokens.get("id_token")
        if not isinstance(id_token, str) or len(id_token) > ID_TOKEN_LENGTH_MAX:
            raise refused("provider_answer_invalid", "the provider answered without an ID token")
        claims = await self._proven(found, id_token, redirect.nonce)
        access_token = tokens.get("access_token")
        if isinstance(access_token, str) and not {"email", self.provider.groups_claim} <= set(claims):
            claims = await self._with_userinfo(found.metadata, claims, access_token)
        return claims

    async def _discovered(self) -> _Kept:
        kept = self.cache.get(self.provider.issuer, self.now)
        if kept is not None:
            return kept
        document = await self._fetch(f"{self.provider.issuer.rstrip('/')}/.well-known/openid-configuration")
        return self.cache.store(_metadata(self.provider.issuer, document), self.now)

    async def _exchange(self, metadata: Metadata, redirect: Redirect, secret: str | None) -> dict[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": redirect.code,
            "redirect_uri": redirect.redirect_uri,
            "client_id": self.provider.client_id,
            "code_verifier": redirect.verifier,
        }
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        if secret is not None and metadata.posts_secret:
            form["client_secret"] = secret
        elif secret is not None:
            pair = f"{quote(self.provider.client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return await self._ask(
            EgressRequest(
                "POST",
                metadata.token_endpoint,
                headers,
                urlencode(form).encode(),
                deadline_seconds=DEADLINE_SECONDS,
                answer_limit_bytes=ANSWER_BYTES_MAX,
            ),
            "the provider refused the code",
        )

    async def _proven(self, found: _Kept, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token that this provider made for this client and this sign-in."""
        keys = await self._keys(found, fresh=False)
        try:
            claims = self._verified(id_token, keys)
        except (errors.BadSignatureError, errors.InvalidKeyIdError, ValueError):
            if found.keys_read_at is None or self.now - found.keys_read_at < KEYS_AGE_MIN:
                raise _unproven("no key of the provider made its signature") from None
            claims = self._verified_again(id_token, await self._keys(found, fresh=True))
        except errors.JoseError as error:
            raise _unproven(str(error.error)) from error
        self._check(claims, nonce)
        return claims

    def _verified(self, id_token: str, keys: jwk.KeySet) -> dict[str, Any]:
        return dict(jwt.decode(id_token, keys, algorithms=ALGORITHMS).claims)

    def _verified_again(self, id_token: str, keys: jwk.KeySet) -> dict[str, Any]:
        try:
            return self._verified(id_token, keys)
        except (errors.JoseError, ValueError) as error:
            raise _unproven("no key of the provider made its signature") from error

    def _check(self, claims: Mapping[str, Any], nonce: str) -> None:
        """The checks of OpenID Connect Core 3.1.3.7 that follow the one of the signature."""
        audience = claims.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        now = self.now.timestamp()
        issued, expires = claims.get("iat"), claims.get("exp")
        if claims.get("iss") != self.provider.issuer:
            raise _unproven("another issuer made it")
        if not isinstance(audiences, list) or self.provider.client_id not in audiences:
            raise _unproven("it is for another client")
        party = claims.get("azp")
        if party != self.provider.client_id and (party is not None or len(audiences) > 1):
            raise _unproven("another client asked for it")
        if not isinstance(expires, (int, float)) or expires + LEEWAY_SECONDS <= now:
            raise _unproven("it has expired")
        if not isinstance(issued, (int, float)) or issued - LEEWAY_SECONDS > now:
            raise _unproven("it was made in the future")
        if claims.get("nonce") != nonce:
            raise _unproven("it was made for another sign-in")

    async def _with_userinfo(self, metadata: Metadata, claims: dict[str, Any], access_token: str) -> dict[str, Any]:
        """The claims with those that the provider shows only on request; the ID token's own win."""
        if metadata.userinfo_endpoint is None:
            return claims
        headers = {"authorization": f"Bearer {access_token}", "accept": "application/json"}
        more = await self._fetch(metadata.userinfo_endpoint, headers)
        if more.get("sub") != claims.get("sub"):
            raise refused("provider_answer_invalid", "the provider described somebody else")
        return more | claims

    async def _keys(self, found: _Kept, *, fresh: bool) -> jwk.KeySet:
        if found.keys is None or fresh:
            document = await self._fetch(found.metadata.jwks_uri)
            listed = document.get("keys")
            usable = [each for each in listed if _is_usable(each)] if isinstance(listed, list) else []
            try:
                found.keys = jwk.KeySet.import_key_set({"keys": usable})
            except (errors.JoseError, ValueError, KeyError, TypeError) as error:
                raise refused("provider_answer_invalid", "the provider's keys cannot be read") from error
            found.keys_read_at = self.now
        return found.keys

    async def _fetch(self, url: str, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        asked = EgressRequest(
            "GET",
            url,
            headers or {"accept": "application/json"},
            deadline_seconds=DEADLINE_SECONDS,
            answer_limit_bytes=ANSWER_BYTES_MAX,
        )
        return await self._ask(asked, "the provider did not answer as one")

    async def _ask(self, request: EgressRequest, otherwise: str) -> dict[str, Any]:
        """The JSON object that the provider answers with."""
        try:
            answer = await self.outbound.send(request)
        except EgressFailed as error:
            raise refused("provider_unreachable", f"the provider cannot be reached: {error.reason}") from error
        except Refusal as refusal:
            if refusal.code is not Code.ADDRESS_REFUSED:
                raise
            raise refused("provider_unreachable", f"the provider cannot be reached: {refusal.detail}") from refusal
        if answer.status != 200 or len(answer.body) >= ANSWER_BYTES_MAX:
            raise refused("provider_answer_invalid", f"{otherwise} (status {answer.status})")
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise refused("provider_answer_invalid", f"{otherwise} (no JSON)") from error
        if not isinstance(document, dict):
            raise refused("provider_answer_invalid", f"{otherwise} (no JSON object)")
        return document


def _metadata(issuer: str, document: Mapping[str, Any]) -> Metadata:
    if document.get("issuer") != issuer:
        raise refused("provider_answer_invalid", "the provider calls itself something else than the admin called it")
    endpoints = {name: document.get(name) for name in ENDPOINTS}
    userinfo = document.get("userinfo_endpoint")
    scheme = urlsplit(issuer).scheme
    for name, url in (*endpoints.items(), *([] if userinfo is None else [("userinfo_endpoint", userinfo)])):
        if not isinstance(url, str) or not _is_plain(url, scheme):
            raise refused("provider_answer_invalid", f"the provider's {name} is not an address")
    methods = document.get("token_endpoint_auth_methods_supported")
    listed = methods if isinstance(methods, list) else ["client_secret_basic"]
    return Metadata(
        issuer,
        str(endpoints["authorization_endpoint"]),
        str(endpoints["token_endpoint"]),
        str(endpoints["jwks_uri"]),
        userinfo,
        posts_secret="client_secret_basic" not in listed and "client_secret_post" in listed,
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _is_plain(url: str, scheme: str) -> bool:
    """Whether this is an address of a server, as safe on its way as the issuer's; a browser is sent to one of them."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    safe = url.isascii() and url.isprintable() and not set(url) & set(' "<>\\^`{|}') and len(url) <= 2_000
    named = bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment
    return safe and named and parts.scheme in ("https", scheme)


def _is_usable(key: object) -> bool:
    """Whether a key may sign ID tokens: never a symmetric one, and none that is for encryption."""
    return isinstance(key, dict) and key.get("kty") in ("RSA", "EC") and key.get("use", "sig") == "sig"


def _unproven(why: str) -> Refusal:
    return refused("id_token_refused", f"the provider's ID token is not accepted: {why}")
