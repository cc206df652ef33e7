"""Rows around a task, written down: a task with output, a receipt, a secret and a grant of it."""

import hashlib
import json
import time
from dataclasses import replace

from mooring.core.kernel.decision import Insert
from mooring.core.kernel.ids import Prefix
from mooring.storage.kernel.database import PLATFORM
from server.tests.support.lifecycle_rows import CLOCK, ProjectRows

KINDS = (
    "processes", "namespaces", "mounts", "links", "sockets", "ports", "cgroups", "files", "containers", "secrets",
)  # fmt: skip


async def a_task(rows: ProjectRows) -> str:
    """A task on a node and an allocation of its own, which waits."""
    return await (await _own_project_rows(rows)).birth("task")


async def a_receipt(rows: ProjectRows) -> str:
    """The receipt of a teardown, the first of its node's chain."""
    own = await _own_project_rows(rows)
    task_id = await own.birth("task", type="sandbox.destroy", arguments={})
    body = {
        "v": 1,
        "node_id": own.node_id,
        "sequence": 1,
        "previous": "0" * 64,
        "task_id": task_id,
        "task_type": "sandbox.destroy",
        "tenant_id": own.tenant_id,
        "project_id": own.project_id,
        "allocation_id": own.allocation_id,
        "owner": own.allocation_id,
        "host": "simulated",
        "looked_at": int(time.time()),
        "looked": dict.fromkeys(KINDS, 0),
        "not_looked": [],
        "found": [],
        "removed": [],
        "remaining": [],
        "truncated": False,
        "clean": True,
    }
    signed = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    row = {
        "id": CLOCK.mint(Prefix.RECEIPT),
        "tenant_id": own.tenant_id,
        "project_id": own.project_id,
        "task_id": task_id,
        "task_type": "sandbox.destroy",
        "node_id": own.node_id,
        "allocation_id": own.allocation_id,
        "owner": own.allocation_id,
        "sequence": 1,
        "previous": "0" * 64,
        "digest": hashlib.sha256(signed).hexdigest(),
        "clean": True,
        "body": signed,
        "signature": b"s" * 64,
        "looked_at": CLOCK.now(),
        "created_at": CLOCK.now(),
    }
    await own.write(Insert("receipt", row), acting=PLATFORM)
    return str(row["id"])


async def every_row(rows: ProjectRows) -> None:
    """A row of all that stands around tasks."""
    own = await _own_project_rows(rows)
    now = CLOCK.now()
    place: dict[str, object] = {"tenant_id": own.tenant_id, "project_id": own.project_id, "created_at": now}
    task_id = await own.birth("task", instance_id=rows.instance_id, operation_id=await own.birth("operation"))
    chunk = {
        "task_id": task_id,
        "offset": 0,
        "tenant_id": own.tenant_id,
        "project_id": own.project_id,
        "chunk": b"x",
        "received_at": now,
    }
    await own.write(Insert("task_log", chunk), acting=PLATFORM)
    for home in ({"allocation_id": own.allocation_id}, {"instance_id": rows.instance_id}):
        sealed, kept_id = _sealed(own, "runtime_secret"), CLOCK.mint(Prefix.RUNTIME_SECRET)
        named = {"name": f"secret-{len(home)}", "purpose": "artifact_pull"}
        kept = place | home | named | {"id": kept_id, "secret_id": sealed["id"]}
        await own.write(Insert("secret", sealed), Insert("runtime_secret", kept))
        grant = (
            place
            | named
            | {
                "id": CLOCK.mint(Prefix.SECRET_GRANT),
                "task_id": task_id,
                "runtime_secret_id": kept_id,
                "expires_at": now,
                "name": f"grant-{kept_id[-8:]}",
            }
        )
        await own.write(Insert("secret_grant", grant))
    sealed, stored_id = _sealed(own, "project_secret"), CLOCK.mint(Prefix.PROJECT_SECRET)
    stored = {"id": stored_id, "name": f"of-{stored_id[-8:]}", "secret_id": sealed["id"], "version": 1}
    grant = {"id": CLOCK.mint(Prefix.SECRET_GRANT), "task_id": task_id, "project_secret_id": stored_id, "name": "own"}
    await own.write(
        Insert("secret", sealed),
        Insert("project_secret", place | stored | {"created_by": "test"}),
        Insert("secret_grant", place | grant | {"purpose": "member_secret", "expires_at": now}),
    )
    source_id = CLOCK.mint(Prefix.ARTIFACT_SOURCE)
    source = {"id": source_id, "tenant_id": own.tenant_id, "name": "private", "created_at": now}
    login = {"username": "any", "project_secret_id": stored_id, "pattern": f"oci://{source_id[-8:]}.example/*"}
    pulls = {"id": CLOCK.mint(Prefix.SECRET_GRANT), "task_id": task_id, "source_id": source_id, "name": "pulls"}
    await own.write(
        Insert("artifact_source", source | login),
        Insert(
            "secret_grant",
            place | pulls | {"repository": "team/app", "purpose": "artifact_pull", "expires_at": now},
        ),
    )
    await a_receipt(rows)
    # The last ones are named by nobody, so that naming them breaks no rule but the one that is tried.
    await own.birth("operation")
    await own.birth("instance")
    await own.write(Insert("secret", _sealed(own, "any")))


def _sealed(rows: ProjectRows, purpose: str) -> dict[str, object]:
    """The row of a sealed value that nothing can open."""
    return {
        "id": CLOCK.mint(Prefix.SECRET),
        "tenant_id": rows.tenant_id,
        "purpose": purpose,
        "master_key_id": "k",
        "wrapped_key": b"w",
        "ciphertext": b"c",
        "created_at": CLOCK.now(),
    }


async def _own_project_rows(rows: ProjectRows) -> ProjectRows:
    """The same project with a node and an allocation that nothing else is on."""
    return replace(rows, node_id=await rows.birth("node"), allocation_id=await rows.birth("allocation"))
