"""Settings: read once from the environment, checked, and passed on.

Every setting has a default for a laptop and one line of explanation, from which `docs/settings.md` is generated. An
invalid value stops the start with an error that names the setting, its value and what it accepts.
"""

import base64
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "MOORING_"
METRICS_ON_API: Final = "api"
METRICS_NONE: Final = "none"


class SettingRefused(Exception):
    """A setting has an invalid value."""


def _setting(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def default_data_dir() -> Path:
    """The default directory of the embedded database; the master key is next to it."""
    if os.geteuid() == 0:
        return Path("/var/lib/mooring")
    home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return Path(home) / "mooring"


@dataclass(frozen=True, slots=True)
class Settings:
    database_url: str = _setting(
        "", "A PostgreSQL server (15 or newer) of your own. Empty: the embedded one is started."
    )
    data_dir: str = _setting(
        "",
        "Directory of the embedded database. Empty: `~/.local/share/mooring`, or `/var/lib/mooring` as root.",
    )
    master_key_file: str = _setting(
        "",
        "File of the master key. Empty: `master.key` in the directory `<data_dir>-keys`, made on first start.",
    )
    root_key: str = _setting(
        "",
        "Public half of the offline root key (`mooring root-key create`), which revokes keys of tasks. Empty: none.",
    )
    master_key_command: str = _setting(
        "", "A command, without a shell, that prints the master keys as the file has them, instead of the file."
    )
    master_key_unwrap_command: str = _setting(
        "",
        "A command that gets a wrapped key of the master key file on stdin and prints the plain one in base64: a hook "
        "for a key service.",
    )
    listen_host: str = _setting("127.0.0.1", "Address that the API listens on.")
    listen_port: int = _setting(7420, "Port that the API listens on; 0 takes a free one.")
    tls: str = _setting(
        "",
        "`local`: make a certificate authority for this machine in `<data_dir>-tls` and serve a certificate of it, as "
        "`mooring up --tls` does. Empty: TLS if a certificate is given.",
    )
    tls_cert_file: str = _setting(
        "", "Certificate chain (PEM) of the API and the relay, read again when the file changes. Empty: no TLS."
    )
    tls_key_file: str = _setting("", "Private key (PEM, not encrypted) of that certificate.")
    node_certificates: str = _setting(
        "required",
        "`required`: with TLS of its own, the platform takes a node's requests only with its client certificate. "
        "`off`: not, for platforms whose TLS a proxy ends.",
    )
    node_certificate_hours: float = _setting(
        24.0, "How long a node's client certificate is valid; agents renew it after two thirds. At most 720."
    )
    public_url: str = _setting(
        "",
        "URL under which callers reach the API: the audience of assertions. Empty: the listening address.",
    )
    trusted_proxies: str = _setting(
        "", "Addresses of proxies (comma-separated) whose X-Forwarded-For names the caller's address. Empty: none."
    )
    metrics_listen: str = _setting(
        "",
        "Where the metrics are served: `host:port`, the path of a Unix socket, `api` (on the API's socket, for "
        "everybody who reaches it) or `none`. Empty: 127.0.0.1:7429; a free port if the API's is.",
    )
    relay_listen_port: int = _setting(
        0, "Port of the relay, through which apps are reached. 0: the one after the API's; a free one if the API's is."
    )
    relay_url: str = _setting(
        "", "URL under which nodes and the command line reach this process's relay. Empty: the listening address."
    )
    relay_endpoints_url: str = _setting(
        "",
        "URL of endpoints for browsers, with a star for the endpoint's own name, such as https://*.apps.example.org. "
        "Empty: http://*.localhost with the relay's port, or https://*.apps.localhost with TLS.",
    )
    relay_connections_per_address: int = _setting(
        128,
        "Connections to one process's relay that one address may have before they have shown what they are for "
        "(a ticket, a session, a node's token). 0: no bound.",
    )
    relay_connections_per_visit: int = _setting(
        64, "Connections that one session or ticket may have at one process's relay. 0: no bound."
    )
    relay_connections_per_tenant: int = _setting(
        1000, "Connections that the viewers of one tenant may have at one process's relay. 0: no bound."
    )
    exec_sessions_per_project: int = _setting(
        64, "Interactive commands (terminals and pipes) that one project may have open at once. 0: no bound."
    )
    exec_sessions_per_allocation: int = _setting(
        32, "Interactive commands that one allocation, which is one sandbox, may have open at once. 0: no bound."
    )
    terminals_per_principal: int = _setting(
        16, "Terminals over WebSocket that one user or service account may have open in one process. 0: no bound."
    )
    terminals_max: int = _setting(
        500, "Terminals over WebSocket that one process holds; each keeps up to 64 KiB of output."
    )
    terminal_resume_seconds: float = _setting(
        60.0, "How long a terminal over WebSocket goes on without a viewer, so that a page can be reloaded."
    )
    database_connections: int = _setting(8, "Connections in each of the two pools of one process.")
    database_connect_timeout_seconds: float = _setting(
        5.0, "Longest time that connecting to the database may take; at least 1."
    )
    statement_timeout_seconds: float = _setting(30.0, "Longest time that one database statement may take.")
    token_cache_seconds: float = _setting(
        5.0, "How long a process may still accept a token that another process revoked."
    )
    keep_alive_seconds: int = _setting(
        75,
        "How long a connection may be idle, before its first request or between two, until it is closed; at least 1.",
    )
    body_limit_bytes: int = _setting(1_048_576, "Largest request body.")
    body_timeout_seconds: float = _setting(30.0, "Longest time that a request's body may take to arrive.")
    header_limit_bytes: int = _setting(32_768, "Largest sum of request headers.")
    page_size_max: int = _setting(500, "Most items on one page of a list.")
    wait_seconds_max: float = _setting(60.0, "Longest time that a read waits for a change.")
    rate_limit_per_second: float = _setting(100.0, "Sustained requests per second of one caller.")
    rate_limit_burst: int = _setting(400, "Requests that one caller may send at once.")
    sign_in_limit_per_minute: float = _setting(
        10.0,
        "Wrong passwords per minute from one address at one account; ten times as many at all accounts together. "
        "Unknown tokens, assertions and enrolments are counted apart, each with the same limits.",
    )
    one_time_code_hours: float = _setting(
        24.0, "How long a one-time sign-in code is valid; more than 0 and at most 720."
    )
    streams_per_principal: int = _setting(32, "Event streams that one caller may hold open in one process.")
    idempotency_retention_hours: float = _setting(
        48.0, "How long an answer is stored under its Idempotency-Key; at least 24."
    )
    usage_window_days: float = _setting(
        35.0, "How old a meter event may be; an older one waits in the queue of late usage until somebody resolves it."
    )
    meter_events_per_second: float = _setting(20_000.0, "Sustained meter events per second of one tenant.")
    event_retention_days: float = _setting(90.0, "How long events are kept.")
    audit_retention_days: float = _setting(0.0, "How long audit rows are kept; 0 keeps them forever.")
    outbox_retention_days: float = _setting(30.0, "How long ended deliveries are kept.")
    task_retention_days: float = _setting(
        90.0, "How long ended tasks are kept; those that created, destroyed or verified a sandbox stay, with receipts."
    )
    upload_retention_days: float = _setting(14.0, "How long an uploaded blob is kept that no version uses.")
    gpu_metrics_retention_days: float = _setting(30.0, "How long the measured minutes of GPUs are kept.")
    exec_recording_retention_days: float = _setting(90.0, "How long recordings of exec sessions are kept.")
    task_log_retention_days: float = _setting(30.0, "How long the output of an ended task is kept.")
    check_retention_days: float = _setting(
        90.0, "How long ended checks of artifacts are kept; the last of each kind, and the last that passed, stay."
    )
    token_retention_days: float = _setting(30.0, "How long expired and revoked tokens are kept, for the audit trail.")
    webhook_attempts_max: int = _setting(12, "How many attempts a delivery gets before it is a dead letter.")
    webhook_timeout_seconds: float = _setting(10.0, "How long a webhook's receiver may take to answer.")
    webhook_allow_networks: str = _setting(
        "",
        "Private networks (CIDR, comma-separated) that the URLs of tenants may reach anyway, except for the platform's "
        "own addresses, loopback, link-local addresses and the database.",
    )
    registry_url: str = _setting(
        "", "The platform's own registry (https://host:port), which accepts the tokens of this platform. Empty: none."
    )
    registry_service: str = _setting("mooring-registry", "`auth.token.service` of that registry: its name in tokens.")
    registry_issuer: str = _setting("mooring", "`auth.token.issuer` of that registry: this platform's name in tokens.")
    registry_token_seconds: int = _setting(300, "How long a token for that registry is valid; at most 3600.")
    promotion_grace_days: float = _setting(30.0, "How long something stays deprecated before it may be retired.")
    source_timeout_seconds: float = _setting(
        120.0, "Longest time that a request to a source may take, and that a check waits for the next bytes."
    )
    check_wait_seconds: float = _setting(
        20.0, "How long registering, verifying and staging wait for their check before they answer that it is running."
    )
    check_lease_seconds: float = _setting(
        30.0, "After so long without a heartbeat of its process a check is given to another one; at least 3."
    )
    check_hours_max: float = _setting(72.0, "Longest time that reading one part of an artifact may take in a check.")
    untrusted_per_app_max: int = _setting(
        5, "Instances of one app that are drained or stopped at once because their artifacts are no longer trusted."
    )
    untrusted_per_tenant_max: int = _setting(2, "The same for one tenant.")
    untrusted_max: int = _setting(20, "The same for the whole platform.")
    checks_at_once: int = _setting(4, "Checks of artifacts that one process runs side by side.")
    source_limit_bytes: int = _setting(1_099_511_627_776, "Largest blob that is read from a source.")
    source_redirect_hosts: str = _setting(
        "", "Hosts (comma-separated, `*.domain` too) that sources of blobs may redirect to besides their own."
    )
    source_bucket_endpoint: str = _setting(
        "", "URL of the S3 service that `s3://` means. Empty: `s3://` is not available."
    )
    source_huggingface_endpoint: str = _setting(
        "", "URL of the hub that `huggingface://` means. Empty: `huggingface://` is not available."
    )
    source_file_directory: str = _setting(
        "", "Directory of the files that `file:` means. Empty: `file:` is not available."
    )
    gpu_sample_seconds: float = _setting(15.0, "How often agents sample their GPUs; 0 switches it off.")
    node_heartbeat_seconds: float = _setting(30.0, "How often agents are asked to poll; each poll is a heartbeat.")
    task_lease_seconds: float = _setting(
        90.0, "How long an agent holds a task after its last poll or report; then it is offered again."
    )
    open_tasks_per_project_max: int = _setting(
        1_000, "Most open tasks of one project, without those that begin and end its allocations; at least 1."
    )
    task_log_limit_bytes: int = _setting(8_388_608, "How much of a task's output is stored.")
    allocation_place_seconds: int = _setting(
        3_600, "How long an allocation waits for a place before it fails, unless the request says otherwise."
    )
    hold_seconds: int = _setting(
        3_600,
        "For how long a new allocation reserves its price, where a budget blocks or the tenant pays in advance.",
    )
    node_unreachable_seconds: float = _setting(
        90.0, "How long a node may send no heartbeat before it is marked as unreachable; at least 5."
    )
    node_attestation_command: str = _setting(
        "",
        "Command, without a shell, that judges nodes waiting for approval: facts on stdin, exit code 0 accepts, "
        "1 refuses, anything else leaves it to an operator. Empty: none.",
    )
    node_attestation_seconds: float = _setting(10.0, "How long that command may take; 1 to 60.")
    deploy_seconds: int = _setting(1_800, "How long a launch may take once its capacity is ready.")
    operation_seconds: int = _setting(3_600, "How long any other operation may take; a teardown has no limit.")
    step_seconds: int = _setting(1_800, "How long one step of an operation may take.")
    claim_seconds: int = _setting(
        300, "How long an operation waits for an adapter to claim it before it fails with `adapter_unavailable`."
    )
    cancel_seconds: int = _setting(120, "How long an adapter has to stop an operation that was cancelled.")
    adapter_lease_seconds: float = _setting(
        45.0, "How long an adapter holds an instance after its last heartbeat; then it is offered again; at least 3."
    )
    shutdown_seconds: float = _setting(20.0, "How long a stop waits for running requests.")
    log_level: str = _setting("info", "debug, info, warning or error.")
    log_format: str = _setting("json", "json, or console for people.")
    otlp_endpoint: str = _setting(
        "", "OTLP/HTTP endpoint for traces; empty: `OTEL_EXPORTER_OTLP_ENDPOINT`, or no traces."
    )

    @property
    def one_time_code_lifetime(self) -> timedelta:
        return timedelta(hours=self.one_time_code_hours)

    @property
    def data_path(self) -> Path:
        return Path(self.data_dir) if self.data_dir else default_data_dir()

    @property
    def root_key_bytes(self) -> bytes | None:
        """The public half of the root key, if there is one."""
        return base64.urlsafe_b64decode(self.root_key + "=") if self.root_key else None

    @property
    def uses_node_certificates(self) -> bool:
        return bool(self.tls or self.tls_cert_file) and self.node_certificates == "required"

    @property
    def local_tls_path(self) -> Path:
        """The directory of this machine's certificate authority: outside of the database's, whose account reads all."""
        return self.data_path.with_name(self.data_path.name + "-tls")

    @property
    def master_key_path(self) -> Path:
        """The file of the master key, outside of the database's directory."""
        if self.master_key_file:
            return Path(self.master_key_file)
        return self.data_path.with_name(self.data_path.name + "-keys") / "master.key"


_ROOT_KEY = re.compile(r"[A-Za-z0-9_-]{43}")
_ENDPOINTS = re.compile(r"https?://\*\.[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment; raises SettingRefused."""
    source = os.environ if environment is None else environment
    given: dict[str, Any] = {}
    for each in fields(Settings):
        text = source.get(PREFIX + each.name.upper())
        if text is not None and text != "":
            given[each.name] = _value(each, text)
    settings = Settings(**given)
    _check(settings)
    return settings


def _value(each: Field[Any], text: str) -> Any:
    kind: type[Any] = type(each.default)
    try:
        value = kind(text)
    except ValueError as error:
        raise SettingRefused(f"{PREFIX}{each.name.upper()} must be {_form(kind)}; it is {text!r}") from error
    if kind is float and not math.isfinite(value):
        raise SettingRefused(f"{PREFIX}{each.name.upper()} must be {_form(kind)}; it is {text!r}")
    if kind in (int, float) and value < 0:
        raise SettingRefused(f"{PREFIX}{each.name.upper()} must not be negative; it is {text!r}")
    return value


def _form(kind: type) -> str:
    return {int: "a whole number", float: "a number"}.get(kind, "text")


def _check(settings: Settings) -> None:
    if settings.idempotency_retention_hours < 24:
        raise SettingRefused(f"{PREFIX}IDEMPOTENCY_RETENTION_HOURS must be at least 24")
    if settings.listen_port > 65_535:
        raise SettingRefused(f"{PREFIX}LISTEN_PORT must be at most 65535; it is {settings.listen_port}")
    if settings.relay_listen_port > 65_535:
        raise SettingRefused(f"{PREFIX}RELAY_LISTEN_PORT must be at most 65535; it is {settings.relay_listen_port}")
    if settings.relay_endpoints_url and not _ENDPOINTS.fullmatch(settings.relay_endpoints_url):
        raise SettingRefused(f"{PREFIX}RELAY_ENDPOINTS_URL must be a URL such as https://*.apps.example.org")
    if settings.root_key and not _ROOT_KEY.fullmatch(settings.root_key):
        raise SettingRefused(
            f"{PREFIX}ROOT_KEY must be 32 bytes in base64url, as `mooring root-key create` prints them"
        )
    if settings.metrics_listen not in ("", METRICS_ON_API, METRICS_NONE):
        read_metrics_listen(settings.metrics_listen)
    if not 0 < settings.one_time_code_hours <= 720:
        raise SettingRefused(f"{PREFIX}ONE_TIME_CODE_HOURS must be more than 0 and at most 720")
    if settings.keep_alive_seconds < 1:
        raise SettingRefused(f"{PREFIX}KEEP_ALIVE_SECONDS must be at least 1")
    if settings.database_connections < 1:
        raise SettingRefused(f"{PREFIX}DATABASE_CONNECTIONS must be at least 1")
    if settings.database_connect_timeout_seconds < 1:
        raise SettingRefused(f"{PREFIX}DATABASE_CONNECT_TIMEOUT_SECONDS must be at least 1")
    for network in filter(None, (part.strip() for part in settings.webhook_allow_networks.split(","))):
        try:
            ip_network(network)
        except ValueError as error:
            wanted = f"{PREFIX}WEBHOOK_ALLOW_NETWORKS must be networks such as 10.0.0.0/8"
            raise SettingRefused(f"{wanted}: {error}") from error
    if not 1 <= settings.registry_token_seconds <= 3_600:
        raise SettingRefused(f"{PREFIX}REGISTRY_TOKEN_SECONDS must be between 1 and 3600")
    if settings.node_unreachable_seconds < 5:
        raise SettingRefused(f"{PREFIX}NODE_UNREACHABLE_SECONDS must be at least 5")
    if not 1 <= settings.node_attestation_seconds <= 60:
        raise SettingRefused(f"{PREFIX}NODE_ATTESTATION_SECONDS must be between 1 and 60")
    try:
        shlex.split(settings.node_attestation_command)
    except ValueError as error:
        raise SettingRefused(f"{PREFIX}NODE_ATTESTATION_COMMAND must be words as in a shell: {error}") from error
    if settings.open_tasks_per_project_max < 1:
        raise SettingRefused(f"{PREFIX}OPEN_TASKS_PER_PROJECT_MAX must be at least 1")
    if settings.adapter_lease_seconds < 3:
        raise SettingRefused(f"{PREFIX}ADAPTER_LEASE_SECONDS must be at least 3")
    if settings.check_lease_seconds < 3:
        raise SettingRefused(f"{PREFIX}CHECK_LEASE_SECONDS must be at least 3")
    if min(settings.untrusted_per_app_max, settings.untrusted_per_tenant_max, settings.untrusted_max) < 1:
        raise SettingRefused(f"{PREFIX}UNTRUSTED_PER_APP_MAX, …_PER_TENANT_MAX and …_MAX must be at least 1")
    if settings.checks_at_once < 1:
        raise SettingRefused(f"{PREFIX}CHECKS_AT_ONCE must be at least 1")
    if settings.tls not in ("", "local"):
        raise SettingRefused(f"{PREFIX}TLS must be local or empty; it is {settings.tls!r}")
    if settings.node_certificates not in ("required", "off"):
        raise SettingRefused(f"{PREFIX}NODE_CERTIFICATES must be required or off; it is {settings.node_certificates!r}")
    if not 0 < settings.node_certificate_hours <= 720:
        raise SettingRefused(f"{PREFIX}NODE_CERTIFICATE_HOURS must be more than 0 and at most 720")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        raise SettingRefused(f"{PREFIX}LOG_LEVEL must be debug, info, warning or error; it is {settings.log_level!r}")
    if settings.log_format not in ("json", "console"):
        raise SettingRefused(f"{PREFIX}LOG_FORMAT must be json or console; it is {settings.log_format!r}")
    if settings.master_key_command and (settings.master_key_file or settings.master_key_unwrap_command):
        raise SettingRefused(
            f"{PREFIX}MASTER_KEY_COMMAND prints the keys itself: unset {PREFIX}MASTER_KEY_FILE and "
            f"{PREFIX}MASTER_KEY_UNWRAP_COMMAND"
        )
    reads_file = not settings.master_key_command
    if reads_file and not settings.database_url and _below(settings.master_key_path, settings.data_path):
        raise SettingRefused(
            f"{PREFIX}MASTER_KEY_FILE must be outside of the database's directory {settings.data_path}, "
            "so that a copy of one is not a copy of both"
        )


@dataclass(frozen=True, slots=True)
class MetricsPlace:
    """Where the metrics are served: a path, or a host and a port."""

    path: str = ""
    host: str = ""
    port: int = 0


def read_metrics_listen(text: str) -> MetricsPlace:
    """The place that MOORING_METRICS_LISTEN names; raises SettingRefused."""
    if text.startswith("/"):
        return MetricsPlace(path=text)
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise SettingRefused(
            f"{PREFIX}METRICS_LISTEN must be host:port, an absolute path, `api` or `none`; it is {text!r}"
        )
    return MetricsPlace(host=host, port=int(port))


def _below(path: Path, directory: Path) -> bool:
    return path.resolve().is_relative_to(directory.resolve())
