"""`python -m mooring_adapter.scaffold --language go DIRECTORY`: the program behind `mooring adapter init`."""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mooring_adapter.scaffold.writer import LANGUAGES, ScaffoldRefused, write


def main(arguments: Sequence[str] | None = None) -> int:
    reader = argparse.ArgumentParser(
        prog="mooring adapter init", description="Write a small adapter that keeps every promise of the suite."
    )
    reader.add_argument("--language", choices=sorted(LANGUAGES), required=True)
    reader.add_argument("--app", metavar="SLUG", help="the app's name; by default that of the directory")
    reader.add_argument("directory", type=Path)
    given = reader.parse_args(arguments)
    app = given.app or re.sub(r"[^a-z0-9-]+", "-", given.directory.resolve().name.lower()).strip("-")
    try:
        names = write(given.directory, given.language, app)
    except (ScaffoldRefused, OSError) as error:
        reader.error(str(error))
    chosen = LANGUAGES[given.language]
    print(f"Wrote {len(names)} files into {given.directory}: {', '.join(names)}")
    print(f"It needs {chosen.needs}. Next:\n\n  cd {given.directory}")
    print(f"  {chosen.build}\n" if chosen.build else "", end="")
    print(f"  mooring adapter test --manifest manifest.json --profile profile.json {chosen.run}")
    print("\nREADME.md goes on from there.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
