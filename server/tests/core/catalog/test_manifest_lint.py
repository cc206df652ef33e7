"""Lint: each rule finds what it is for, names the place, and leaves good manifests alone."""

from typing import Any

import pytest

from mooring.core.catalog.manifest_lint import (
    FAMILIES,
    RESERVED_CATEGORIES,
    RULES,
    AppContext,
    examine,
    lint,
    refuse_errors,
    why_not_permission,
    why_not_required,
)
from mooring.core.catalog.operating_mode import MODES, ControlPlaneScope, OperatingMode, why_incoherent
from mooring.core.kernel.errors import Code, Refusal
from mooring.core.kernel.finding import Severity
from mooring.core.kernel.permissions import ACTIONS, OPERATOR_CEILING
from server.tests.support.manifests import EVERY_APP, FORM, LIFECYCLE, Plain, controller, digest, launchable, oci, read
from tests.support.rows import every_row

E, W = Severity.ERROR, Severity.WARNING


def profile(**changes: Any) -> Plain:
    """A launchable with another runtime profile."""
    return launchable(runtime_profile={**launchable()["runtime_profile"], **changes})


def probe(**probe: Any) -> Plain:
    return profile(probes={"readiness": probe})


def volume(**volume: Any) -> Plain:
    return profile(volumes=[{"name": "data", **volume}])


def endpoint(**endpoint: Any) -> Plain:
    return launchable(endpoints=[{"name": "e", "protocol": "http", "port": "web", **endpoint}])


def metering(port: str, unit: str) -> Plain:
    counters = [{"metric": "app_tokens_total", "unit": "tokens"}, {"metric": "app_requests_total", "unit": unit}]
    units = [{"unit": "tokens", "title": "Tokens"}]
    return launchable(
        usage_units=units, required_actions=["usage.report"], metering=[{"port": port, "counters": counters}]
    )


def connect(**connect: Any) -> Plain:
    return endpoint(connect=[{"kind": "command", "title": "t", **connect}])


def env(name: str, **variable: Any) -> Plain:
    return profile(env=[{"name": name, **variable}])


def requires(*keys: str) -> Plain:
    return controller(required_actions=["runtime.claim", "runtime.report", "usage.report", *keys])


def unit(name: str) -> Plain:
    return controller(usage_units=[{"unit": name, "title": "Unit"}])


def without(section: str) -> Plain:
    return {key: value for key, value in controller().items() if key != section}


def action(**action: Any) -> Plain:
    given = {"name": "queue.submit", "permission": "app.cluster.queue.submit", "input_schema": FORM, **action}
    return controller(actions=[given])


ROWS = {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}}


def button(**changes: Any) -> Plain:
    """A button of a row that is as it should be."""
    return {"action": "queue.submit", "input": {"queue": "id"}, "when": {"id": ["1"]}, **changes}


def table(*, read_only: bool = False, button: Plain | None = None, **view: Any) -> Plain:
    """A controller whose action is shown as a table."""
    shown = {"kind": "table", "rows": "jobs", "columns": ["id"], **view}
    if button is not None:
        shown["row_actions"] = [button]
    output = {"type": "object", "properties": {"jobs": ROWS}}
    return action(output_schema=output, read_only=read_only, view=shown)


def lifecycle(**changes: Any) -> Plain:
    return controller(lifecycle={**LIFECYCLE, **changes})


def mode(operating_mode: str, scope: str) -> Plain:
    return controller(operating_modes=[{"operating_mode": operating_mode, "control_plane_scope": scope}])


def config(**fields: Any) -> Plain:
    return launchable(
        config_schema={"type": "object", "properties": {"model": {"type": "string"}, **fields}},
    )


PORT = {"name": "web", "port": 8080}
HEAD = {"key": "head", "max_count": 1}

