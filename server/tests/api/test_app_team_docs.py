"""The pages for app teams say what the permissions and the routes are, and point to what is there."""

import re
from pathlib import Path

from mooring.api.routes import ROUTES
from mooring.core.kernel.permissions import ROLE_ACTIONS, SERVICE_ACCOUNT_CEILING, Role
from tests.support.rows import every_row

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "app-teams").glob("*.md"))
CHECKLIST = DOCS / "checklists" / "app-onboarding.md"
WORDS = {True: "yes", False: "no"}
OPERATIONS = (
    ("launch", "instance.create"),
    ("read an instance", "instance.read"),
    ("upgrade, roll back, reconcile, repair, restart", "instance.update"),
    ("stop", "instance.delete"),
    ("open an endpoint", "instance.connect"),
    ("read members", "member.read"),
    ("add members", "member.add"),
    ("drain a member, resume it", "member.drain"),
    ("remove a member", "member.remove"),
    ("replace a member", "member.replace"),
    ("read operations", "operation.read"),
    ("cancel an operation", "operation.cancel"),
    ("claim instances as the adapter", "runtime.claim"),
    ("report members, steps, endpoints, health", "runtime.report"),
    ("create tasks for its own members", "task.create"),
    ("store a secret of the instance", "secret.create"),
    ("report usage", "usage.report"),
)


def row(what: str, action: str) -> str:
    people = [WORDS[action in ROLE_ACTIONS[role]] for role in (Role.TENANT_ADMIN, Role.PROJECT_ADMIN)]
    others = [WORDS[action in ROLE_ACTIONS[role]] for role in (Role.PROJECT_MEMBER, Role.PROJECT_VIEWER)]
    account = "if it is on its list" if action in SERVICE_ACCOUNT_CEILING else "never"
    return f"| {what} | `{action}` | {' | '.join([*people, *others, account])} |"


@every_row(("what", "action"), OPERATIONS)
def test_the_table_of_member_operations_is_what_the_permissions_say(what: str, action: str) -> None:
    page = (DOCS / "app-teams" / "member-operations.md").read_text(encoding="utf-8")
    assert row(what, action) in page.splitlines()


def test_every_action_of_members_is_in_the_table() -> None:
    documented = {action for _, action in OPERATIONS}
    families = ("member.", "operation.", "runtime.")
    routed = {each.action for each in ROUTES if each.action.startswith(families)}
    assert routed <= documented


@every_row("path", [*PAGES, CHECKLIST, DOCS / "timeline.md"], ids=lambda path: str(path.name))
def test_what_a_page_points_to_is_there(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert (path.parent / target).exists(), f"{path.name} points to {target}"
    for name in re.findall(r"`((?:server|agent|adapters|tests|cli|sdk|tools)/[A-Za-z0-9_./-]+)`", text):
        assert (ROOT / name).exists(), f"{path.name} names {name}"


def test_each_point_of_the_checklist_names_the_check_that_shows_it() -> None:
    points = re.split(r"^- \[ \] ", CHECKLIST.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(points) >= 12
    for point in points:
        assert re.search(r"\*\([^)]*`[^`]+`[^)]*\)\*", point, flags=re.DOTALL), f"no check: {point[:60]}"
