"""Manifests that the tests begin with: the apps of the platform's design, each as its developer would describe it.

Their names stand here and not in the server, which knows none of them.
"""

import copy
from typing import Any

from mooring.core.catalog.compatibility import Compatibility
from mooring.core.catalog.manifest import Manifest, read_manifest

Plain = dict[str, Any]


def digest(character: str) -> str:
    """A canonical digest that is easy to tell apart."""
    return "sha256:" + character * 64


LIFECYCLE: Plain = {
    "upgrade": {"strategy": "rolling", "from_versions": [">=1.0.0 <2.0.0"]},
    "rollback": {"supported": True, "to_versions": [">=1.0.0"], "note": "jobs that are queued stay queued"},
    "delete": {"graceful_seconds": 120, "data": "removed"},
}
RUNBOOK: Plain = {
    "summary": "one head and its workers",
    "contact": "ops@example.org",
    "entries": [{"symptom": "a worker does not join", "cause": "its clock", "steps": "look at the clock"}],
}
FORM: Plain = {
    "type": "object",
    "required": ["queue"],
    "additionalProperties": False,
    "properties": {
        "queue": {
            "type": "string", "title": "Queue", "pattern": "^[a-z][a-z0-9-]{0,38}$", "maxLength": 40,
            "default": "main", "x-form": {"widget": "text", "order": 1, "group": "Scheduling"},
        },
        "depth": {"type": "integer", "minimum": 1, "maximum": 100, "x-form": {"widget": "slider"}},
    },
}  # fmt: skip


def oci(**changes: Any) -> Plain:
    """An image that is started as it is."""
    return {
        "manifest_version": 1,
        "app": "hello",
        "version": "1.0.0",
        "artifact_kind": "oci",
        "artifacts": {"main": digest("a")},
        "runtime_profile": {"image": "main"},
        **changes,
    }


def launchable(app: str = "web-tool", **changes: Any) -> Plain:
    """An image with a profile of how to start and observe it."""
    return {
        "manifest_version": 1,
        "app": app,
        "version": "2.1.0",
        "artifact_kind": "launchable",
        "artifacts": {"main": digest("b"), "weights": digest("c")},
        "compatibility": {"min_gpu_count": 1},
        "runtime_profile": {
            "image": "main",
            "command": ["serve", "--port", "8080"],
            "ports": [{"name": "web", "port": 8080}],
            "env": [
                {"name": "LEVEL", "value": "info"},
                {"name": "MODEL", "from_config": "model"},
                {"name": "ACCESS_TOKEN", "from_secret": "access"},
            ],
            "resources": {"cpu_millicores": 4000, "memory_bytes": 17179869184},
            "probes": {"readiness": {"kind": "http", "port": "web", "path": "/ready"}},
            "volumes": [{"name": "weights", "path": "/weights", "kind": "artifact", "artifact": "weights"}],
        },
        "config_schema": {"type": "object", "properties": {"model": {"type": "string", "maxLength": 100}}},
        "endpoints": [
            {
                "name": "web",
                "protocol": "http",
                "port": "web",
                "connect": [{"kind": "browser", "title": "Open"}],
            }
        ],
        **changes,
    }


def controller(app: str = "cluster", **changes: Any) -> Plain:
    """An app that an adapter of its own builds and operates."""
    return {
        "manifest_version": 1,
        "app": app,
        "version": "1.4.0",
        "artifact_kind": "controller",
        "artifacts": {"head": digest("d"), "worker": digest("e")},
        "runtime_backend": "adapter",
        "compatibility": {"multi_node": True},
        "components": [
            {"key": "head", "min_count": 1, "max_count": 1},
            {"key": "worker", "title": "Worker", "max_count": 100},
        ],
        "actions": [
            {"name": "queue.submit", "permission": f"app.{app}.queue.submit", "input_schema": copy.deepcopy(FORM)},
        ],
        "endpoints": [
            {
                "name": "login",
                "protocol": "ssh",
                "connect": [{"kind": "command", "title": "Log in", "template": "ssh -p {port} {host}"}],
            }
        ],
        "usage_units": [{"unit": "jobs_finished", "title": "Jobs"}],
        "operating_modes": [{"operating_mode": "tenant_dedicated", "control_plane_scope": "project"}],
        "required_actions": ["runtime.claim", "runtime.report", "task.create", "usage.report"],
        "lifecycle": copy.deepcopy(LIFECYCLE),
        "runbook": copy.deepcopy(RUNBOOK),
        **changes,
    }


def read(plain: Plain) -> Manifest:
    """The manifest, which has the right shape."""
    reading = read_manifest(plain)
    assert reading.manifest is not None, reading.findings
    return reading.manifest


def compatibility(plain: Plain) -> Compatibility:
    """What a manifest asks of its capacity."""
    return read(plain).compatibility


ONE_MEMBER: list[Plain] = [{"key": "server", "min_count": 1, "max_count": 1}]
LAUNCHABLE_OCI = oci()
JUPYTER = launchable("jupyter", compatibility={"min_gpu_count": 0})
VLLM = launchable("vllm", compatibility={"min_gpu_count": 1})
SLURM = controller("slurm")
RKE2_SINGLE = controller("rke2-single", compatibility={}, components=ONE_MEMBER)
KUBERNETES = controller("kubernetes")
EVERY_APP = {
    "launchable oci": LAUNCHABLE_OCI, "jupyter": JUPYTER, "vllm": VLLM, "slurm": SLURM, "rke2": RKE2_SINGLE,
    "kubernetes": KUBERNETES,
}  # fmt: skip
