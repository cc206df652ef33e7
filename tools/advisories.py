"""Asks an advisory database about every locked version: `make advisories`.

The database is OSV, which has the advisories of the Python ecosystem, by its batch query; `MOORING_ADVISORY_URL` names
another place that answers the same queries, such as a mirror. Exit codes: 0, no advisory; 1, there are some; 2, no
database could be reached, and nothing was checked.
"""

import os
import sys
from collections.abc import Iterator
from typing import Final

import httpx

from tools.bill_of_materials import LOCK, LockedPackage, locked

DEFAULT_URL: Final = "https://api.osv.dev/v1/querybatch"
NOTHING_CHECKED: Final = 2
SECONDS_MAX: Final = 30.0


class NotReached(Exception):
    """The database gave no usable answer."""


def advisories(packages: list[LockedPackage], url: str) -> Iterator[tuple[LockedPackage, list[str]]]:
    """The packages that have advisories, with the ids of these."""
    queries = [{"package": {"ecosystem": "PyPI", "name": each.name}, "version": each.version} for each in packages]
    try:
        answer = httpx.post(url, json={"queries": queries}, timeout=SECONDS_MAX)
        answer.raise_for_status()
        results = answer.json()["results"]
        if len(results) != len(packages):
            raise NotReached("it did not answer for every package")
        for package, result in zip(packages, results, strict=True):
            if found := [str(each["id"]) for each in result.get("vulns", [])]:
                yield package, found
    except httpx.HTTPError as error:
        raise NotReached(type(error).__name__) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotReached("its answer has another form") from error


def main() -> int:
    url = os.environ.get("MOORING_ADVISORY_URL", DEFAULT_URL)
    packages = list(locked(LOCK.read_text(encoding="utf-8")))
    try:
        found = list(advisories(packages, url))
    except NotReached as error:
        print(f"advisories: NOTHING WAS CHECKED: no advisory database could be reached at {url} ({error})")
        return NOTHING_CHECKED
    for package, ids in found:
        print(f"{package.name} {package.version}: {', '.join(ids)}")
    print(f"advisories: {len(packages)} locked versions checked, {len(found)} with advisories")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
