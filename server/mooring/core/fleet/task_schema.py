"""The arguments and results of task families, as JSON Schema 2020-12.

Agent and platform check a task against these very values: the platform when a task is made and when its result comes
back, the agent before anything has an effect. Every size and count has its bound here. Paths are absolute, of plain
characters, and no part of one is `.` or `..`; a program is a list of arguments, never a shell's line; a secret is named
and never written out.
"""

from typing import Any, Final

from mooring.core.kernel.sandbox_user import USER_PATTERN

KIB: Final = 1024
ARGUMENTS_BYTES_MAX: Final = 256 * KIB
RESULT_BYTES_MAX: Final = 64 * KIB
OUTPUT_BYTES_MAX: Final = 64 * KIB
"""What of a program's standard output is in a result, beside the result's own size."""
LOG_BYTES_MAX: Final = 256 * KIB
"""What of a log one read gives, beside the result's own size."""
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
    """A closed object; `required` lists the properties that must be there, separated by blanks."""
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


NAME: Final = _text("a name of small letters, digits, points, hyphens and underscores", NAME_PATTERN, 63)
SECRET_NAME: Final = _text("the name of a secret that this task was granted", NAME_PATTERN, 63)
USER: Final = _text("a user of the sandbox", USER_PATTERN, 32)
LOG_NAME: Final = _text("the log that the offset counts in; a container's is replaced when full", "^[0-9a-z]*$", 32)
PORT: Final = _whole("a port", 1, 65_535)
PRIVATE: Final = _truth("whether its place may lie in a private network: the platform says so, by its list of sources")
DIGEST: Final = _text("a digest such as sha256:…", DIGEST_PATTERN, 71)
ARGV: Final = _list(
    "the program and its arguments, never a shell's line; the program is not empty",
    _free("an argument without NUL", 16 * KIB),
    ARGV_MAX,
    1,
)
ENVIRONMENT: Final = _map("variables of the program", _free("a value without NUL", 32 * KIB))
ENVIRONMENT_SECRETS: Final = _map("variables whose value is a secret, by its name", SECRET_NAME)
GRACE: Final = _number("how long it gets to end by itself, in seconds", 0, 3_600)
TIMEOUT: Final = _number("after how many seconds it is ended", 0.1, SECONDS_MAX)
ENDPOINT: Final = _object(
    {"name": NAME, "port": PORT, "protocol": _choice("what is spoken there; WebSocket is http", "http", "tcp")},
    "name port protocol",
    "where the app can be reached, inside the sandbox",
)
LINES: Final = _list("its last lines", _free("a line", LINE_LENGTH_MAX), LAST_LINES_MAX)
EXIT_CODE: Final = _whole("the exit code; below zero: the signal that ended it", -64, 255)
PID: Final = _whole("its process id, inside the sandbox", 1, 2**31)
MOMENT: Final = _number("a time, in seconds since 1970", 0, 1e11)

