"""A platform with a registry for tests of the catalog: a Mooring process, a real registry, and the CLI.

The registry is Debian's docker-registry, set up as an operator does it: Mooring says what the registry has to trust,
the registry is started with that, and Mooring gets its address. Everything that is asked of Mooring then goes
through `mooring …` as a process of its own; only pushing and signing are done here, as a developer's tools do them.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from mooring.core.kernel.address import Reach, read_networks
from mooring.gateways.egress import EgressClient
from mooring.gateways.registry.registry_client import RegistryClient, RegistryPlace
from mooring.gateways.registry.registry_push import RegistryPusher
from mooring.gateways.signing.cosign_keys import SigningKey
from mooring.gateways.signing.cosign_sign import sign_as_tag
from mooring_cli.main import mooring
from server.tests.support.agents import MachineKeys
from server.tests.support.images import archive, image, layer, push
from server.tests.support.registry_process import RunningRegistry, running_registry
from tests.e2e.mooring_process import FIRST_ADMIN, PASSWORD, MooringProcess, running_mooring
from tools.ports import free_port

WHY = "the walk through the catalog asks for it"
LOOPBACK = Reach(allowed=read_networks("127.0.0.0/8"), own_allowed=True)
COMMAND_SECONDS_MAX = 240
LONG_REACHABLE = {"MOORING_NODE_UNREACHABLE_SECONDS": "86400"}
"""A fake machine reports once, and has to stay reachable for as long as a test takes."""
_numbers = count(1)


@dataclass(frozen=True)
class FixedToken:
    """The token of a publish intent, for every scope that the registry asks for."""

    fixed: str

    def token(self, repository: str, actions: Sequence[str]) -> str:
        return self.fixed


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of one CLI command."""

    words: tuple[str, ...]
    exit_code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        assert self.exit_code == 0, f"{' '.join(self.words)}: {self.err}"
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        assert self.exit_code != 0, f"{' '.join(self.words)}: {self.out}"
        return json.loads(self.err.splitlines()[-1])["error"]

    @property
    def code(self) -> str:
        return str(self.error["code"])


@dataclass(frozen=True)
class PushedImage:
    """An image that was pushed and registered."""

    id: str
    digest: str
    repository: str
    location: str
    token: str


