"""Signatures between this platform and the real cosign, in both directions, by key pair and without a log.

Version 2.5 signs in the tag form, version 3 in the bundle form; both verify what is made here.
"""

import os
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mooring.core.kernel.errors import Code
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.signing.cosign import verify
from mooring.gateways.signing.cosign_claims import SignatureForm, SignatureRefusalReason
from mooring.gateways.signing.cosign_keys import new_signing_key, read_trusted_key
from mooring.gateways.signing.cosign_sign import sign_as_bundle, sign_as_tag
from server.tests.support.images import image, index, push
from server.tests.support.newer_cosign import newer_cosign, sources_for

pytestmark = pytest.mark.anyio
NOW = datetime(2030, 1, 1, tzinfo=UTC)
SIGNING = ("--tlog-upload=false", "--allow-http-registry", "--yes")
VERIFYING = ("--insecure-ignore-tlog", "--allow-http-registry")


@dataclass(frozen=True)
class Cosign:
    """The program in a home of its own, with a key pair."""

    program: Path
    major: int
    home: Path

    @property
    def public_key(self) -> str:
        return (self.home / "cosign.pub").read_text(encoding="ascii")

    def run(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(
            [self.program, *words],
            cwd=self.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "COSIGN_PASSWORD": "of the tests"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout + done.stderr

    def sign(self, reference: str, *further: str, key: str = "cosign.key") -> None:
        unlogged = ("--use-signing-config=false",) if self.major >= 3 else ()
        self.run("sign", "--key", key, *SIGNING, *unlogged, *further, reference)

    def verify(self, reference: str, public_key: str, *, ok: bool = True) -> str:
        (self.home / "theirs.pub").write_text(public_key, encoding="ascii")
        return self.run("verify", "--key", "theirs.pub", *VERIFYING, reference, ok=ok)


def _cosign(program: Path, major: int, home: Path) -> Cosign:
    made = Cosign(program, major, home)
    made.run("generate-key-pair")
    return made


@pytest.fixture(scope="session")
def cosign_2(tmp_path_factory: pytest.TempPathFactory) -> Cosign:
    return _cosign(newer_cosign(2, "trixie"), 2, tmp_path_factory.mktemp("cosign-2"))


@pytest.fixture(scope="session")
def cosign_3(tmp_path_factory: pytest.TempPathFactory) -> Cosign:
    return _cosign(newer_cosign(3, "forky", "sid"), 3, tmp_path_factory.mktemp("cosign-3"))


async def test_what_cosign_2_signs_in_the_tag_form_counts_here(
    pusher: RegistryPusher, repository: str, cosign_2: Cosign
) -> None:
    digest = await push(pusher, repository, image())
    cosign_2.sign(f"{pusher.client.host}/{repository}@{digest}")
    key = read_trusted_key(cosign_2.public_key, "key_1")

    verdict = await verify(pusher.client, repository, digest, [key], now=NOW)

    assert [(each.form, each.repository) for each in verdict.evidence] == [
        (SignatureForm.TAG, f"{pusher.client.host}/{repository}")
    ]
    assert verdict.failures == ()


async def test_what_cosign_2_signs_with_an_ed25519_key_counts_here(
    pusher: RegistryPusher, repository: str, cosign_2: Cosign
) -> None:
    digest = await push(pusher, repository, image())
    key = new_signing_key("ed25519")
    (cosign_2.home / "edwards.pem").write_bytes(key.private_pem)
    cosign_2.run("import-key-pair", "--key", "edwards.pem", "--output-key-prefix", "edwards", "--yes")
    cosign_2.sign(f"{pusher.client.host}/{repository}@{digest}", key="edwards.key")

    verdict = await verify(pusher.client, repository, digest, [key.trusted("key_1")], now=NOW)

    assert verdict.is_signed


async def test_what_cosign_3_signs_in_the_bundle_form_counts_here_when_it_states_the_repository(
    pusher: RegistryPusher, repository: str, cosign_3: Cosign
) -> None:
    digest = await push(pusher, repository, index({"linux/amd64": image()}))
    name = f"{pusher.client.host}/{repository}"
    cosign_3.sign(f"{name}@{digest}", "-a", f"docker-reference={name}")
    key = read_trusted_key(cosign_3.public_key, "key_1")

    verdict = await verify(pusher.client, repository, digest, [key], now=NOW)

    assert [(each.form, each.repository) for each in verdict.evidence] == [(SignatureForm.BUNDLE, name)]
    assert verdict.failures == ()


async def test_a_bundle_of_cosign_3_that_states_no_repository_could_be_replayed_and_does_not_count(
    pusher: RegistryPusher, repository: str, cosign_3: Cosign
) -> None:
    digest = await push(pusher, repository, image())
    cosign_3.sign(f"{pusher.client.host}/{repository}@{digest}")
    key = read_trusted_key(cosign_3.public_key, "key_1")

    verdict = await verify(pusher.client, repository, digest, [key], now=NOW)
    refusal = verdict.refusal()

    assert [each.reason for each in verdict.failures] == [SignatureRefusalReason.NO_REPOSITORY]
    assert refusal is not None
    assert refusal.code is Code.SIGNATURE_REPLAYED
    assert f"-a docker-reference={pusher.client.host}/{repository}" in verdict.failures[0].detail


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ed25519"])
@pytest.mark.parametrize("which", ["cosign_2", "cosign_3"])
async def test_cosign_verifies_what_is_signed_here_in_the_tag_form(
    pusher: RegistryPusher, repository: str, which: str, algorithm: str, request: pytest.FixtureRequest
) -> None:
    cosign: Cosign = request.getfixturevalue(which)
    key = new_signing_key(algorithm)
    digest = await push(pusher, repository, image())
    for signer in (new_signing_key(), key):  # the second of two is found as well
        await sign_as_tag(pusher, repository, digest, signer)
    reference = f"{pusher.client.host}/{repository}@{digest}"

    assert digest in cosign.verify(reference, key.trusted("k").pem)
    cosign.verify(reference, new_signing_key().trusted("k").pem, ok=False)


@pytest.mark.parametrize("algorithm", ["ecdsa-p256", "ed25519"])
async def test_cosign_3_verifies_what_is_signed_here_in_the_bundle_form(
    pusher: RegistryPusher, repository: str, cosign_3: Cosign, algorithm: str
) -> None:
    key = new_signing_key(algorithm)
    digest = await push(pusher, repository, image())
    await sign_as_bundle(pusher, repository, digest, key)
    reference = f"{pusher.client.host}/{repository}@{digest}"

    assert digest in cosign_3.verify(reference, key.trusted("k").pem)
    cosign_3.verify(reference, new_signing_key().trusted("k").pem, ok=False)


async def test_a_signature_that_cosign_takes_anywhere_is_bound_to_its_repository_here(
    pusher: RegistryPusher, repository: str, cosign_2: Cosign
) -> None:
    theirs, key = f"{repository}-theirs", new_signing_key()
    digest = await push(pusher, repository, image())
    await push(pusher, theirs, image())
    signed = await sign_as_tag(pusher, repository, digest, key)
    assert signed.manifest.config is not None
    for part in (signed.manifest.config, *signed.manifest.layers):
        await pusher.blob(theirs, await pusher.client.blob_bytes(repository, part))
    await pusher.manifest_bytes(theirs, signed.manifest.raw, tag=f"{digest.replace(':', '-')}.sig")

    cosign_2.verify(f"{pusher.client.host}/{theirs}@{digest}", key.trusted("k").pem)  # cosign does not look
    verdict = await verify(pusher.client, theirs, digest, [key.trusted("k")], now=NOW)

    assert [each.reason for each in verdict.failures] == [SignatureRefusalReason.OTHER_REPOSITORY]


def test_sources_of_the_machines_release_are_taken_over_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb mirror:/a here main\ndeb [arch=amd64] mirror:/a here main contrib\ndeb mirror:/b here-security main\n"
    )
    (tmp_path / "sources.list.d" / "a.sources").write_text(
        "Types: deb\n# a remark: of somebody\nURIs: mirror:/c mirror:/d\nSuites: here here-updates\nComponents: main\n"
        "Signed-By: /keys/k.gpg\n\nTypes: deb-src\nURIs: mirror:/e\nSuites: here\n\nTypes: deb\nURIs: mirror:/f\n"
        "Suites: there\n"
    )

    assert sources_for("next", "here", tmp_path).splitlines() == [
        "deb [arch=amd64] mirror:/a next main",
        "deb [signed-by=/keys/k.gpg] mirror:/c next main",
        "deb [signed-by=/keys/k.gpg] mirror:/d next main",
    ]
