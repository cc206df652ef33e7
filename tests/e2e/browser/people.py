"""People of a trial: its newcomer, a person who may only look, the admin of another tenant."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.e2e.browser.console_page import trial_record
from tests.e2e.trial_process import TrialProcess

OTHER, VIEWER, PASSWORD = "admin@other.example", "vera@try.local", "four unrelated words here"


@contextmanager
def signed_in(trial: TrialProcess, body: dict[str, str]) -> Iterator[httpx.Client]:
    """The API as somebody with this sign-in."""
    with httpx.Client(base_url=f"http://127.0.0.1:{trial.port}/api/v1", timeout=60) as client:
        client.headers["authorization"] = (
            f"Bearer {client.post('/sign-in', json=body).raise_for_status().json()['token']}"
        )
        yield client


def make_other_tenant(trial: TrialProcess) -> None:
    """A second tenant, whose admin has a password."""
    admin = {"email": "admin@mooring.local", "password": trial_record(trial)["admin_password"]}
    with signed_in(trial, admin) as client:
        person = {"email": OTHER, "display_name": "Other"}
        body = {"slug": "other", "display_name": "Other", "first_admin": person}
        code = client.post("/tenants", json=body).raise_for_status().json()["one_time_code"]
    with signed_in(trial, {"tenant": "other", "email": OTHER, "one_time_code": code, "new_password": PASSWORD}):
        pass


def make_viewer(trial: TrialProcess) -> None:
    """A person who may only look, in the one project of the trial."""
    you = {"tenant": "try", "email": "you@try.local", "password": trial_record(trial)["user_password"]}
    with signed_in(trial, you) as client:
        project = client.get("/projects").json()["items"][0]
        made = client.post(f"/tenants/{project['tenant_id']}/users", json={"email": VIEWER, "display_name": "Vera"})
        role = {"user_id": made.raise_for_status().json()["id"], "role": "project_viewer"}
        client.post(f"/projects/{project['id']}/memberships", json=role).raise_for_status()
    code = {"one_time_code": made.json()["one_time_code"], "new_password": PASSWORD}
    with signed_in(trial, {"tenant": "try", "email": VIEWER, **code}):
        pass
