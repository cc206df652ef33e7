"""`mooring up --try`: what a newcomer needs beside the bare platform, made through the public API.

A tenant with one user and one project, a SKU for this machine, the bundled apps in the catalog with their adapters
running, and two contexts that are signed in. Every step looks first whether it was done, and every password is stored
before it is used: a start that is killed at any moment is continued by the next one.
"""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mooring_cli import contexts as stored
from mooring_cli.contexts import Context
from mooring_cli.install import CatalogInstaller, entitle, read_bundle
from mooring_cli.invocation import Invocation, plain_call
from mooring_cli.local_adapter import WORKLOAD, LocalAdapter
from mooring_cli.local_layout import LocalLayout
from mooring_cli.local_node import NAME as NODE
from mooring_cli.sign_in import exchange
from mooring_cli.trial_files import TrialFiles, TrialRecord

TENANT = PROJECT = "try"
SKU = "this-machine"
EMAIL = "you@try.local"
ADMIN_EMAIL = "admin@mooring.local"
REASON = "mooring up --try"
MADE = "made by mooring up --try"
TOKEN_SECONDS = 90 * 86_400
CODE_SECONDS_MAX = 5.0
NODE_SECONDS_MAX = 60.0
BUNDLE_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1


class TrialFailed(Exception):
    """A step could not be done; the text says which, and what to do."""


