"""The arguments and results of task families, as JSON Schema 2020-12.

The platform checks a task against these schemas when the task is created and when its result is reported, the agent
before anything has an effect. Every size and count has its limit here. Paths are absolute, of plain characters, and no
part is `.` or `..`; a program is a list of arguments, never a shell command line; a secret is referenced by its name.
"""

from typing import Any, Final

from mooring.core.kernel.sandbox_user import USER_PATTERN

KIB: Final = 1024
ARGUMENTS_BYTES_MAX: Final = 256 * KIB
RESULT_BYTES_MAX: Final = 64 * KIB
METRIC_PATTERN: Final = "^[a-zA-Z_:][a-zA-Z0-9_:]*$"
METRICS_MAX: Final = 33
"""Counters of one path, and the start of the process."""
SAMPLES_MAX: Final = 256
SAMPLE_LENGTH_MAX: Final = 500
OUTPUT_BYTES_MAX: Final = 64 * KIB
"""The most of a program's standard output in a result, in addition to the result's own size limit."""
LOG_BYTES_MAX: Final = 256 * KIB
"""The most of a log that one read returns, in addition to the result's own size limit."""
LAST_LINES_MAX: Final = 50
LINE_LENGTH_MAX: Final = 2_000
SECONDS_MAX: Final = 86_400
ARGV_MAX: Final = 256
FILES_MAX: Final = 256
PEERS_MAX: Final = 1_024

NAME_PATTERN: Final = "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$"
PATH_PATTERN: Final = r"^(/\.?[A-Za-z0-9_@+=:,~%-][A-Za-z0-9._@+=:,~%-]{0,253}){1,64}$"
PLAIN_PATH_PATTERN: Final = r"^(/\.?[A-Za-z0-9_@+=~%-][A-Za-z0-9._@+=~%-]{0,253}){1,64}$"
DIRECTORY_PATTERN: Final = r"^(/|(/\.?[A-Za-z0-9_@+=:,~%-][A-Za-z0-9._@+=:,~%-]{0,253}){1,64})$"
MODE_PATTERN: Final = "^0?[0-7]{3}$"
CONTAINER_USER_PATTERN: Final = "^[1-9][0-9]{0,4}:[1-9][0-9]{0,4}$"
ENVIRONMENT_PATTERN: Final = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
HOSTNAME_PATTERN: Final = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
NETWORK_PATTERN: Final = "^[a-z0-9][a-z0-9_-]{0,62}$"
ADDRESS_PATTERN: Final = r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}$"
SUBNET_PATTERN: Final = r"^[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}/[0-9]{1,2}$"
DIGEST_PATTERN: Final = "^sha256:[0-9a-f]{64}$"
REPOSITORY_PATTERN: Final = "^[a-z0-9]+([._-]+[a-z0-9]+){0,20}(/[a-z0-9]+([._-]+[a-z0-9]+){0,20}){0,10}$"
REGISTRY_PATTERN: Final = r"^https?://[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?$"
NO_NUL_PATTERN: Final = r"^[^\x00]*$"
URL_PATH_PATTERN: Final = "^/[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*$"

Node = dict[str, Any]


def _text(description: str, pattern: str, longest: int, least: int = 0) -> Node:
    node: Node = {"type": "string", "pattern": pattern, "maxLength": longest, "description": description}
    return node | {"minLength": least} if least else node


def _free(description: str, longest: int) -> Node:
    return _text(description, NO_NUL_PATTERN, longest)


def _whole(description: str, least: int, most: int) -> Node:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


def _number(description: str, least: float, most: float) -> Node:
    return {"type": "number", "minimum": least, "maximum": most, "description": description}


def _truth(description: str) -> Node:
    return {"type": "boolean", "description": description}


def _choice(description: str, *choices: str) -> Node:
    return {"type": "string", "enum": list(choices), "description": description}


def _list(description: str, items: Node, most: int, least: int = 0) -> Node:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, "description": description}


def _or_null(node: Node) -> Node:
    return {**node, "type": [node["type"], "null"]}


def _object(properties: Node, required: str = "", description: str = "") -> Node:
    """A closed object; `required` lists the required properties, separated by spaces."""
    node: Node = {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }
    return node | {"description": description} if description else node