@dataclass
class RegistryPlatform:
    """Mooring, its registry, a tenant with a project, and the CLI signed in as their admins."""

    mooring: MooringProcess
    registry: RunningRegistry
    home: Path
    context: str = "platform"
    tenant_id: str = ""
    project_id: str = ""
    user_id: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    is_quick: bool = False  # run the CLI inside the test process, which is faster

    def run(self, *words: str, stdin: str = "", context: str | None = None) -> CommandResult:
        """Run the CLI as a process with its own empty home and JSON output."""
        done = subprocess.run(
            [sys.executable, "-m", "mooring_cli", *self._words(words, context)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_SECONDS_MAX,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], **self.environment},
            cwd=self.home,
        )
        return CommandResult(words, done.returncode, done.stdout, done.stderr)

    def did(self, *words: str, context: str | None = None) -> Any:
        """Run a command that has to succeed; its output as data."""
        return self._ran(words, context).data

    def ran(self, *words: str) -> CommandResult:
        """Run a command: as a process, or inside the test process where that is enough."""
        return self._ran(words)

    def _ran(self, words: tuple[str, ...], context: str | None = None) -> CommandResult:
        if not self.is_quick:
            return self.run(*words, context=context)
        unset = {name: None for name in os.environ if name.startswith(("MOORING_", "XDG_"))}
        here = {**unset, "HOME": str(self.home), **self.environment}
        result = CliRunner().invoke(mooring, self._words(words, context), env=here)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return CommandResult(words, result.exit_code, result.stdout, result.stderr)

    def _words(self, words: tuple[str, ...], context: str | None) -> list[str]:
        chosen = [] if "login" in words else ["--context", context or self.context]
        return [*(f"{word}" for word in words), "--no-input", "-o", "json", *chosen]

    def refused(self, *words: str, context: str | None = None) -> str:
        """The error code of a command that must be refused."""
        return self._ran(words, context).code

    def sign_in(self, context: str, email: str, code: str, tenant: str | None = None) -> None:
        """Sign in for the first time, and keep it as a context."""
        where = () if tenant is None else ("--tenant", tenant)
        ran = self.run(
            "login",
            "--context",
            context,
            "--url",
            self.mooring.url,
            *where,
            "--email",
            email,
            "--one-time-code-stdin",
            stdin=f"{code}\n{PASSWORD}\n",
        )
        assert ran.exit_code == 0, ran.err

    def settle(self, slug: str) -> None:
        """Create a tenant with an admin and a project, and use it for all further commands."""
        made = self.did(
            "tenants",
            "create",
            "--slug",
            slug,
            "--display-name",
            slug.title(),
            "--first-admin-email",
            f"ada@{slug}.test",
            "--first-admin-display-name",
            "Ada",
            context="platform",
        )
        self.sign_in(slug, f"ada@{slug}.test", made["one_time_code"], slug)
        self.context, self.tenant_id, self.user_id = slug, made["id"], made["first_admin"]["id"]
        self.project_id = self.did("projects", "create", "--slug", "vision", "--display-name", "Vision")["id"]

    def equip(self) -> None:
        """Enrol a fake machine and create a SKU: without capacity no app can be launched."""
        token = self.did("nodes", "enrolment-tokens", "create", context="platform")["token"]

        async def join() -> None:
            async with httpx.AsyncClient(base_url=self.mooring.url, timeout=180) as client:
                machine = MachineKeys()
                answer = await client.post("/api/v1/agent/enrolments", json=machine.request(token))
                machine.node_id = answer.raise_for_status().json()["node_id"]
                await machine.report(client)

        asyncio.run(join())
        self.did(
            "skus",
            "create",
            "--slug",
            "slice",
            "--display-name",
            "Made up",
            "--shape",
            "gpu_slice",
            "--gpu-model",
            "made-up",
            "--region",
            "local",
            "--allowed-gpu-counts",
            "[1, 2]",
            "--price-minor-per-gpu-hour",
            "0",
            "--currency",
            "EUR",
            context="platform",
        )

    def restarted(self, **settings: str) -> None:
        """Stop Mooring and start it again with other settings."""
        self.mooring.stop()
        self.mooring.environment |= settings
        self.mooring.start()

    # The developer's own tools

    def pushed(self, name: str = "") -> PushedImage:
        """Build a new image, push it with the token of a publish intent, and register it."""
        number = next(_numbers)
        intent = self.did("artifacts", "publish", "--name", name or f"image-{number}")
        content = [layer(archive({"bin/program": f"program {number}".encode()}))]

        async def send(pusher: RegistryPusher) -> str:
            return await push(pusher, intent["repository"], image(content))

        digest = asyncio.run(self._pushing(intent["registry_token"], send))
        made = self.did("artifacts", "register", "--kind", "oci", "--location", intent["location"], "--digest", digest)
        return PushedImage(made["id"], digest, intent["repository"], intent["location"], intent["registry_token"])

    def signed(self, pushed: PushedImage, key: SigningKey, name: str | None = None) -> None:
        """Sign an image; with `name` the signature is for another location."""

        async def send(pusher: RegistryPusher) -> None:
            await sign_as_tag(pusher, pushed.repository, pushed.digest, key, name=name)

        asyncio.run(self._pushing(pushed.token, send))

    async def _pushing(self, token: str, send: Any) -> Any:
        dialer = EgressClient(LOOPBACK)
        try:
            place = RegistryPlace(
                self.registry.url, credentials=FixedToken(token), token_hosts=frozenset({"127.0.0.1"})
            )
            return await send(RegistryPusher(RegistryClient(place, dialer)))
        finally:
            await dialer.close()

    def trusted(self, key: SigningKey, name: str) -> str:
        """Add a signer key from the file that a signing tool writes; its id."""
        file = self.home / f"{name}.pub"
        file.write_text(key.trusted("").pem)
        return str(self.did("signer-keys", "add", "--name", name, "--public-key-pem", f"@{file}")["id"])

    def app(self, slug: str) -> str:
        """A new app; its id."""
        made = self.did("apps", "create", "--slug", slug, "--display-name", slug.title(), "--category", "web")
        return str(made["id"])

    def version(self, slug: str, number: str, digest: str) -> str:
        """A new version, begun with `manifest init` and linted; its id."""
        file = self.home / f"{slug}-{number}.yaml"
        begun = self._ran(("manifest", "init", slug, "--file", str(file)))
        assert begun.exit_code == 0, begun.err
        text = file.read_text().replace("version: 0.1.0", f"version: {number}")
        file.write_text(text.replace(f"sha256:{'0' * 64}", digest))
        assert self.did("manifest", "lint", str(file), "--app", slug) == []
        return str(self.did("apps", "versions", "create", slug, "--manifest", f"@{file}")["id"])

    # Moves

    def moved(self, artifact: str, move: str, *further: str) -> Any:
        """One move of an artifact's promotion that must succeed."""
        return self.did("artifacts", "promote", artifact, "--move", move, "--reason", WHY, *further)

    def moved_version(self, slug: str, number: str, move: str, *further: str) -> Any:
        """One move of a version's promotion that must succeed."""
        return self.did("apps", "versions", "promote", slug, number, "--move", move, "--reason", WHY, *further)

    def move(self, artifact: str, move: str, *further: str) -> CommandResult:
        """One move of an artifact's promotion."""
        return self.ran("artifacts", "promote", artifact, "--move", move, "--reason", WHY, *further)

    def move_version(self, slug: str, number: str, move: str, *further: str) -> CommandResult:
        """One move of a version's promotion."""
        return self.ran("apps", "versions", "promote", slug, number, "--move", move, "--reason", WHY, *further)


@contextmanager
def running_registry_platform(tmp_path: Path, **settings: str) -> Iterator[RegistryPlatform]:
    """Start Mooring with its own registry, and sign in the platform's admin."""
    home = tmp_path / "home"
    home.mkdir()
    directory = tmp_path / "registry"
    directory.mkdir()
    port = free_port()  # the platform has to know where its registry is before that knows whom to trust
    with running_mooring(MOORING_REGISTRY_URL=f"http://127.0.0.1:{port}", **(LONG_REACHABLE | settings)) as started:
        platform = RegistryPlatform(started, RunningRegistry("", directory), home)
        platform.sign_in("platform", FIRST_ADMIN, started.code)
        about = platform.did("registry", "get")
        bundle = directory / "bundle.pem"
        bundle.write_text(about["certificate"])
        auth = {
            "realm": f"{started.url}/api/v1/registry/token",
            "service": about["service"],
            "issuer": about["issuer"],
            "rootcertbundle": str(bundle),
        }
        with running_registry(directory, {"token": auth}, port) as platform.registry:
            yield platform
