"""The errors of the catalogue for the constraints of the database, by constraint name.

The core refuses first, with a better message; these entries cover races and bugs. A violation of a constraint that is
not in this table should never happen: the request fails with `internal`, and the log names the constraint. A test
compares the table with the database.
"""

from collections.abc import Mapping
from typing import Final

from mooring.core.kernel.errors import Code

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
    "allocation_name_taken": (Code.NAME_TAKEN, "the project has an allocation with this name"),
    "instance_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "instance_name_taken": (Code.NAME_TAKEN, "the project has an instance with this name"),
    "instance_account_of_tenant": (Code.NOT_FOUND, "there is no such service account"),
    "version_is_in_sight": (Code.NOT_FOUND, "the tenant sees no such version"),
    "instance_version_is_of_app": (Code.NOT_FOUND, "the app has no such version"),
    "usage_record_attached_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "member_allocation_is_free": (Code.ALLOCATION_IN_USE, "the allocation holds members of another instance"),
    "member_allocation_stands": (Code.CONFLICT, "the allocation is being released"),
    "attachment_project_is_open": (Code.NOT_FOUND, "the project is deleted"),
    "attachment_instance_is_shared": (Code.ILLEGAL_TRANSITION, "the instance does not run, or is no longer shared"),
    "instance_stopped_is_detached": (Code.ILLEGAL_TRANSITION, "a project was attached to the instance a moment ago"),
    "usage_record_is_attached": (Code.NOT_FOUND, "the project was never attached to the instance"),
    "service_account_name_taken": (Code.NAME_TAKEN, "the project has a service account with this name"),
    "service_account_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "service_account_key_taken": (Code.NAME_TAKEN, "the service account has this key already"),
    "service_account_key_of_tenant": (Code.NOT_FOUND, "there is no such service account"),
    "assertion_used_before": (Code.ASSERTION_REFUSED, "this assertion was exchanged before"),
    "node_assertion_used_before": (Code.ASSERTION_REFUSED, "this assertion was exchanged before"),
    "node_name_taken": (Code.NAME_TAKEN, "a node with this name exists"),
    "node_signing_key_taken": (Code.NAME_TAKEN, "a node with this key exists; each agent must make its own keys"),
    "node_retired_is_empty": (Code.NOT_EMPTY, "something was placed on the node a moment ago"),
    "slot_node_takes_work": (Code.CONFLICT, "the node accepts no new allocations"),
    "sku_slug_taken": (Code.NAME_TAKEN, "a SKU with this slug exists"),
    "webhook_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "artifact_taken": (Code.NAME_TAKEN, "this digest is registered from this location here already"),
    "artifact_check_one_under_way": (Code.CHECK_RUNNING, "a check of this kind is already running for the artifact"),
    "artifact_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "artifact_source_taken": (Code.NAME_TAKEN, "a source with this pattern is on the list"),
    "signer_key_taken": (Code.NAME_TAKEN, "this key is trusted here already"),
    "artifact_hold_taken": (Code.NAME_TAKEN, "this holder has the digest already"),
    "artifact_hold_digest_is_there": (Code.VERSION_NOT_OFFERED, "no usable artifact has this digest"),
    "artifact_retired_is_free": (Code.HOLD_PRESENT, "something still uses this digest"),
    "app_slug_taken": (Code.NAME_TAKEN, "an app with this slug exists here"),
    "app_slug_means_one": (Code.NAME_TAKEN, "an app with this slug exists"),
    "app_version_number_taken": (Code.NAME_TAKEN, "the app has this version already"),
    "app_version_is_immutable": (Code.VERSION_IMMUTABLE, "a version changes only while it is a draft"),
    "app_version_not_ahead": (Code.VERSION_AHEAD_OF_ARTIFACT, "an artifact of the version is behind"),
    "app_version_canary_has_percentage": (Code.CONFLICT, "the version was promoted at the same time; read it again"),
    "app_version_staged_is_the_manifest": (Code.CONFLICT, "the manifest was replaced at the same time; read it again"),
    "artifact_not_behind": (Code.VERSION_AHEAD_OF_ARTIFACT, "a version would be ahead of the artifact"),
    "app_version_retired_is_free": (Code.HOLD_PRESENT, "something still uses this version"),
    "artifact_hold_version_is_there": (Code.VERSION_NOT_OFFERED, "there is no usable version of this id"),
    "policy_one_per_place": (Code.NAME_TAKEN, "this place has a policy already"),
    "policy_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "entitlement_taken": (Code.NAME_TAKEN, "the project has an entitlement for this app"),
    "entitlement_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "entitlement_app_is_in_sight": (Code.NOT_FOUND, "there is no such app, or you may not see it"),
    "platform_key_one_current": (Code.NAME_TAKEN, "there is a current key for this purpose"),
    "transition_edge_is_legal": (Code.ILLEGAL_TRANSITION, "the lifecycle has no such transition"),
    "transition_follows_previous": (Code.ILLEGAL_TRANSITION, "the transition does not follow the last one"),
    "member_removed_needs_closing_record": (Code.CLOSING_RECORD_MISSING, "the member has no closing record"),
    "instance_stopped_needs_closing_records": (Code.CLOSING_RECORD_MISSING, "a member has no closing record"),
    "closing_record_nothing_was_started": (
        Code.CLOSING_RECORD_MISSING,
        "a task of the member was claimed or is queued",
    ),
    "closing_record_node_is_retired": (Code.CLOSING_RECORD_MISSING, "the node is not retired"),
    "member_instance_is_open": (Code.ILLEGAL_TRANSITION, "the instance accepts no more members"),
    "task_member_is_open": (Code.ILLEGAL_TRANSITION, "the member is closed"),
    "task_owner_is_open": (Code.ILLEGAL_TRANSITION, "the owner is closed: the task that ends it exists already"),
    "project_secret_name_taken": (Code.NAME_TAKEN, "the project has a secret with this name already"),
    "project_secret_project_of_tenant": (Code.NOT_FOUND, "the tenant has no such project"),
    "runtime_secret_name_taken": (Code.NAME_TAKEN, "there is a secret with this name already"),
    "artifact_source_secret_of_tenant": (Code.NOT_FOUND, "the tenant has no such secret any more"),
    "secret_grant_source_of_tenant": (Code.NOT_FOUND, "the tenant has no such source any more"),
    "secret_grant_project_secret_of_project": (Code.NOT_FOUND, "the project has no such secret any more"),
    "secret_grant_is_of_task": (Code.NOT_FOUND, "there is no such secret, or this task may not have it"),
}

DECIDE_AGAIN: Final = frozenset(
    {
        "task_named_by_operation", "task_named_by_allocation", "receipt_sequence_taken", "receipt_one_per_task",
        "allocation_one_exclusive_per_node", "allocation_address_taken", "allocation_machine_is_idle",
        "allocation_has_its_slots", "allocation_subnet_is_the_projects", "allocation_group_stays_together",
        "allocation_released_is_proven", "project_network_subnet_taken", "project_network_one_per_node",
        "project_network_is_idle", "slot_node_is_shared", "slot_claim_stands_on_the_node",
        "operation_one_of_the_whole", "operation_one_decommission", "operation_member_one_open", "member_place_taken",
        "usage_record_taken", "attachment_one_of_project", "attachment_account_taken", "operation_one_of_attachment",
    }
)  # fmt: skip
"""Constraints that only the slower of two concurrent writers violates: it loads again and finds the other's rows."""