def _path(description: str) -> Node:
    return _text(f"{description}: absolute, plain characters, no part is `.` or `..`", PATH_PATTERN, 1_000, 2)


def _map(description: str, values: Node) -> Node:
    return {
        "type": "object",
        "description": description,
        "maxProperties": 200,
        "additionalProperties": values,
        "propertyNames": {"type": "string", "pattern": ENVIRONMENT_PATTERN, "maxLength": 128},
    }


NAME: Final = _text("a name of lower-case letters, digits, dots, hyphens and underscores", NAME_PATTERN, 63)
SECRET_NAME: Final = _text("the name of a secret that this task was granted", NAME_PATTERN, 63)
USER: Final = _text("a user of the sandbox", USER_PATTERN, 32)
LOG_NAME: Final = _text(
    "the log file that the offset refers to; a container's log is replaced when full", "^[0-9a-z]*$", 32
)
PORT: Final = _whole("a port", 1, 65_535)
PRIVATE: Final = _truth("whether its source may be in a private network; the platform sets it from its list of sources")
DIGEST: Final = _text("a digest such as sha256:…", DIGEST_PATTERN, 71)
ARGV: Final = _list(
    "the program and its arguments, never a shell command line; the program is not empty",
    _free("an argument without NUL", 16 * KIB),
    ARGV_MAX,
    1,
)
ENVIRONMENT: Final = _map("variables of the program", _free("a value without NUL", 32 * KIB))
ENVIRONMENT_SECRETS: Final = _map("variables whose value is a secret, by the secret's name", SECRET_NAME)
GRACE: Final = _number("how long it has to stop by itself, in seconds", 0, 3_600)
TIMEOUT: Final = _number("after how many seconds it is killed", 0.1, SECONDS_MAX)
ENDPOINT: Final = _object(
    {"name": NAME, "port": PORT, "protocol": _choice("the protocol of the port; WebSocket is http", "http", "tcp")},
    "name port protocol",
    "a port of the app inside the sandbox",
)
LINES: Final = _list("its last lines", _free("a line", LINE_LENGTH_MAX), LAST_LINES_MAX)
EXIT_CODE: Final = _whole("the exit code; below zero: the signal that killed it", -64, 255)
PID: Final = _whole("its process id, inside the sandbox", 1, 2**31)
MOMENT: Final = _number("a time, in seconds since 1970", 0, 1e11)

_PROCESS: Final[Node] = {
    "argv": ARGV,
    "environment": ENVIRONMENT,
    "environment_secrets": ENVIRONMENT_SECRETS,
    "user": USER,
    "directory": _text("the working directory: absolute, no part is `.` or `..`", DIRECTORY_PATTERN, 1_000, 1),
}
_PROBE: Final[Node] = {
    "attempts": _whole("the number of attempts", 1, 1_000),
    "interval_seconds": _number("the pause between two attempts", 0.05, 300),
    "timeout_seconds": _number("how long one attempt may take", 0.05, 300),
}
OUTPUT_BYTES: Final = _whole("how much of its standard output is in the result, in bytes", 0, OUTPUT_BYTES_MAX)
_OUTPUT: Final[Node] = {
    "output": _free("the beginning of its standard output, as text", OUTPUT_BYTES_MAX),
    "output_truncated": _truth("whether it wrote more than is in `output`"),
}
_PROBE_RESULT: Final[Node] = {
    "latency_milliseconds": _whole("how long the successful attempt took", 0, 10**9),
    "attempts": _whole("how many attempts it took", 1, 1_000),
    "observed": _free("what was observed", LINE_LENGTH_MAX),
}
_PROBED: Final = _object(_PROBE_RESULT, "latency_milliseconds")
_STATE: Final[Node] = {
    "state": _choice("its state", "running", "backing_off", "exited", "failed", "absent"),
    "pid": _or_null(PID),
    "started_at": _or_null(MOMENT),
    "restarts": _whole("how often it was restarted", 0, 10**9),
    "exit_code": _or_null(EXIT_CODE),
    "last_lines": LINES,
}
_COUNT: Final = _whole("how many things", 0, 10**9)
_TEARDOWN_RESULT: Final = _object(
    {
        "clean": _truth("whether nothing is left; the receipt says what was checked"),
        "found": _COUNT,
        "removed": _COUNT,
        "remaining": _COUNT,
        "not_looked": _list("kinds that could not be checked", _free("a kind", 40), 20),
    }
)

