"""The bill of materials: every locked package with its version, hashes and licence.

It is made from the locks and from the metadata of the installed packages, as CycloneDX 1.6 in JSON. What the console's
scripts contain is in it, too. A licence that is
unknown, or not in the list of those that may be shipped with the platform, fails the run: `tools/licences.toml` names
what was read by a person where the metadata says nothing.
"""

import hashlib
import json
import re
import tomllib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
LOCK: Final = ROOT / "requirements.txt"
CONSOLE_LOCK: Final = ROOT / "console" / "package-lock.json"
STATED: Final = ROOT / "tools" / "licences.toml"
ALLOWED: Final = frozenset(
    {
        "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PostgreSQL", "PSF-2.0",
        "Unlicense", "Zlib",
    }
)  # fmt: skip
"""What may be shipped beside the platform. MPL-2.0 binds its own files only."""
WORDS: Final = {
    "mit": "MIT",
    "mit license": "MIT",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
    "isc license (iscl)": "ISC",
}
"""What packages write where SPDX has an identifier. A bare "BSD" does not say which form; both may be shipped."""
NAMED: Final = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")


@dataclass(frozen=True)
class LockedPackage:
    name: str
    version: str
    hashes: tuple[str, ...]
    kind: str = "pypi"


@dataclass(frozen=True)
class LicensedPackage:
    """A package and its licence as an SPDX expression; an empty one is unknown."""

    package: LockedPackage
    licence: str

    @property
    def complaint(self) -> str | None:
        """Why it may not be shipped."""
        if not self.licence:
            return f"{self.package.name}: unknown licence; read it, and state it in tools/licences.toml"
        if not is_allowed(self.licence):
            return f"{self.package.name}: {self.licence} is not in the list of licences that may be shipped"
        return None


def locked(lock: str) -> Iterator[LockedPackage]:
    """The packages of a lock, in its order."""
    entries = lock.replace("\\\n", " ").splitlines()
    for entry in entries:
        if found := NAMED.match(entry):
            hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]+)", entry))
            yield LockedPackage(found["name"], found["version"], hashes)


def licence_of(package: LockedPackage, stated: dict[str, str]) -> str:
    """The SPDX expression of a package: stated by a person, or from its metadata."""
    if package.name in stated:
        return stated[package.name]
    try:
        return read_licence(distribution(package.name))
    except PackageNotFoundError:
        return ""


def read_licence(installed: Distribution) -> str:
    """The licence that the metadata names, as an SPDX expression."""
    metadata = installed.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    named = metadata["License"].strip() if "License" in metadata else ""
    if named in ALLOWED:
        return named
    if named.lower() in WORDS:
        return WORDS[named.lower()]
    classifiers = [str(each) for each in metadata.get_all("Classifier") or [] if str(each).startswith("License")]
    words = [each.rpartition("::")[2].strip().lower() for each in classifiers]
    known = [WORDS[each] for each in words if each in WORDS]
    return " OR ".join(known) if known and len(known) == len(words) else ""


def is_allowed(expression: str) -> bool:
    """Whether every part (AND), or one of the choices (OR), is in the list; anything more complicated is not."""
    if "(" in expression or " WITH " in expression:
        return False
    return any(all(part.strip() in ALLOWED for part in choice.split(" AND ")) for choice in expression.split(" OR "))


def licensed(lock: str) -> list[LicensedPackage]:
    stated: dict[str, str] = tomllib.loads(STATED.read_text(encoding="utf-8"))["stated"]
    return [LicensedPackage(each, licence_of(each, stated)) for each in locked(lock)]


def licensed_console(lock: str) -> list[LicensedPackage]:
    """The packages whose code is in the console's scripts: all of the lock but those for building and checking."""
    packages: dict[str, dict[str, Any]] = json.loads(lock)["packages"]
    return [
        LicensedPackage(
            LockedPackage(path.rpartition("node_modules/")[2], each["version"], (each["integrity"],), "npm"),
            each.get("license", ""),
        )
        for path, each in packages.items()
        if path and not each.get("dev")
    ]


def document(packages: list[LicensedPackage], parts: dict[str, str], seconds: int) -> dict[str, Any]:
    """The bill of materials; the same lock and parts give the same document."""
    named = "\n".join(f"{each.package.name}=={each.package.version}" for each in packages)
    serial = uuid.UUID(bytes=hashlib.sha256(f"{named}\n{sorted(parts.items())}".encode()).digest()[:16], version=4)
    own = [
        {"type": "application", "bom-ref": name, "name": name, "version": version}
        for name, version in sorted(parts.items())
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(),
            "component": {"type": "application", "bom-ref": "mooring", "name": "mooring"},
        },
        "components": [*own, *(_component(each) for each in packages)],
    }


def _component(each: LicensedPackage) -> dict[str, Any]:
    package = each.package
    purl = f"pkg:{package.kind}/{package.name.replace('@', '%40')}@{package.version}"
    algorithm = "sha256" if package.kind == "pypi" else "integrity"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "licenses": [{"expression": each.licence}],
        # A package has a hash for each of its files, of which an installation takes one.
        "properties": [{"name": f"mooring:lock:{algorithm}", "value": value} for value in package.hashes],
    }