class Trial:
    """The set-up of one trial, in a thread beside the server."""

    def __init__(
        self,
        layout: LocalLayout,
        record: TrialRecord,
        adapters: Sequence[LocalAdapter],
        ended: Callable[["Trial"], None],
    ) -> None:
        """`ended` is called once, when everything is made or `failure` says why not."""
        self.url = ""
        self.record = record
        self.apps: list[str] = []
        self.machine = ""
        self.failure: str | None = None
        self.step = "starting the database"
        self._layout = layout
        self._files = TrialFiles(layout.trial)
        self._fresh = layout.is_new
        self._adapters = adapters
        self._ended = ended
        self._ca_file: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, url: str, ca_file: str | None) -> None:
        """Set up the platform at this address."""
        self.url, self._ca_file = url, ca_file
        self._thread.start()

    def fail(self, reason: str) -> None:
        """A program beside the server says why it cannot go on."""
        self.failure = self.failure or reason

    def end(self) -> None:
        self._over.set()

    def _run(self) -> None:
        from mooring_sdk import MooringError

        try:
            self._set_up()
        except (MooringError, TrialFailed, OSError, stored.ContextsUnusable) as error:
            self.failure = self.failure or f"{self.step}: {error}"
        if not self._over.is_set():
            self._ended(self)

    def _set_up(self) -> None:
        self.step = "signing in"
        admin = self._signed_in(self.record.admin_context, None, ADMIN_EMAIL, self.record.admin_password)
        platform = self._as(admin)
        self.step = "creating the tenant"
        code = self._tenant(platform)
        user = self._signed_in(self.record.context, TENANT, EMAIL, self.record.user_password, code)
        tenant = self._as(user)
        self.step = "creating the project"
        project_id = self._project(tenant)
        self.step = "waiting for this machine's node"
        self._sku(platform)
        for adapter in self._adapters:
            self.step = f"installing {adapter.app}"
            bundle = adapter.bundle(BUNDLE_SECONDS_MAX)
            if bundle is None:
                raise TrialFailed(f"the {adapter.name} adapter did not start")
            read = read_bundle(Path(bundle))
            if adapter.name == WORKLOAD.name:
                platform.call("set_workload_adapter_key", None, None, {"public_key": read["adapter_key"]})
            app_id = CatalogInstaller(platform, None, REASON).install(read)
            entitle(tenant, project_id, app_id, read, REASON)
            self.apps.append(adapter.app)

    # Signing in ------------------------------------------------------------------------------------------------------

    def _as(self, context: Context | None) -> Invocation:
        """The command line of this person, with nothing of the caller's own settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MOORING_")}
        if context is not None and context.token is not None:
            kept["MOORING_TOKEN"] = context.token
        return Invocation(kept, output="json", url_option=self.url, ca_file_option=self._ca_file)

    def _signed_in(self, name: str, tenant: str | None, email: str, password: str, code: str | None = None) -> Context:
        """The context of this person, signed in to this address: the stored one if its token is still valid."""
        known = stored.load(self._contexts_path).by_name.get(name)
        project = PROJECT if tenant else None
        where = Context(name, self.url, tenant, project, email, ca_file=self._ca_file)
        if known is not None and known.token is not None and known.email == email:
            kept = replace(where, token=known.token, token_id=known.token_id, token_expires_at=known.token_expires_at)
            if self._is_valid(kept):
                return self._stored(kept)
        person = {"email": email, **({"tenant": tenant} if tenant else {})}
        given = code or (self._first_code() if tenant is None else None)
        made = self._exchanged(where, {**person, "one_time_code": given, "new_password": password}) if given else None
        made = made or self._exchanged(where, {**person, "password": password})
        if made is None:  # it was killed between the creation of the user and the use of the code
            given = self._recovered(tenant, email)
            made = self._exchanged(where, {**person, "one_time_code": given, "new_password": password})
        if made is None:
            raise TrialFailed(f"{email} cannot sign in")
        self._files.code.unlink(missing_ok=True)
        return self._stored(made)

    def _exchanged(self, where: Context, body: dict[str, Any]) -> Context | None:
        """Sign in for a token; None if the server does not accept the password or the code."""
        from mooring_sdk import MooringError

        try:
            return exchange(self._as(None), where, body, name=REASON, seconds=TOKEN_SECONDS)
        except MooringError as error:
            if error.status in (401, 403):
                return None
            raise

    def _is_valid(self, context: Context) -> bool:
        from mooring_sdk import MooringError

        try:
            self._as(context).call("get_whoami")
        except MooringError as error:
            if error.status == 401:
                return False
            raise
        return True

    def _first_code(self) -> str | None:
        """The first admin's code, which the server writes once it listens."""
        until = time.monotonic() + CODE_SECONDS_MAX
        while self._fresh and not self._files.code.exists() and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        return self._files.code.read_text(encoding="utf-8").strip() if self._files.code.exists() else None

    def _recovered(self, tenant: str | None, email: str) -> str:
        """Get a new one-time code from the server's program, which writes to the database directly."""
        words = [sys.executable, "-m", "mooring", "recover-admin", "--data-dir", str(self._layout.database)]
        words += ["--email", email, *(["--tenant", tenant] if tenant else [])]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        found = re.search(r"shown only now: (\S+)", done.stdout)
        if found is None:
            raise TrialFailed(f"a new sign-in code for {email} could not be made: {done.stderr.strip()[-300:]}")
        return found[1]

    @property
    def _contexts_path(self) -> Path:
        return stored.contexts_file(dict(os.environ))

    def _stored(self, context: Context) -> Context:
        """Store it; the user's own context becomes the current one when it is new, or when none is."""
        contexts = stored.load(self._contexts_path)
        known = contexts.by_name.get(context.name)
        use = context.tenant is not None and (known is None or known.token_id != context.token_id)
        stored.save(self._contexts_path, contexts.with_context(context, use=use))
        return context

    # What is made ----------------------------------------------------------------------------------------------------

    def _tenant(self, platform: Invocation) -> str | None:
        """The tenant; returns the one-time code of its user if it is new."""
        if any(each["slug"] == TENANT for each in _pages(platform, "list_tenants")):
            return None
        person = {"email": EMAIL, "display_name": "You"}
        body = {"slug": TENANT, "display_name": f"Try ({MADE})", "first_admin": person}
        return str(platform.call("create_tenant", None, None, body)["one_time_code"])

    def _project(self, tenant: Invocation) -> str:
        found = [str(each["id"]) for each in _pages(tenant, "list_projects") if each["slug"] == PROJECT]
        if found:
            return found[0]
        tenant_id = str(tenant.call("get_whoami")["tenant_id"])
        body = {"slug": PROJECT, "display_name": f"Try ({MADE})"}
        return str(tenant.call("create_project", {"tenant_id": tenant_id}, None, body)["id"])

    def _sku(self, platform: Invocation) -> None:
        """A SKU for the GPUs of this machine, once its node has reported them."""
        node = self._node(platform)
        slots = node["slots"]
        simulated = all(each["simulated"] for each in slots)
        kind = "simulated GPUs, which compute nothing" if simulated else slots[0]["gpu_model"]
        isolated = "isolated sandboxes" if node["host"] == "namespace" else "NOTHING IS ISOLATED"
        self.machine = f"{len(slots)} {kind}; {isolated}"
        if any(each["slug"] == SKU for each in _pages(platform, "list_skus")):
            return
        model = slots[0]["gpu_model"]
        count = sum(1 for each in slots if each["gpu_model"] == model)
        body = {
            "slug": SKU,
            "display_name": f"This machine ({MADE})",
            "shape": "gpu_slice",
            "gpu_model": model,
            "regions": [node["region"]],
            "allowed_gpu_counts": sorted({*(1 << each for each in range(count.bit_length())), count}),
            "price_minor_per_gpu_hour": 0,
            "currency": "EUR",
        }
        platform.call("create_sku", None, None, body)

    def _node(self, platform: Invocation) -> dict[str, Any]:
        """This machine's node with its GPUs; they are known a moment after its agent has started."""
        until = time.monotonic() + NODE_SECONDS_MAX
        while self.failure is None and not self._over.is_set() and time.monotonic() < until:
            for each in _pages(platform, "list_nodes"):
                if each["name"] == NODE and each["status"] == "ready" and each["slots_total"]:
                    return dict(platform.call("get_node", {"node_id": each["id"]}))
            time.sleep(LOOK_SECONDS)
        raise TrialFailed("its agent did not report any GPU; --simulated-gpus 4 makes some where there are none")


def _pages(invocation: Invocation, operation: str) -> list[dict[str, Any]]:
    return list(invocation.client.pages(plain_call(operation, query={"limit": 500})))


def choose_context(url: str) -> tuple[str, str | None]:
    """A free name for the trial's context, and the name of the context that is current now.

    A context for the address of this trial is of an earlier one that is gone, and is replaced.
    """
    contexts = stored.load(stored.contexts_file(dict(os.environ)))
    taken = {name for name, each in contexts.by_name.items() if each.url != url}
    names = ["try", *(f"try-{number}" for number in range(2, 100))]
    return next(each for each in names if not taken & {each, f"{each}-admin"}), contexts.current
