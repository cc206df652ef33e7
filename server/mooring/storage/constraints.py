"""The database's refusals, by the names of its constraints, as errors of the catalogue.

The core refuses first, with the better message; these are for races and for mistakes. A constraint that is not in
this table should never be met: it answers as `internal`, and the log names it. A test compares the table with the
database.
"""

from collections.abc import Mapping
from typing import Final

from mooring.core.errors import Code

REFUSALS: Final[Mapping[str, tuple[Code, str]]] = {
    "tenant_slug_taken": (Code.NAME_TAKEN, "a tenant with this slug exists"),
    "project_slug_taken": (Code.NAME_TAKEN, "the tenant has a project with this slug"),
    "user_email_taken": (Code.NAME_TAKEN, "a user with this e-mail address exists here"),
    "membership_taken": (Code.NAME_TAKEN, "the user has this role here already"),
    "membership_user_of_tenant": (Code.NOT_FOUND, "the tenant has no such user"),
    "membership_stays_home": (Code.NOT_FOUND, "there is no such user here"),
    "membership_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "membership_keeps_an_admin": (Code.LAST_ADMIN, "nobody would be left to administer this place"),
    "project_deleted_is_empty": (Code.NOT_EMPTY, "something was made in the project a moment ago"),
    "service_account_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "webhook_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "membership_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "allocation_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "instance_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "attachment_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "service_account_name_taken": (Code.NAME_TAKEN, "the project has a service account with this name"),
    "service_account_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "service_account_key_taken": (Code.NAME_TAKEN, "the service account has this key already"),
    "service_account_key_of_tenant": (Code.NOT_FOUND, "there is no such service account"),
    "assertion_used_before": (Code.ASSERTION_REFUSED, "this assertion was exchanged before"),
    "webhook_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "platform_key_one_current": (Code.NAME_TAKEN, "there is a current key for this purpose"),
    "transition_edge_is_legal": (Code.ILLEGAL_TRANSITION, "the lifecycle has no such transition"),
    "transition_follows_previous": (Code.ILLEGAL_TRANSITION, "the transition does not follow the last one"),
    "member_removed_needs_closing_record": (Code.CLOSING_RECORD_MISSING, "the member has no closing record"),
    "instance_stopped_needs_closing_records": (Code.CLOSING_RECORD_MISSING, "a member has no closing record"),
    "closing_record_nothing_was_started": (
        Code.CLOSING_RECORD_MISSING,
        "a task of the member was claimed or waits",
    ),
    "closing_record_node_is_retired": (Code.CLOSING_RECORD_MISSING, "the node is not retired"),
    "member_instance_is_open": (Code.ILLEGAL_TRANSITION, "the instance takes no more members"),
    "task_member_is_open": (Code.ILLEGAL_TRANSITION, "the member is closed"),
}