_SANDBOX: Final = _object(
    {
        "hostname": _text("its name", HOSTNAME_PATTERN, 63),
        "cpus": _number("processors", 0.01, 4_096),
        "memory_bytes": _whole("memory", 16 << 20, 1 << 50),
        "pids": _whole("processes and threads", 16, 1 << 22),
        "devices": _list(
            "its GPUs",
            _object(
                {"index": _whole("the index on the machine", 0, 1_023), "simulated": _truth("it computes nothing")},
                "index simulated",
            ),
            64,
        ),
        "network": _object(
            {
                "name": _text(
                    "the project's network: sandboxes with the same name reach each other", NETWORK_PATTERN, 63
                ),
                "address": _text("its address", ADDRESS_PATTERN, 15),
                "subnet": _text("the subnet of the network", SUBNET_PATTERN, 18),
                "machine": _truth("whether it uses the machine's own network instead"),
            },
            "name address subnet",
        ),
        "peers": _list(
            "other sandboxes of the project, by name",
            _object(
                {"name": _text("a name", HOSTNAME_PATTERN, 63), "address": _text("an address", ADDRESS_PATTERN, 15)},
                "name address",
            ),
            PEERS_MAX,
        ),
        "isolation": _choice("how its users are isolated", "user_namespace", "bounded"),
    },
    "hostname network",
)
_FILE: Final = _object(
    {
        "path": _path("the path of the file"),
        "mode": _text("permissions such as 0640", MODE_PATTERN, 4),
        "user": USER,
        "content": _free("the content, as text", ARGUMENTS_BYTES_MAX),
        "content_base64": _text("the content, in base64", "^[A-Za-z0-9+/]*={0,2}$", ARGUMENTS_BYTES_MAX),
        "secret": SECRET_NAME,
        "directory": _truth("it is a directory"),
    },
    "path",
    "one of content, content_base64, secret and directory",
)
_PLAIN_PATH: Final = _text(
    "in the container: absolute, plain characters, neither `:` nor `,`, no part is `.` or `..`",
    PLAIN_PATH_PATTERN,
    1_000,
    2,
)
_CONTAINER: Final = _object(
    {
        "name": NAME,
        "image": _object(
            {
                "registry": _text("the registry of the image", REGISTRY_PATTERN, 270),
                "repository": _text("the repository in the registry", REPOSITORY_PATTERN, 255),
                "digest": DIGEST,
                "secret": SECRET_NAME,
                "private": PRIVATE,
            },
            "registry repository digest",
            "an image by its digest; the secret is the credential for the registry",
        ),
        "argv": {**ARGV, "minItems": 0},
        "environment": ENVIRONMENT,
        "environment_secrets": ENVIRONMENT_SECRETS,
        "user": _text("user, and group, in the container", CONTAINER_USER_PATTERN, 42),
        "mounts": _list(
            "volumes of its owner to mount: created when first named, and removed with the owner",
            _object({"volume": NAME, "target": _path("in the container"), "read_only": _truth("")}, "volume target"),
            32,
        ),
        "temporary": _list("temporary directories that exist while it runs", _PLAIN_PATH, 16),
        "cpus": _number("processors", 0.01, 4_096),
        "memory_bytes": _whole("memory", 8 << 20, 1 << 50),
        "pids": _whole("processes and threads", 8, 1 << 22),
        "endpoint": ENDPOINT,
    },
    "name image",
)
_FETCH: Final = _object(
    {
        "kind": _choice("what it is", "oci", "blob"),
        "digest": DIGEST,
        "size": _whole("its size in bytes", 0, 1 << 50),
        "source": _free("its location: oci://registry/repository, or a URL", 1_000),
        "secret": SECRET_NAME,
        "private": PRIVATE,
        "destination": _path("the target in the sandbox; without it the artifact is only cached"),
        "volume": _text(
            "the volume of its owner to put it into, for containers that mount the volume", NAME_PATTERN, 63
        ),
        "file": _text("the name of the file in that volume", NAME_PATTERN, 63),
        "no_progress_seconds": _number("after how many seconds without a byte it fails", 1, 3_600),
    },
    "kind digest source",
)
_SERVICE: Final = _object(
    {
        "name": NAME,
        **_PROCESS,
        "restart": _object(
            {
                "policy": _choice("when it is restarted", "never", "on_failure", "always"),
                "backoff_seconds": _number("the first pause between restarts, which doubles", 0.05, 3_600),
                "limit": _whole("how many restarts in a row", 0, 10_000),
            },
            "policy",
        ),
        "endpoint": ENDPOINT,
    },
    "name argv",
)

