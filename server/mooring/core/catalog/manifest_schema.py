"""The schema of manifests: the single definition of what a manifest may contain.

It is JSON Schema 2020-12 and is published exactly as it is here. `manifest.read_manifest` validates against the same
value, so the published and the enforced schema cannot differ. Every size and count has its limit here. `manifest_lint`
checks what a schema cannot express (that a port is declared, that a text is a digest and not a tag).

`x-form` holds hints for a form, as in the schemas that an app's author writes (`form_schema`).
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, Final

from mooring.core.catalog.compatibility import CapacityShape, NeedKind, ShapeWanted
from mooring.core.catalog.operating_mode import ControlPlaneScope, OperatingMode
from mooring.core.catalog.semver import VERSION_LENGTH_MAX, VERSION_PATTERN
from mooring.core.kernel.form_schema import FORM_DEFINITION, HINTS_DEFINITION, PROPERTY_NAME_PATTERN
from mooring.core.kernel.sandbox_user import USER_PATTERN
from mooring.core.kernel.validation import SLUG_PATTERN

MANIFEST_VERSION: Final = 1
SCHEMA_ID: Final = "urn:mooring:schema:manifest:1"
DIGEST_PATTERN: Final = "^sha256:[0-9a-f]{64}$"
KEY_PATTERN: Final = "^[a-z][a-z0-9_-]{0,39}$"
ACTION_NAME_PATTERN: Final = r"^[a-z][a-z0-9_-]{0,39}(\.[a-z][a-z0-9_-]{0,39}){0,2}$"
ENVIRONMENT_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
DRAIN_SECONDS: Final = 300
DRAIN_SECONDS_MAX: Final = 604_800
CONFIG_FIELD_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_-]{0,63}$"
CONTAINER_USER: Final = "^[1-9][0-9]{0,4}:[1-9][0-9]{0,4}$"
PATH_PATTERN: Final = r"^/[^\x00-\x1f]*$"

GIB: Final = 1024**3
SECONDS_MAX: Final = 86_400
MEMBERS_MAX: Final = 10_000

Node = dict[str, Any]


def _described(node: Mapping[str, Any], description: str, **more: Any) -> Node:
    return {**node, "description": description, **more}


def _text(description: str, longest: int, *, least: int = 0, widget: str | None = None) -> Node:
    node: Node = {"type": "string", "maxLength": longest, "description": description}
    if least:
        node["minLength"] = least
    if widget:
        node["x-form"] = {"widget": widget}
    return node


def _form(description: str, pattern: str, longest: int) -> Node:
    return {"type": "string", "pattern": pattern, "maxLength": longest, "description": description}


def _choice(description: str, choices: Sequence[str], default: str | None = None) -> Node:
    node: Node = {"type": "string", "enum": [str(each) for each in choices], "description": description}
    return node if default is None else {**node, "default": default}


def _whole(description: str, least: int, most: int, default: int | None = None) -> Node:
    node: Node = {"type": "integer", "minimum": least, "maximum": most, "description": description}
    return node if default is None else {**node, "default": default}


def _flag(description: str, default: bool = False) -> Node:
    return {"type": "boolean", "description": description, "default": default}


def _list(description: str, items: Mapping[str, Any], most: int, *, least: int = 0, unique: bool = False) -> Node:
    node: Node = {"type": "array", "items": items, "maxItems": most, "description": description}
    if least:
        node["minItems"] = least
    if unique:
        node["uniqueItems"] = True
    return node


def _object(description: str, required: Sequence[str], /, **properties: Node) -> Node:
    return {
        "type": "object",
        "description": description,
        "required": list(required),
        "additionalProperties": False,
        "properties": properties,
    }


def _one_of(*names: str) -> list[Node]:
    return [{"required": [name]} for name in names]


def _ref(name: str) -> Node:
    return {"$ref": f"#/$defs/{name}"}


_KEY: Final = {"type": "string", "pattern": KEY_PATTERN, "maxLength": 40}
_ARTIFACT_ROLE: Final = _described(_KEY, "the role of an artifact in `artifacts`")
_PORT_NAME: Final = _described(_KEY, "the name of a port that `runtime_profile.ports` declares")
_ARGUMENTS: Final = _list("the program and its arguments; there is no shell", _text("one argument", 4_096), 128)
_FACT: Final = {"type": ["boolean", "number", "string"], "maxLength": 200}
_RANGE: Final = _text("a range of versions such as `>=1.2.0 <2.0.0`", 300, least=1)
_TITLE: Final = _text("a name that people read", 120, least=1)

_NEED: Final = {
    **_object(
        "a fact that every node of the instance must have",
        ["fact"],
        fact=_described(_KEY, "the name of the fact, such as `rdma` or `gpu_memory_gib`"),
        equals=_described(_FACT, "the value that the fact must have"),
        at_least={"type": "number", "description": "the minimum of the fact"},
        one_of=_list("the values that the fact may have", _FACT, 50, least=1),
        present={"const": True, "description": "the node must have the fact, whatever its value, such as a program"},
    ),
    "oneOf": _one_of(*NeedKind),
}
_SHAPES: Final = [str(each) for each in CapacityShape]
_SHAPE_WANTED: Final = {
    "type": ["string", "array"],
    "description": "the kind of allocation that it runs in; a list of all kinds means `any`",
    "enum": [
        *(str(each) for each in ShapeWanted),
        *(list(each) for count in range(1, len(_SHAPES) + 1) for each in permutations(_SHAPES, count)),
    ],
    "maxItems": len(_SHAPES),
    "default": str(ShapeWanted.ANY),
}
_COMPATIBILITY: Final = _object(
    "what the app requires of its capacity",
    [],
    requires_capacity_shape=_SHAPE_WANTED,
    min_gpu_count=_whole("the fewest GPUs, of all its allocations together", 0, 100_000, 0),
    requires_exclusive_node=_flag("whether it needs whole nodes that are not shared"),
    multi_node=_flag("whether its members may run on several nodes"),
    shares_allocation=_flag(
        "whether its members may share an allocation with members of another instance that also allows it"
    ),
    needs=_list("facts that its nodes must have", _ref("need"), 32),
)
_ENVIRONMENT: Final = {
    **_object(
        "a variable of the environment",
        ["name"],
        name=_form("the variable's name", ENVIRONMENT_PATTERN, 128),
        value=_text("the value; never a secret", 8_192),
        from_config=_form("the field of `config_schema` that provides the value", CONFIG_FIELD_PATTERN, 64),
        from_secret=_described(_KEY, "the runtime secret that provides the value"),
    ),
    "oneOf": _one_of("value", "from_config", "from_secret"),
}
_PORT: Final = _object(
    "a port on which the app listens",
    ["name", "port"],
    name=_described(_KEY, "the port's name"),
    port=_whole("the number within the sandbox", 1, 65_535),
    protocol=_choice("the transport", ["tcp", "udp"], "tcp"),
)
_RESOURCES: Final = _object(
    "the most that one member may use, besides its GPUs",
    [],
    cpu_millicores=_whole("thousandths of a core", 10, 1_024_000),
    memory_bytes=_whole("memory", 4 * 1024**2, 64 * 1024 * GIB),
    shared_memory_bytes=_whole("size of /dev/shm", 0, 64 * 1024 * GIB),
    scratch_bytes=_whole("disk that is deleted with the member", 0, 1024 * 1024 * GIB),
    pids_max=_whole("processes and threads", 1, 4_194_304),
)
_PROBE: Final = _object(
    "how the platform observes a member",
    ["kind"],
    kind=_choice("what the probe does", ["tcp", "http", "exec"]),
    port=_PORT_NAME,
    path=_form("the path of an http probe", PATH_PATTERN, 1_024),
    command=_ARGUMENTS,
    initial_delay_seconds=_whole("how long to wait before the first attempt", 0, SECONDS_MAX, 0),
    period_seconds=_whole("the time between two attempts", 1, 3_600, 10),
    timeout_seconds=_whole("how long an answer may take", 1, 600, 5),
    failures_max=_whole("how many failures in a row make the probe fail", 1, 1_000, 3),
)
_VOLUME: Final = _object(
    "a directory that is mounted",
    ["name", "path", "kind"],
    name=_described(_KEY, "the volume's name"),
    path=_form("where it is mounted", PATH_PATTERN, 1_024),
    kind=_choice("empty and deleted with the member, or the content of an artifact", ["scratch", "artifact"]),
    artifact=_ARTIFACT_ROLE,
    size_bytes=_whole("the size of a scratch volume", 1, 1024 * 1024 * GIB),
    read_only=_flag("whether it cannot be written to"),
)
_RUNTIME_PROFILE: Final = _object(
    "how the app is started",
    [],
    image=_described(_ARTIFACT_ROLE, "the role of the image in `artifacts`; an image is never named by a tag"),
    command=_ARGUMENTS,
    user=_form(
        "the user and group of its container, as numbers other than root's; 1000:1000 if omitted", CONTAINER_USER, 11
    ),
    ports=_list("the ports on which it listens", _ref("port"), 32),
    env=_list("its environment", _ref("environment"), 200),
    resources=_RESOURCES,
    probes=_object(
        "how the platform observes a member",
        [],
        startup=_described(_ref("probe"), "repeated until it first succeeds"),
        readiness=_described(_ref("probe"), "whether it accepts work"),
        liveness=_described(_ref("probe"), "whether it must be restarted"),
    ),
    volumes=_list("what is mounted", _ref("volume"), 32),
)
_COMPONENT: Final = _object(
    "a kind of member; only the adapter knows what it does",
    ["key", "max_count"],
    key=_described(_KEY, "the component's key"),
    title=_TITLE,
    min_count=_whole("the minimum number of members of this kind", 0, MEMBERS_MAX, 0),
    default_count=_whole("how many members a launch gets that does not say; the minimum if omitted", 0, MEMBERS_MAX),
    max_count=_whole("the maximum number of members of this kind", 1, MEMBERS_MAX),
)
_COLUMN: Final = {"type": "string", "pattern": PROPERTY_NAME_PATTERN, "maxLength": 64}
_ROW_ACTION: Final = _object(
    "a button of a row",
    ["action", "input"],
    action=_form("the action that it starts", ACTION_NAME_PATTERN, 122),
    input={
        "type": "object",
        "description": "fields of that action's input, and the column that fills in each",
        "maxProperties": 8,
        "propertyNames": _COLUMN,
        "additionalProperties": _COLUMN,
    },
    when={
        "type": "object",
        "description": "columns, and the values with which the button is shown; always if omitted",
        "maxProperties": 4,
        "propertyNames": _COLUMN,
        "additionalProperties": _list("the values", _text("one value", 120), 50, least=1),
    },
)
_ACTION_VIEW: Final = _object(
    "how a client shows the output of an action that only reads: it reads it again from time to time",
    ["kind", "rows", "columns"],
    kind=_choice("a table of rows", ["table"]),
    rows=_described(_COLUMN, "the field of the output that holds the rows, a list of objects"),
    columns=_list("the fields of a row that are shown, in their order", _COLUMN, 16, least=1, unique=True),
    row_actions=_list("the buttons of a row", _ROW_ACTION, 8),
    create=_list("actions that stand above the table", _form("an action", ACTION_NAME_PATTERN, 122), 4, unique=True),
)
_ACTION: Final = _object(
    "a verb that the app's adapter carries out",
    ["name", "permission", "input_schema"],
    name=_form("the verb, such as `queue.submit`", ACTION_NAME_PATTERN, 122),
    title=_TITLE,
    description=_text("what it does", 2_000, widget="textarea"),
    permission=_text("the action key that a caller needs: of the category's family, or `app.<slug>.<action>`", 200),
    target=_choice("what the action applies to", ["instance", "member"], "instance"),
    input_schema=_described(_ref("form"), "the input of the caller"),
    output_schema=_described(_ref("form"), "the result"),
    timeout_seconds=_whole("how long it may take", 1, SECONDS_MAX, 300),
    destructive=_flag("whether it destroys something, so that a client asks for confirmation"),
    read_only=_flag("whether it only reads: then it is not in the audit trail, and is stored for an hour"),
    view=_ACTION_VIEW,
)
_CONNECT: Final = _object(
    "a way to use an endpoint",
    ["kind", "title"],
    kind=_choice("open an address, or run a command", ["browser", "command"]),
    title=_TITLE,
    template=_text("the command; {host}, {port} and {url} are filled in, never a secret", 1_000),
)
_ENDPOINT: Final = _object(
    "where a running instance is reached",
    ["name", "protocol"],
    name=_described(_KEY, "the endpoint's name"),
    title=_TITLE,
    protocol=_choice("the protocol of the endpoint", ["http", "https", "tcp", "ssh", "grpc", "terminal"]),
    port=_PORT_NAME,
    path=_form("the path below the address", PATH_PATTERN, 1_024),
    access=_choice("who checks the caller: the platform, or the app itself", ["platform", "app"], "platform"),
    user=_form("the user who runs commands at an endpoint of protocol `terminal`, never root", USER_PATTERN, 32),
    connect=_list("ways to use it", _ref("connect"), 10),
)
_USAGE_UNIT: Final = _object(
    "something that the app meters",
    ["unit", "title"],
    unit=_form("the unit's key, such as `tokens_generated`", "^[a-z][a-z0-9_]{0,39}$", 40),
    title=_TITLE,
    description=_text("what is counted", 1_000, widget="textarea"),
    aggregation=_choice("how the values of an interval are combined", ["sum", "max"], "sum"),
    covered_by_allocation=_flag("whether it only shows who used capacity that the allocation already pays for"),
    counted_by=_choice(
        "who counts it: the app's adapter, or the platform's proxy, one for each request to an endpoint of the app",
        ["adapter", "proxy"],
        "adapter",
    ),
)
_COUNTER: Final = _object(
    "a Prometheus counter, and the unit that it counts",
    ["metric", "unit"],
    metric=_form("the name of the metric", "^[a-zA-Z_:][a-zA-Z0-9_:]*$", 200),
    unit=_form("a key of `usage_units`", "^[a-z][a-z0-9_]{0,39}$", 40),
    labels={
        "type": "object",
        "description": "only samples with these labels are counted",
        "maxProperties": 8,
        "propertyNames": {"pattern": "^[a-zA-Z_][a-zA-Z0-9_]{0,63}$"},
        "additionalProperties": _text("the value of the label", 200),
    },
)
_METERING: Final = _object(
    "counters of a member that are read and reported as usage, without code",
    ["port", "counters"],
    port=_PORT_NAME,
    path=_form("the path of the text format of Prometheus", "^/[A-Za-z0-9._~/-]*$", 200),
    counters=_list("what is counted", _COUNTER, 16, least=1),
)
_OPERATING_MODE: Final = _object(
    "a way in which the app can be run",
    ["operating_mode", "control_plane_scope"],
    operating_mode=_choice("who runs the control plane", list(OperatingMode)),
    control_plane_scope=_choice("whom it serves", list(ControlPlaneScope)),
)
_LIFECYCLE: Final = _object(
    "what happens to instances over time",
    ["upgrade", "rollback", "delete"],
    upgrade=_object(
        "how an instance is upgraded to this version",
        ["strategy"],
        strategy=_choice("how members are upgraded", ["none", "in_place", "rolling", "replace"]),
        from_versions=_list("the versions it can be upgraded from", _RANGE, 32),
    ),
    rollback=_object(
        "how an instance is rolled back from this version",
        ["supported"],
        supported=_flag("whether a rollback is supported"),
        to_versions=_list("the versions it can be rolled back to", _RANGE, 32),
        note=_text("what is lost by a rollback", 2_000, widget="textarea"),
    ),
    restart=_object(
        "whether a running instance can be restarted",
        ["supported"],
        supported=_flag("whether a restart is supported"),
        instead=_text("what to do if it is not", 500),
    ),
    configure=_object(
        "whether the configuration of a running instance can be changed",
        ["supported"],
        supported=_flag("whether a change is supported; the adapter may still refuse a field, with the reason"),
        instead=_text("what to do if it is not", 500),
    ),
    attach=_object(
        "whether other projects of the tenant can use an instance whose control plane has the scope tenant",
        ["supported"],
        supported=_flag("whether attaching is supported"),
        note=_text("what a project should know before it attaches", 2_000, widget="textarea"),
    ),
    drain=_object(
        "how long a member's work may take when it is drained, unless the request says otherwise",
        [],
        seconds=_whole("the number of seconds", 0, DRAIN_SECONDS_MAX, DRAIN_SECONDS),
        from_config=_form("the field of `config_schema` that holds the seconds instead", CONFIG_FIELD_PATTERN, 64),
    ),
    delete=_object(
        "how an instance ends",
        ["data"],
        graceful_seconds=_whole("how long the adapter has for a graceful shutdown", 0, 3_600, 60),
        data=_choice("what happens to its data", ["removed", "exported"]),
        note=_text("what a user should know before deleting it", 2_000, widget="textarea"),
    ),
)
_RUNBOOK: Final = _object(
    "what operators do when the app has a problem",
    ["summary", "entries"],
    summary=_text("what runs where, in a few sentences", 8_000, least=1, widget="textarea"),
    contact=_text("whom to ask", 200),
    entries=_list(
        "one entry for each known problem",
        _object(
            "a known problem",
            ["symptom", "steps"],
            symptom=_text("what an operator observes", 500, least=1),
            cause=_text("the cause", 2_000, widget="textarea"),
            steps=_text("what to do", 8_000, least=1, widget="textarea"),
        ),
        64,
        least=1,
    ),
)

MANIFEST_SCHEMA: Final[Mapping[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": SCHEMA_ID,
    "title": "Manifest of an app version",
    **_object(
        "all that the platform knows about one version of an app",
        ["manifest_version", "app", "version", "artifact_kind", "artifacts"],
        manifest_version={"const": MANIFEST_VERSION, "description": "the version of this schema"},
        app=_form("the app's slug", SLUG_PATTERN, 40),
        version=_form("the semantic version, without build metadata", VERSION_PATTERN, VERSION_LENGTH_MAX),
        release_notes=_text("what is new, for people", 16_000, widget="textarea"),
        artifact_kind=_choice(
            "`oci`: an image that is started without a profile; `launchable`: an image with a profile of how to start "
            "and observe it; `controller`: an app that its own adapter builds and operates",
            ["oci", "launchable", "controller"],
        ),
        artifacts={
            "type": "object",
            "description": "the artifacts by their role, each by its digest",
            "minProperties": 1,
            "maxProperties": 32,
            "propertyNames": _described(_KEY, "the role of the artifact"),
            "additionalProperties": _form("the digest, `sha256:` and 64 hexadecimal digits", DIGEST_PATTERN, 71),
        },
        runtime_backend=_described(_KEY, "what runs the members; opaque to the platform", default="container"),
        compatibility=_COMPATIBILITY,
        runtime_profile=_RUNTIME_PROFILE,
        config_schema=_described(_ref("form"), "what a launcher fills in, as a schema with hints for a form"),
        components=_list("the kinds of its members; without any there is one member", _ref("component"), 32),
        actions=_list("the verbs that its adapter carries out", _ref("action"), 64),
        endpoints=_list("where a running instance is reached", _ref("endpoint"), 16),
        usage_units=_list("what it meters, beyond what the allocation already pays for", _ref("usage_unit"), 32),
        metering=_list("where usage is read from counters of the members", _ref("metering"), 2),
        operating_modes=_list("the ways in which it can be run", _ref("operating_mode"), 3, least=1, unique=True),
        required_actions=_list(
            "the action keys that its operator account needs; an admin agrees to them",
            _text("an action key", 200, least=1),
            100,
            unique=True,
        ),
        topology_modes=_list(
            "the labels of which a launcher may choose one as `topology_mode`; without any there is no choice",
            _described(_KEY, "a label that the adapter defines"),
            32,
            unique=True,
        ),
        lifecycle=_LIFECYCLE,
        runbook=_RUNBOOK,
    ),
    "$defs": {
        "form": FORM_DEFINITION,
        "hints": HINTS_DEFINITION,
        "need": _NEED,
        "environment": _ENVIRONMENT,
        "port": _PORT,
        "probe": _PROBE,
        "volume": _VOLUME,
        "component": _COMPONENT,
        "action": _ACTION,
        "connect": _CONNECT,
        "endpoint": _ENDPOINT,
        "usage_unit": _USAGE_UNIT,
        "metering": _METERING,
        "operating_mode": _OPERATING_MODE,
    },
}