_PROCESS: Final[Node] = {
    "argv": ARGV,
    "environment": ENVIRONMENT,
    "environment_secrets": ENVIRONMENT_SECRETS,
    "user": USER,
    "directory": _text("where it starts: absolute, no part is `.` or `..`", DIRECTORY_PATTERN, 1_000, 1),
}
_PROBE: Final[Node] = {
    "attempts": _whole("how often it is tried", 1, 1_000),
    "interval_seconds": _number("the pause between two tries", 0.05, 300),
    "timeout_seconds": _number("how long one try may take", 0.05, 300),
}
OUTPUT_BYTES: Final = _whole("how much of its standard output is in the result, in bytes", 0, OUTPUT_BYTES_MAX)
_OUTPUT: Final[Node] = {
    "output": _free("what it wrote to its standard output, as text, from the beginning", OUTPUT_BYTES_MAX),
    "output_truncated": _truth("whether it wrote more than is in `output`"),
}
_SEEN: Final[Node] = {
    "latency_milliseconds": _whole("how long the try that succeeded took", 0, 10**9),
    "attempts": _whole("how many tries it took", 1, 1_000),
    "observed": _free("what was seen", LINE_LENGTH_MAX),
}
_PROBED: Final = _object(_SEEN, "latency_milliseconds")
_STATE: Final[Node] = {
    "state": _choice("how it stands", "running", "backing_off", "exited", "failed", "absent"),
    "pid": _or_null(PID),
    "started_at": _or_null(MOMENT),
    "restarts": _whole("how often it was started again", 0, 10**9),
    "exit_code": _or_null(EXIT_CODE),
    "last_lines": LINES,
}
_COUNT: Final = _whole("how many things", 0, 10**9)
_LOOKED: Final = _object(
    {
        "clean": _truth("whether nothing is left; the receipt says what was looked at"),
        "found": _COUNT,
        "removed": _COUNT,
        "remaining": _COUNT,
        "not_looked": _list("kinds that could not be looked at", _free("a kind", 40), 20),
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
                {"index": _whole("which of the machine's", 0, 1_023), "simulated": _truth("it computes nothing")},
                "index simulated",
            ),
            64,
        ),
        "network": _object(
            {
                "name": _text("the project's network: sandboxes of one name reach each other", NETWORK_PATTERN, 63),
                "address": _text("its address", ADDRESS_PATTERN, 15),
                "subnet": _text("the network's addresses", SUBNET_PATTERN, 18),
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
        "isolation": _choice("how its users are kept apart", "user_namespace", "bounded"),
    },
    "hostname network",
)
_FILE: Final = _object(
    {
        "path": _path("where it goes"),
        "mode": _text("permissions such as 0640", MODE_PATTERN, 4),
        "user": USER,
        "content": _free("what is in it, as text", ARGUMENTS_BYTES_MAX),
        "content_base64": _text("what is in it, in base64", "^[A-Za-z0-9+/]*={0,2}$", ARGUMENTS_BYTES_MAX),
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
                "registry": _text("the registry that has it", REGISTRY_PATTERN, 270),
                "repository": _text("where in the registry", REPOSITORY_PATTERN, 255),
                "digest": DIGEST,
                "secret": SECRET_NAME,
                "private": PRIVATE,
            },
            "registry repository digest",
            "an image, by its digest alone; the secret opens the registry",
        ),
        "argv": {**ARGV, "minItems": 0},
        "environment": ENVIRONMENT,
        "environment_secrets": ENVIRONMENT_SECRETS,
        "user": _text("user, and group, in the container", CONTAINER_USER_PATTERN, 42),
        "mounts": _list(
            "volumes of its owner that it sees: made when first named, and gone with the owner",
            _object({"volume": NAME, "target": _path("in the container"), "read_only": _truth("")}, "volume target"),
            32,
        ),
        "temporary": _list("directories that are there while it runs", _PLAIN_PATH, 16),
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
        "source": _free("where it lies: oci://registry/repository, or an address", 1_000),
        "secret": SECRET_NAME,
        "private": PRIVATE,
        "destination": _path("where it is put in the sandbox; nowhere: it is only cached"),
        "volume": _text("the volume of its owner that it is put into, for containers that mount it", NAME_PATTERN, 63),
        "file": _text("what it is called in that volume", NAME_PATTERN, 63),
        "no_progress_seconds": _number("after how long without a byte it is given up", 1, 3_600),
    },
    "kind digest source",
)
_SERVICE: Final = _object(
    {
        "name": NAME,
        **_PROCESS,
        "restart": _object(
            {
                "policy": _choice("when it is started again", "never", "on_failure", "always"),
                "backoff_seconds": _number("the first pause, which doubles", 0.05, 3_600),
                "limit": _whole("how often in a row", 0, 10_000),
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
            "stdin": _free("what it reads", 64 * KIB),
            "output_bytes": OUTPUT_BYTES,
        },
        "argv",
    ),
    "service.start": _SERVICE,
    "service.stop": _object(
        {
            "name": NAME,
            "kill": _choice("the main process alone, or all that the owner runs", "main", "owner"),
            "grace_seconds": GRACE,
        },
        "name",
    ),
    "service.inspect": _object({"name": NAME}, "name"),
    "log.read": _object(
        {
            "name": NAME,
            "kind": _choice("what wrote it", "service", "container"),
            "offset": _whole("where to begin; without it the last lines are read", 0, 2**53),
            "tail_lines": _whole("how many lines, where no offset is given", 1, 10_000),
            "max_bytes": _whole("the most that is read", KIB, LOG_BYTES_MAX),
            "wait_seconds": _number("how long to wait for more, where nothing follows on the offset", 0, 25),
            "log": LOG_NAME,
        },
        "name kind",
    ),
    "container.launch": _CONTAINER,
    "container.control": _object(
        {
            "name": NAME,
            "action": _choice("what is done", "stop", "start", "restart", "inspect"),
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
            "path": _text("what is asked for", URL_PATH_PATTERN, 1_000, 1),
            "status": _list("the statuses that are well", _whole("a status", 100, 599), 16, 1),
            **_PROBE,
        },
        "port",
    ),
    "probe.exec": _object(
        {"argv": ARGV, "environment": ENVIRONMENT, "user": USER, "output_bytes": OUTPUT_BYTES, **_PROBE}, "argv"
    ),
    "teardown.verify": _object({"close": {"const": True, "description": "the owner takes nothing more"}}),
    "tunnel.open": _object(
        {
            "relay": _text("where the agent dials", REGISTRY_PATTERN, 270),
            "ports": _list("ports of the sandbox that streams may go to", PORT, 64),
            "argv": ARGV,
            "user": USER,
            "directory": _text("where the command starts", DIRECTORY_PATTERN, 1_000, 1),
            "environment": ENVIRONMENT,
            "terminal": _truth("whether the command has a terminal; else pipes, its errors apart from its output"),
            "columns": _whole("width of the viewer's window", 1, 1_000),
            "rows": _whole("height of the viewer's window", 1, 1_000),
            "idle_seconds": _number("after how many seconds without a stream it ends", 1, SECONDS_MAX),
        },
        "relay",
        "ports for connections, or argv for one command",
    ),
}
_CONTAINER_STATE: Final[Node] = {
    "container_id": _text("its id", "^[0-9a-zA-Z_.-]{1,128}$", 128),
    "state": _free("how it stands", 64),
    "exit_code": _or_null(EXIT_CODE),
    "image_digest": DIGEST,
    "last_lines": LINES,
}
RESULTS: Final[dict[str, Node]] = {
    "sandbox.create": _object(
        {
            "isolation": _choice("what keeps it apart", "user_namespace", "bounded", "none", "simulated"),
            "address": _free("its address", 64),
            "limits": _map("which limits are in force, and by what", _free("", 200)),
            "host": _choice("what made it", "namespace", "process", "simulated"),
        },
        "isolation host",
    ),
    "sandbox.destroy": _LOOKED,
    "files.write": _object({"written": _whole("how many", 0, FILES_MAX)}, "written"),
    "process.run": _object({"exit_code": EXIT_CODE, **_OUTPUT}, "exit_code"),
    "service.start": _object({key: _STATE[key] for key in ("state", "pid", "started_at")}),
    "service.stop": _object({"stopped": _truth("it is stopped now"), "was_running": _truth("it ran")}, "stopped"),
    "service.inspect": _object(_STATE, "state"),
    "log.read": _object(
        {
            "content_base64": _text("what was read, in base64", "^[A-Za-z0-9+/]*={0,2}$", LOG_BYTES_MAX // 3 * 4 + 4),
            "offset": _whole("where it begins", 0, 2**53),
            "next_offset": _whole("where the next part begins", 0, 2**53),
            "size": _whole("where the log ends now", 0, 2**53),
            "truncated_before": _truth("something that was asked for is not kept any more"),
            "dropped_bytes": _whole("how much of it, where that is known", 0, 2**53),
            "log": LOG_NAME,
        },
        "content_base64 offset next_offset size truncated_before",
    ),
    "container.launch": _object(
        {**_CONTAINER_STATE, "fetched_bytes": _whole("what had to be fetched", 0, 1 << 50)}, "container_id"
    ),
    "container.control": _object(_CONTAINER_STATE, "state"),
    "container.remove": _object({"removed": _truth("there was one")}, "removed"),
    "artifact.fetch": _object(
        {
            "image_id": _text("the image's id", "^[0-9a-f]{64}$", 64),
            "bytes": _whole("its size", 0, 1 << 50),
            "from_cache": _truth("nothing was fetched for it"),
        },
        "bytes from_cache",
    ),
    "probe.tcp": _PROBED,
    "probe.http": _PROBED,
    "probe.exec": _object({**_SEEN, **_OUTPUT}, "latency_milliseconds"),
    "teardown.verify": _LOOKED,
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