ARGUMENTS: Final[dict[str, Node]] = {
    "sandbox.create": _SANDBOX,
    "sandbox.destroy": _object({}),
    "files.write": _object({"files": _list("the files", _FILE, FILES_MAX, 1)}, "files"),
    "process.run": _object(
        {
            **_PROCESS,
            "timeout_seconds": TIMEOUT,
            "stdin": _free("its standard input", 64 * KIB),
            "output_bytes": OUTPUT_BYTES,
        },
        "argv",
    ),
    "service.start": _SERVICE,
    "service.stop": _object(
        {
            "name": NAME,
            "kill": _choice("kill only the main process, or all processes of the owner", "main", "owner"),
            "grace_seconds": GRACE,
        },
        "name",
    ),
    "service.inspect": _object({"name": NAME}, "name"),
    "log.read": _object(
        {
            "name": NAME,
            "kind": _choice("what wrote it", "service", "container"),
            "offset": _whole("where to start; without it the last lines are read", 0, 2**53),
            "tail_lines": _whole("how many lines, if no offset is given", 1, 10_000),
            "max_bytes": _whole("the most bytes to read", KIB, LOG_BYTES_MAX),
            "wait_seconds": _number("how long to wait for more, if nothing follows the offset", 0, 25),
            "log": LOG_NAME,
        },
        "name kind",
    ),
    "container.launch": _CONTAINER,
    "container.control": _object(
        {
            "name": NAME,
            "action": _choice("the action", "stop", "start", "restart", "inspect"),
            "grace_seconds": GRACE,
        },
        "name action",
    ),
    "container.remove": _object({"name": NAME}, "name"),
    "artifact.fetch": _FETCH,
    "probe.tcp": _object({"port": PORT, **_PROBE}, "port"),
    "probe.http": _object(
        {
            "port": PORT,
            "path": _text("the path of the request", URL_PATH_PATTERN, 1_000, 1),
            "status": _list("the status codes that mean success", _whole("a status", 100, 599), 16, 1),
            "metrics": _list(
                "names of Prometheus metrics whose samples are in the result",
                _text("the name of a metric", METRIC_PATTERN, 200, 1),
                METRICS_MAX,
            ),
            **_PROBE,
        },
        "port",
    ),
    "probe.exec": _object(
        {"argv": ARGV, "environment": ENVIRONMENT, "user": USER, "output_bytes": OUTPUT_BYTES, **_PROBE}, "argv"
    ),
    "teardown.verify": _object({"close": {"const": True, "description": "no more tasks are accepted for the owner"}}),
    "tunnel.open": _object(
        {
            "relay": _text("the relay to connect to", REGISTRY_PATTERN, 270),
            "ports": _list("ports of the sandbox that streams may connect to", PORT, 64),
            "argv": ARGV,
            "user": USER,
            "directory": _text("the working directory of the command", DIRECTORY_PATTERN, 1_000, 1),
            "environment": ENVIRONMENT,
            "terminal": _truth(
                "whether the command has a terminal; otherwise it has pipes, with its errors separate from its output"
            ),
            "columns": _whole("width of the viewer's window", 1, 1_000),
            "rows": _whole("height of the viewer's window", 1, 1_000),
            "idle_seconds": _number("after how many seconds without a stream the tunnel ends", 1, SECONDS_MAX),
        },
        "relay",
        "ports for connections, or argv for one command",
    ),
}
_CONTAINER_STATE: Final[Node] = {
    "container_id": _text("its id", "^[0-9a-zA-Z_.-]{1,128}$", 128),
    "state": _free("its state", 64),
    "exit_code": _or_null(EXIT_CODE),
    "image_digest": DIGEST,
    "last_lines": LINES,
}
RESULTS: Final[dict[str, Node]] = {
    "sandbox.create": _object(
        {
            "isolation": _choice("what isolates it", "user_namespace", "bounded", "none", "simulated"),
            "address": _free("its address", 64),
            "limits": _map("which limits are in force, and what enforces them", _free("", 200)),
            "host": _choice("what made it", "namespace", "process", "simulated"),
        },
        "isolation host",
    ),
    "sandbox.destroy": _TEARDOWN_RESULT,
    "files.write": _object({"written": _whole("how many files were written", 0, FILES_MAX)}, "written"),
    "process.run": _object({"exit_code": EXIT_CODE, **_OUTPUT}, "exit_code"),
    "service.start": _object({key: _STATE[key] for key in ("state", "pid", "started_at")}),
    "service.stop": _object(
        {"stopped": _truth("it is stopped now"), "was_running": _truth("it was running")}, "stopped"
    ),
    "service.inspect": _object(_STATE, "state"),
    "log.read": _object(
        {
            "content_base64": _text("the content, in base64", "^[A-Za-z0-9+/]*={0,2}$", LOG_BYTES_MAX // 3 * 4 + 4),
            "offset": _whole("where it starts", 0, 2**53),
            "next_offset": _whole("where the next part starts", 0, 2**53),
            "size": _whole("where the log ends now", 0, 2**53),
            "truncated_before": _truth("some of the requested part is no longer stored"),
            "dropped_bytes": _whole("how much of it, if known", 0, 2**53),
            "log": LOG_NAME,
        },
        "content_base64 offset next_offset size truncated_before",
    ),
    "container.launch": _object(
        {**_CONTAINER_STATE, "fetched_bytes": _whole("how many bytes had to be fetched", 0, 1 << 50)}, "container_id"
    ),
    "container.control": _object(_CONTAINER_STATE, "state"),
    "container.remove": _object({"removed": _truth("whether the container existed")}, "removed"),
    "artifact.fetch": _object(
        {
            "image_id": _text("the image's id", "^[0-9a-f]{64}$", 64),
            "bytes": _whole("its size", 0, 1 << 50),
            "from_cache": _truth("whether it came from the cache and nothing was fetched"),
        },
        "bytes from_cache",
    ),
    "probe.tcp": _PROBED,
    "probe.http": _object(
        {
            **_PROBE_RESULT,
            "samples": _list("lines of the wanted metrics", _free("a line", SAMPLE_LENGTH_MAX), SAMPLES_MAX),
        },
        "latency_milliseconds",
    ),
    "probe.exec": _object({**_PROBE_RESULT, **_OUTPUT}, "latency_milliseconds"),
    "teardown.verify": _TEARDOWN_RESULT,
    "tunnel.open": _object(
        {
            "streams": _whole("how many streams were opened", 0, 10**9),
            "bytes_in": _whole("bytes towards the sandbox", 0, 1 << 60),
            "bytes_out": _whole("bytes from the sandbox", 0, 1 << 60),
            "exit_code": _or_null(EXIT_CODE),
        },
        "streams",
    ),
}


_ROLE: Final = _text("the role of an artifact in the manifest", "^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$", 63)
_NAMED: Final[Node] = {"artifact": _ROLE, "digest": DIGEST}
"""An artifact of the pinned version, by its role or its digest; the platform fills in where it is."""


def _with(schema: Node, fields: Node, required: str, without: tuple[str, ...] = ()) -> Node:
    """A schema with further properties, without some, and with these required ones."""
    kept = {name: each for name, each in schema["properties"].items() if name not in without}
    return _object({**kept, **fields}, required, schema.get("description", ""))


ADAPTER_ARGUMENTS: Final[dict[str, Node]] = {
    "files.write": _object(
        {"files": _list("the files", _with(_FILE, {"artifact": _ROLE}, "path"), FILES_MAX, 1)}, "files"
    ),
    "container.launch": _with(
        _CONTAINER, {"image": _object(_NAMED, "", "the image: one of artifact and digest")}, "name image"
    ),
    "artifact.fetch": _with(_FETCH, _NAMED, "", ("kind", "size", "source", "secret", "private")),
}
"""The arguments as adapters give them, where they differ: an adapter names artifacts by role or digest."""