# Each case: the manifest, and the one finding: place, rule, severity.
CASES: list[tuple[Plain, str, str, Severity]] = [
    (oci(app="other"), "/app", "app_other", E),
    (oci(version="9999999999999999999.0.0"), "/version", "version_range", E),
    (oci(runtime_profile={}), "/runtime_profile", "image_missing", E),
    ({**oci(), "runtime_profile": {"image": "sidecar"}}, "/runtime_profile/image", "artifact_unknown", E),
    (oci(artifacts={"main": digest("a"), "twin": digest("a")}), "/artifacts/main", "name_doubled", W),
    (oci(compatibility={"multi_node": True}), "/compatibility/multi_node", "controller_only", E),
    (
        oci(actions=[{"name": "go", "permission": "app.hello.go", "input_schema": FORM}]),
        "/actions",
        "controller_only",
        E,
    ),
    (oci(usage_units=[{"unit": "requests", "title": "R"}]), "/required_actions", "usage_unreported", W),
    (profile(command=["pull", "registry.example:5000/team/app:1.0"]), "/runtime_profile/command/1", "tag_in_text", W),
    (env("BASE", value="registry.example/library/nginx:latest"), "/runtime_profile/env/0/value", "tag_in_text", W),
    (profile(ports=[PORT, {"name": "web", "port": 1}]), "/runtime_profile/ports/1", "runtime_name_doubled", E),
    (profile(ports=[PORT, {"name": "two", "port": 8080}]), "/runtime_profile/ports/1", "runtime_name_doubled", E),
    (
        profile(env=[{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        "/runtime_profile/env/1",
        "runtime_name_doubled",
        E,
    ),
    (
        profile(
            volumes=[{"name": "a", "path": "/a", "kind": "scratch"}, {"name": "b", "path": "/a/", "kind": "scratch"}]
        ),
        "/runtime_profile/volumes/1",
        "runtime_name_doubled",
        E,
    ),
    (env("DB_PASSWORD", value="hunter2"), "/runtime_profile/env/0", "secret_in_env", E),
    (env("hf_token", value="x"), "/runtime_profile/env/0", "secret_in_env", E),
    (env("MODEL", from_config="size"), "/runtime_profile/env/0/from_config", "config_unknown", E),
    (
        config(model={"type": "array", "items": {"type": "string"}, "maxItems": 2}),
        "/runtime_profile/env/1/from_config",
        "config_unknown",
        E,
    ),
    (probe(kind="http"), "/runtime_profile/probes/readiness", "probe_incomplete", E),
    (probe(kind="exec"), "/runtime_profile/probes/readiness", "probe_incomplete", E),
    (probe(kind="tcp", port="web", path="/x"), "/runtime_profile/probes/readiness", "probe_incomplete", E),
    (probe(kind="tcp", port="admin"), "/runtime_profile/probes/readiness/port", "port_unknown", E),
    (probe(kind="tcp", port="web", timeout_seconds=60), "/runtime_profile/probes/readiness", "probe_timing", W),
    (profile(probes={}), "/runtime_profile", "readiness_missing", W),
    (volume(path="/", kind="scratch"), "/runtime_profile/volumes/0/path", "volume_path", E),
    (volume(path="/etc/", kind="scratch"), "/runtime_profile/volumes/0/path", "volume_path", E),
    (volume(path="/proc/1", kind="scratch"), "/runtime_profile/volumes/0/path", "volume_path", E),
    (volume(path="/data/../etc", kind="scratch"), "/runtime_profile/volumes/0/path", "volume_path", E),
    (volume(path="/data", kind="artifact"), "/runtime_profile/volumes/0", "volume_incomplete", E),
    (volume(path="/data", kind="scratch", artifact="main"), "/runtime_profile/volumes/0", "volume_incomplete", E),
    (
        volume(path="/data", kind="artifact", artifact="none"),
        "/runtime_profile/volumes/0/artifact",
        "artifact_unknown",
        E,
    ),
    (endpoint(port="admin"), "/endpoints/0/port", "port_unknown", E),
    (launchable(endpoints=[{"name": "e", "protocol": "http"}]), "/endpoints/0", "endpoint_port_missing", E),
    (endpoint(protocol="terminal"), "/endpoints/0/port", "endpoint_terminal", E),
    (endpoint(user="app"), "/endpoints/0/user", "endpoint_terminal", E),
    (
        launchable(endpoints=[{"name": "e", "protocol": "terminal", "user": "0:0"}]),
        "/endpoints/0/user",
        "endpoint_terminal",
        E,
    ),
    (
        endpoint(protocol="tcp", connect=[{"kind": "browser", "title": "t"}]),
        "/endpoints/0/connect/0",
        "connect_incomplete",
        E,
    ),
    (connect(), "/endpoints/0/connect/0", "connect_incomplete", E),
    (connect(template="x {token}"), "/endpoints/0/connect/0/template", "connect_incomplete", E),
    (connect(template="{port:>999999999}"), "/endpoints/0/connect/0/template", "connect_incomplete", E),
    (connect(template="{host"), "/endpoints/0/connect/0/template", "connect_incomplete", E),
    (
        launchable(compatibility={"requires_capacity_shape": "gpu_slice", "requires_exclusive_node": True}),
        "/compatibility",
        "capacity_contradiction",
        E,
    ),
    (
        launchable(compatibility={"needs": [{"fact": "rdma", "equals": True}, {"fact": "rdma", "equals": False}]}),
        "/compatibility/needs/1",
        "capacity_contradiction",
        E,
    ),
    (controller(components=[HEAD]), "/compatibility/multi_node", "multi_node_alone", E),
    (controller(components=[HEAD, {"key": "head", "max_count": 2}]), "/components/1", "name_doubled", E),
    (
        controller(components=[HEAD, {"key": "w", "min_count": 3, "max_count": 2}]),
        "/components/1/min_count",
        "component_counts",
        E,
    ),
    (
        controller(components=[HEAD, {"key": "w", "min_count": 1, "default_count": 0, "max_count": 2}]),
        "/components/1/default_count",
        "component_counts",
        E,
    ),
    (action(permission="app.cluster.queue.cancel"), "/actions/0/permission", "action_permission", E),
    (action(permission="app.other.queue.submit"), "/actions/0/permission", "action_permission", E),
    (action(permission="instance.delete"), "/actions/0/permission", "action_permission", E),
    (action(input_schema={"type": "string"}), "/actions/0/input_schema", "form_is_an_object", E),
    (action(output_schema={"type": "array"}), "/actions/0/output_schema", "form_is_an_object", E),
    (table(), "/actions/0/view/kind", "action_view", E),
    (table(read_only=True, rows="people"), "/actions/0/view/rows", "action_view", E),
    (table(read_only=True, columns=["id", "colour"]), "/actions/0/view/columns", "action_view", E),
    (table(read_only=True, create=["queue.dance"]), "/actions/0/view/create", "action_view", E),
    (
        table(read_only=True, button={"action": "queue.dance", "input": {}}),
        "/actions/0/view/row_actions",
        "action_view",
        E,
    ),
    (table(read_only=True, button=button(input={"colour": "id"})), "/actions/0/view/row_actions", "action_view", E),
    (table(read_only=True, button=button(input={"depth": "colour"})), "/actions/0/view/row_actions", "action_view", E),
    (table(read_only=True, button=button(when={"colour": ["red"]})), "/actions/0/view/row_actions", "action_view", E),
    (mode("tenant_dedicated", "platform"), "/operating_modes/0", "mode_incoherent", E),
    (mode("platform_managed", "project"), "/operating_modes/0", "mode_incoherent", E),
    (mode("platform_managed", "platform"), "/operating_modes/0", "mode_not_offered", W),
    (requires("user.create"), "/required_actions/3", "required_action", E),
    (requires("app.other.go"), "/required_actions/3", "required_action", E),
    (controller(required_actions=["usage.report", "runtime.claim"]), "/required_actions", "controller_cannot_work", W),
    (metering("admin", "tokens"), "/metering/0/port", "port_unknown", E),
    (metering("web", "requests"), "/metering/0/counters/1/unit", "metering_unit", E),
    (unit("gpu_hours"), "/usage_units/0/unit", "unit_repeats_allocation", E),
    (unit("node_seconds_used"), "/usage_units/0/unit", "unit_repeats_allocation", E),
    (without("lifecycle"), "", "lifecycle_missing", E),
    (without("runbook"), "", "runbook_missing", E),
    (
        lifecycle(upgrade={"strategy": "rolling", "from_versions": ["1.x"]}),
        "/lifecycle/upgrade/from_versions/0",
        "version_range",
        E,
    ),
    (lifecycle(upgrade={"strategy": "none", "from_versions": ["1.0.0"]}), "/lifecycle/upgrade", "upgrade_unused", W),
    (lifecycle(rollback={"supported": True}), "/lifecycle/rollback", "rollback_nowhere", E),
    (lifecycle(rollback={"supported": False, "to_versions": ["1.0.0"]}), "/lifecycle/rollback", "rollback_nowhere", E),
    (lifecycle(attach={"supported": True}), "/lifecycle/attach", "attach_nowhere", E),
    (lifecycle(drain={"from_config": "patience"}), "/lifecycle/drain/from_config", "drain_config", E),
]


@every_row(("plain", "pointer", "rule", "severity"), CASES, ids=lambda each: each if isinstance(each, str) else "")
def test_a_rule_finds_what_it_is_for(plain: Plain, pointer: str, rule: str, severity: Severity) -> None:
    slug = "hello" if rule == "app_other" else plain["app"]
    reading = examine(plain, AppContext(slug))

    found = [each for each in reading.findings if each.rule == rule]
    assert [each.pointer for each in found][:1] == [pointer], reading.findings
    assert found[0].severity is severity
    others = {each.rule for each in reading.findings} - {rule}
    assert not others - {"form_unbounded"}, reading.findings
    assert found[0].reason
    assert found[0].fix


def test_every_rule_is_tried_and_says_why_it_exists() -> None:
    tried = {rule for _, _, rule, _ in CASES if not rule.startswith("form_")}

    assert tried == set(RULES)
    assert all(why[0].isupper() and why.endswith(".") for why in RULES.values())


@every_row("name", EVERY_APP)
def test_good_manifests_have_no_findings(name: str) -> None:
    assert examine(EVERY_APP[name]).findings == ()


def test_names_that_only_look_like_secrets_are_left_alone() -> None:
    names = ["MAX_TOKENS", "TOKENIZER", "SECRET_FILE", "KEYBOARD", "PASSWORDLESS_LOGIN"]
    findings = examine(profile(env=[{"name": name, "value": "x"} for name in names])).findings

    assert findings == ()


def test_texts_that_only_look_like_images_are_left_alone() -> None:
    texts = ["http://host:80/x", "/data:ro", "a:b", "host:8080", f"registry.example/app@{digest('a')}", "s3://b/k:v x"]

    assert examine(profile(command=texts)).findings == ()


def test_errors_stand_before_warnings() -> None:
    findings = examine(controller(required_actions=["user.create"], components=[HEAD])).findings

    assert [each.severity for each in findings] == sorted(each.severity for each in findings)
    assert {each.severity for each in findings} == {E, W}


def test_a_manifest_that_cannot_be_read_is_not_linted() -> None:
    reading = examine({"app": "x"})

    assert reading.manifest is None
    assert {each.rule for each in reading.findings} == {"missing", "pattern"}


# Refusing


def test_errors_are_refused_with_all_findings_and_warnings_pass() -> None:
    refuse_errors(examine(profile(probes={})).findings)
    with pytest.raises(Refusal) as refused:
        refuse_errors(examine(controller(required_actions=["user.create"], components=[HEAD])).findings)

    refusal = refused.value
    assert refusal.code is Code.MANIFEST_INVALID
    assert isinstance(refusal.details["findings"], list)
    first = refusal.details["findings"][0]
    assert set(first) == {"pointer", "rule", "severity", "reason", "fix"}
    assert type(first["severity"]) is str
    assert refusal.detail.startswith("/compatibility/multi_node: ")
    assert refusal.detail.endswith("and 1 more")


# Permission keys


def test_a_category_lends_its_family_of_keys_and_no_other() -> None:
    assert frozenset({"scheduler"}) == FAMILIES
    manifest = read(controller())

    assert why_not_permission("scheduler.queue.submit", manifest, "scheduler") is None
    assert why_not_permission("scheduler.queue.submit", manifest, None) is None
    assert why_not_permission("app.cluster.queue.submit", manifest, "scheduler") is None
    for key, category in (
        ("scheduler.queue.submit", "notebook"),
        ("scheduler.queue.invented", "scheduler"),
        ("catalog.read", "scheduler"),
        ("catalog.read", None),
        ("app.cluster.", "scheduler"),
        ("app.cluster", None),
        ("app.cluster2.queue.submit", None),
        ("", None),
    ):
        assert why_not_permission(key, manifest, category) is not None, key


def test_no_category_borrows_the_platforms_own_keys() -> None:
    assert {"instance", "tenant", "secret", "app", "catalog", "runtime"} <= RESERVED_CATEGORIES
    assert not RESERVED_CATEGORIES & FAMILIES
    manifest = read(controller())
    for key in ACTIONS:
        family = key.partition(".")[0]
        assert (why_not_permission(key, manifest, family) is None) is (family in FAMILIES), key


def test_an_operator_account_is_required_to_hold_only_what_a_service_account_may() -> None:
    manifest = read(controller())

    assert {key for key in ACTIONS if why_not_required(key, manifest) is None} == OPERATOR_CEILING


# Modes


def test_only_coherent_pairs_of_mode_and_scope_are_taken() -> None:
    pairs = {(mode, scope) for mode in OperatingMode for scope in ControlPlaneScope}

    assert {pair for pair in pairs if why_incoherent(pair) is None} == set(MODES)
    assert {(mode.value, scope.value) for mode, scope in MODES} == {
        ("tenant_dedicated", "project"),
        ("tenant_dedicated", "tenant"),
        ("platform_managed", "platform"),
    }
    wrong = why_incoherent((OperatingMode.PLATFORM_MANAGED, ControlPlaneScope.PROJECT))
    assert wrong == "platform_managed has a control plane of scope platform, not project"


def test_lint_of_a_typed_manifest_is_that_of_its_text() -> None:
    plain = controller(required_actions=[])

    assert lint(read(plain), AppContext()) == examine(plain).findings


def test_a_unit_that_repeats_the_allocation_passes_when_it_says_so() -> None:
    plain = unit("gpu_hours")
    plain["usage_units"][0]["covered_by_allocation"] = True
    assert [each for each in examine(plain).findings if each.rule == "unit_repeats_allocation"] == []
