"""The database's constraints against the program's table of them, both ways.

A constraint that a caller's request can meet is an error of the catalogue (`storage/kernel/constraints.py`). Every
other one stands here under the reason why no request meets it: a new constraint must be sorted into one or the other.
And every reference from one thing of a tenant's to another carries the tenant, so that a reference across tenants
cannot be written down.
"""

import re
from collections.abc import AsyncIterator
from typing import Final

import pytest

from mooring.core.kernel.errors import CATALOGUE
from mooring.storage.kernel.constraints import DECIDE_AGAIN, REFUSALS
from mooring.storage.kernel.database import PLATFORM, Database, PoolSettings
from mooring.storage.kernel.unit_of_work import BIRTH
from server.tests.support.lifecycle_rows import HOMES, columns_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_part("postgresql")]

CONSTRAINTS: Final = """
SELECT conname AS name FROM pg_constraint
 WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f', 'p', 'u', 'x')
UNION
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
 WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace"""
RAISED: Final = """
SELECT tgname AS name, prosrc AS source FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE NOT tgisinternal
UNION
SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND proname = 'stale_write'"""
REFERENCES: Final = """
SELECT c.conname AS name, c.conrelid::regclass::text AS source, c.confrelid::regclass::text AS target,
       (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(c.conkey) WITH ORDINALITY k(number, place)
          JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = k.number) AS columns,
       (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(c.confkey) WITH ORDINALITY k(number, place)
          JOIN pg_attribute a ON a.attrelid = c.confrelid AND a.attnum = k.number) AS named
  FROM pg_constraint c WHERE c.contype = 'f' AND c.connamespace = 'public'::regnamespace"""
TENANT_OWNED: Final = """
SELECT attrelid::regclass::text AS name FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
 WHERE a.attname = 'tenant_id' AND c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace"""

TENANT_COLUMNS: Final = {"tenant_id", "lifecycle_tenant", "user_tenant_id"}
"""A row's tenant, and two columns that PostgreSQL derives from it."""

NEVER_MET: Final[dict[str, tuple[str, ...]]] = {
    "no statement of the program changes a row of the ledger, a price, usage, or the price of an allocation": (
        "billing_hour_is_append_only", "billing_hour_is_never_emptied", "ledger_entry_is_append_only",
        "ledger_entry_is_never_emptied", "ledger_transaction_is_append_only", "ledger_transaction_is_never_emptied",
        "price_is_append_only", "price_is_never_emptied", "rated_usage_is_append_only",
        "rated_usage_is_never_emptied", "usage_record_is_append_only", "usage_record_is_never_emptied",
        "allocation_keeps_its_price", "statement_is_final", "statement_is_never_deleted", "statement_is_never_emptied",
        "late_usage_is_never_deleted", "late_usage_is_never_emptied", "late_usage_is_resolved_once",
        "meter_batch_is_append_only", "meter_batch_is_never_emptied", "meter_reading_is_append_only",
        "meter_reading_is_never_emptied",
    ),
    "one statement writes it, whole minutes of slots and allocations that it joins": (
        "slot_metric_minute_is_whole", "slot_metric_node", "slot_metric_of_a_tenant", "slot_metric_pkey",
    ),
    "only the worker that closes months writes it, by the rows that it read": (
        "statement_closed_has_totals", "statement_currency_form", "statement_digest_form", "statement_lines_count",
        "statement_lines_digest_form", "statement_period_is_a_month", "statement_pkey",
        "statement_previous_digest_form", "statement_tenant",
    ),
    "sources of usage are checked by the core before, against the rows that it names": (
        "late_usage_batch_of_project", "late_usage_instance_of_project", "late_usage_interval", "late_usage_pkey",
        "late_usage_quantity_counts", "late_usage_reason_length", "late_usage_resolution_is_whole",
        "late_usage_status_known", "meter_batch_accepted_counts", "meter_batch_duplicates_count",
        "meter_batch_late_counts", "meter_batch_of_one_project", "meter_batch_pkey", "meter_batch_project_of_tenant",
        "meter_batch_stores_something", "meter_reading_difference_is_used", "meter_reading_does_not_fall",
        "meter_reading_epoch_counts", "meter_reading_instance_of_project", "meter_reading_pkey",
        "meter_reading_previous", "meter_reading_previous_is_whole", "meter_reading_seq_counts",
        "meter_reading_series_length", "meter_reading_usage_once", "meter_reading_value_counts",
        "meter_reading_with_value", "usage_record_batch_of_project", "usage_record_component_length",
        "usage_record_event_has_its_names", "usage_record_event_id_length", "usage_record_event_source_length",
        "usage_record_member_of_project",
    ),
    "prices and meters are checked by the core before": (
        "meter_billing_known", "meter_status_known", "meter_unit_form", "price_currency_form",
        "price_granularity_counts", "price_included_counts", "price_is_not_backdated", "price_item_key_length",
        "price_item_known", "price_minimum_counts", "price_minor_counts", "price_of_sku_is_plain",
        "price_per_counts", "price_tiers_are_bounded",
    ),
    "a correction's reason is checked by the core, and always comes with who gave it": (
        "ledger_transaction_by_hand_is_explained", "ledger_transaction_correction_reason_length",
    ),
    "only the worker that charges writes it, by the rows that it read": (
        "allocation_price", "billing_hour_is_whole", "ledger_entry_account_known",
        "ledger_entry_comes_with_its_transaction", "ledger_entry_of_transaction",
        "ledger_transaction_correction_names_a_charge", "ledger_transaction_corrects",
        "ledger_transaction_first_is_a_charge", "ledger_transaction_hour_is_whole", "ledger_transaction_is_balanced",
        "ledger_transaction_kind_known", "ledger_transaction_of_one_project", "ledger_transaction_price",
        "ledger_transaction_project_of_tenant", "ledger_transaction_revision_counts", "price_is_in_sight",
        "rated_usage_billing_known", "rated_usage_charged_has_a_price", "rated_usage_charged_is_booked",
        "rated_usage_covered_costs_nothing", "rated_usage_hour_is_whole", "rated_usage_price",
        "rated_usage_project_of_tenant", "rated_usage_source_known", "rated_usage_transaction",
        "usage_record_billing_known", "usage_record_charged_has_a_price", "usage_record_price", "ledger_entry_pkey",
        "ledger_transaction_pkey", "meter_pkey", "price_pkey", "rated_usage_pkey",
    ),
    "only the worker of the audit chain writes it, and a lost race is one": (
        "audit_by_place", "audit_link_pkey", "audit_link_follows", "audit_link_is_sha256", "audit_link_names_its_key",
        "audit_link_position_counts", "audit_checkpoint_pkey", "audit_count_is_positive",
    ),
    "only the relay writes it, for a visit that it has": (
        "exec_recording_pkey", "exec_recording_of_one_tenant", "exec_recording_part_pkey",
        "exec_recording_part_of_recording",
    ),
    "no statement of the program changes or deletes an audit row": ("audit_is_append_only",),
    "ids are minted with 80 bits of chance": (
        "usage_record_pkey",
        "visit_by_ticket", "visit_pkey",
        "receipt_pkey", "runtime_secret_pkey", "runtime_secret_by_value", "secret_grant_pkey", "project_secret_pkey",
        "project_secret_by_value",
        "allocation_group_pkey", "project_network_pkey",
        "allocation_pkey", "app_pkey", "app_version_check_pkey", "app_version_pkey", "entitlement_pkey", "policy_pkey",
        "artifact_check_pkey", "artifact_evidence_pkey", "artifact_hold_pkey", "artifact_upload_pkey",
        "artifact_pkey", "artifact_source_pkey", "signer_key_pkey", "attachment_pkey", "audit_pkey", "break_glass_pkey",
        "closing_record_pkey", "instance_pkey", "member_pkey", "membership_pkey", "node_pkey", "operation_pkey",
        "platform_key_pkey", "project_pkey", "secret_pkey", "service_account_key_pkey", "service_account_pkey",
        "task_pkey", "tenant_pkey", "token_hash_taken", "token_pkey", "user_pkey", "webhook_by_previous_secret",
        "webhook_by_secret", "webhook_pkey", "enrolment_token_pkey", "enrolment_token_hash_taken", "slot_pkey",
        "sku_pkey", "sku_price_pkey", "quota_pkey", "budget_pkey", "prepaid_account_pkey", "hold_pkey",
    ),
    "a wider key beside the primary one, for composite references": (
        "receipt_of_one_project", "runtime_secret_of_one_project", "project_secret_of_one_project",
        "project_secret_of_one_tenant", "artifact_source_of_one_tenant",
        "allocation_group_of_one_project",
        "allocation_of_one_project", "app_of_one_tenant", "app_version_of_one_tenant",
        "artifact_of_one_tenant", "attachment_of_one_project", "break_glass_of_one_tenant",
        "break_glass_of_one_user", "instance_of_one_project", "member_of_one_project", "operation_of_one_project",
        "project_of_one_tenant", "secret_of_one_tenant", "service_account_key_of_one_account",
        "service_account_of_one_tenant", "task_of_one_project", "transition_of_one_tenant", "user_of_one_tenant",
        "webhook_of_one_tenant", "budget_of_one_tenant", "prepaid_account_of_one_tenant",
    ),
    "the platform makes these rows itself, one by one": (
        "workload_adapter_only_one", "workload_adapter_is_current", "workload_adapter_pkey",
        "adapter_presence_pkey", "instance_claim_pkey", "operation_member_pkey",
        "closed_owner_pkey", "task_log_pkey",
        "project_quota_pkey", "spending_guard_pkey", "spending_guard_is_of_its_tenant",
        "app_version_artifact_pkey", "app_word_pkey", "promotion_need_pkey", "sku_price_one_per_revision",
        "slot_one_at_index",
        "delivery_id_unique", "delivery_pkey", "event_epoch_is_one", "event_epoch_single_key", "event_horizon_is_one",
        "event_horizon_single_key", "event_pkey", "identity_provider_of_one_tenant", "identity_provider_pkey",
        "passkey_pkey", "sign_in_challenge_pkey", "user_identity_pkey", "lifecycle_edge_pkey", "schema_migration_pkey",
    ),
    "the core checks the form first, with the same bounds": (
        "quota_gpus_count", "quota_instances_count", "quota_spend_counts", "quota_currency_form",
        "quota_spend_has_a_currency", "budget_currency_form", "budget_amount_counts", "budget_thresholds_are_bounded",
        "prepaid_account_currency_form", "prepaid_account_low_counts", "hold_amount_counts", "hold_is_covered",
        "ledger_transaction_reference_length", "budget_crossing_is_reached", "balance_crossing_depleted_is_empty",
        "tenant_source_networks_count", "project_secret_name_form", "project_secret_description_length",
        "artifact_source_username_length", "artifact_source_token_host_length", "artifact_source_credential_is_tenants",
        "artifact_source_credential_has_username", "secret_grant_source_has_repository", "node_cordon_reason_length",
        "workload_adapter_key_length",
        "app_adapter_key_length", "instance_failure_detail_length", "instance_health_detail_length",
        "instance_name_form", "instance_topology_mode_length", "member_blocker_length",
        "member_failure_detail_length", "member_health_detail_length", "member_ordinal_counts",
        "operation_blocker_length", "operation_failure_detail_length", "usage_record_id_length",
        "usage_record_interval", "usage_record_quantity_counts", "attachment_account_name_form",
        "attachment_blocker_length", "attachment_of_another", "attachment_reason_length", "attachment_timeout_counts",
        "visit_owner_of_allocation", "visit_port_counts",
        "receipt_body_length", "receipt_digest_is_of_body", "receipt_follows_previous", "receipt_previous_form",
        "receipt_sequence_counts", "receipt_signature_length", "runtime_secret_has_one_home",
        "runtime_secret_name_form", "runtime_secret_purpose_known", "secret_grant_is_of_one_kind",
        "secret_grant_name_form", "secret_grant_named_once", "secret_grant_purpose_known",
        "task_log_chunk_length", "task_log_offset_counts", "task_owner_of_allocation", "task_step_length",
        "task_type_length",
        "allocation_group_name_form", "allocation_gpus_count", "allocation_metadata_length", "allocation_name_form",
        "allocation_needs_length",
        "allocation_scheduler_type_length",
        "app_category_form", "app_description_length", "app_display_name_length", "app_icon_length", "app_slug_form",
        "app_version_percentage_is_one",
        "artifact_digest_form", "artifact_location_length", "artifact_size_counts", "artifact_source_name_length",
        "artifact_source_pattern_length", "artifact_source_private_is_platforms", "artifact_visibility_fits_owner",
        "signer_key_name_length", "node_name_form", "node_region_form", "node_signing_key_length",
        "node_sealing_key_length", "enrolment_token_region_form", "slot_index_counts", "slot_numa_counts",
        "slot_gpu_model_length", "slot_memory_counts", "sku_slug_form", "sku_display_name_length",
        "sku_gpu_model_length", "sku_regions_named", "sku_counts_named", "sku_price_counts", "sku_currency_form",
        "sku_price_amount_counts",
        "sku_price_currency_form",
        "break_glass_reason_stated", "break_glass_role_known", "membership_role_fits_place",
        "project_display_name_length", "project_slug_form", "service_account_description_length",
        "service_account_key_length", "service_account_name_form", "tenant_display_name_length", "tenant_slug_form",
        "identity_provider_name_length", "identity_provider_issuer_length", "identity_provider_client_id_length",
        "user_identity_subject_length", "passkey_credential_length", "passkey_public_key_length", "passkey_name_length",
        "token_name_length", "token_remote_address_length", "token_user_agent_length", "user_display_name_length",
        "user_email_form", "webhook_description_length",
        "webhook_url_length",
    ),
    "the program writes these columns from closed tables, not from a request": (
        "budget_crossing_action_known", "budget_crossing_basis_known", "budget_crossing_period_is_a_month",
        "balance_crossing_level_known", "balance_crossing_basis_known", "ledger_transaction_charge_has_a_price",
        "ledger_transaction_payment_is_explained", "budget_crossing_is_append_only",
        "budget_crossing_is_never_emptied", "balance_crossing_is_append_only", "balance_crossing_is_never_emptied",
        "hold_is_append_only", "hold_is_never_emptied",
        "instance_claim_fence_counts", "instance_claim_holder_has_lease", "instance_health_known",
        "attachment_instance_of_tenant", "attachment_operation_of_owner", "project_secret_version_counts",
        "node_cordon_is_stated",
        "member_health_known", "operation_kind_known", "operation_phase_known", "usage_record_source_known",
        "visit_has_aim", "visit_kind_known", "visit_ticket_hash_length",
        "receipt_is_immutable", "runtime_secret_destroyed_is_gone", "task_claim_has_fence", "task_fence_counts",
        "allocation_released_has_no_slots", "allocation_shape_known", "allocation_teardown_proof_known",
        "slot_freed_is_proven",
        "app_stays_with_its_owner", "app_version_check_name_known", "app_version_staged_is_stated",
        "policy_project_has_tenant",
        "artifact_algorithm_known", "artifact_check_attempts_count",
        "artifact_check_bytes_count", "artifact_check_name_known", "artifact_check_total_counts",
        "artifact_evidence_fault_known",
        "artifact_evidence_kind_known", "artifact_is_immutable", "artifact_kind_known", "artifact_source_type_known",
        "artifact_upload_is_small", "artifact_upload_is_the_digest", "artifact_upload_location_is_own",
        "signer_key_algorithm_known", "node_host_known", "node_write_off_is_stated", "node_written_off_is_retired",
        "enrolment_token_used_by_one", "token_of_node_is_platforms", "platform_key_is_announced", "slot_status_known",
        "node_approval_known", "enrolment_token_approval_known",
        "platform_key_retired_cannot_sign", "platform_key_root_signs_an_epoch",
        "slot_claim_is_somebodys", "slot_change_is_legal", "slot_claimed_stays", "sku_shape_known", "sku_status_known",
        "sku_price_revision_counts", "sku_price_is_immutable", "sku_price_is_written_down",
        "audit_outcome_known", "closing_record_kind_known", "delivery_claimed_has_lease", "delivery_ended_is_dated",
        "delivery_status_known", "instance_teardown_proof_known", "node_is_platforms", "platform_key_algorithm_known",
        "platform_key_purpose_known", "service_account_key_algorithm_known", "task_claim_is_dated",
        "token_break_glass_has_entry", "token_has_key_of_account", "token_has_one_holder", "token_kind_known",
        "token_service_account_has_tenant", "transition_birth_is_first", "transition_generation_counts",
        "user_one_time_expires", "webhook_project_has_tenant",
    ),
    "the row that is named was made in the same statement, or is never deleted": (
        "budget_crossing_budget", "budget_crossing_project_of_tenant", "balance_crossing_account", "hold_allocation",
        "spending_guard_tenant",
        "adapter_presence_account_of_tenant", "entitlement_account_of_tenant", "instance_app_id_fkey",
        "service_account_app_id_fkey",
        "instance_claim_instance_of_project", "instance_version_id_fkey", "member_version_id_fkey",
        "operation_instance_of_project", "operation_member_member_of_project",
        "operation_member_operation_of_project", "usage_record_instance_of_project",
        "visit_allocation_of_project", "visit_node_id_fkey",
        "receipt_allocation_of_project", "receipt_node_id_fkey", "receipt_task_of_project",
        "runtime_secret_allocation_of_project", "runtime_secret_instance_of_project",
        "runtime_secret_secret_id_fkey", "runtime_secret_value_of_tenant", "secret_grant_secret_of_project",
        "project_secret_value_of_tenant",
        "secret_grant_task_of_project", "task_allocation_of_project", "task_instance_of_project",
        "task_log_task_of_project", "task_node_id_fkey", "task_operation_of_project",
        "allocation_group_of_project", "allocation_group_project_of_tenant", "allocation_sku",
        "allocation_task_of_project", "project_network_node", "project_network_project_of_tenant",
        "project_quota_of_project",
        "app_tenant_id_fkey", "app_version_app_id_fkey", "app_version_app_of_tenant", "app_version_artifact_of_tenant",
        "app_version_artifact_version_id_fkey", "app_version_check_of_tenant", "app_version_check_version_id_fkey",
        "app_version_successor_of_tenant", "app_version_superseded_by_fkey", "app_word_app_id_fkey",
        "app_word_of_tenant", "entitlement_app_id_fkey", "policy_tenant_id_fkey",
        "artifact_check_artifact_id_fkey", "artifact_check_artifact_of_tenant", "artifact_check_project_of_tenant",
        "artifact_check_tenant_id_fkey", "artifact_upload_tenant_id_fkey", "artifact_upload_project_of_tenant",
        "artifact_evidence_artifact_id_fkey", "artifact_evidence_artifact_of_tenant",
        "artifact_evidence_tenant_id_fkey", "artifact_hold_project_of_tenant", "artifact_source_tenant_id_fkey",
        "signer_key_tenant_id_fkey", "node_previous_node_id_fkey", "enrolment_token_node", "token_node_id_fkey",
        "node_assertion_node_id_fkey", "platform_key_signed_by_fkey", "slot_node_id_fkey", "slot_allocation_id_fkey",
        "sku_price_sku_id_fkey",
        "allocation_node_id_fkey", "allocation_wanted_node", "allocation_project_of_tenant",
        "app_version_tenant_id_fkey",
        "artifact_tenant_id_fkey", "assertion_key_id_fkey", "attachment_project_of_tenant",
        "break_glass_tenant_id_fkey", "break_glass_user_id_fkey", "closing_record_member_of_project",
        "closing_record_node_id_fkey", "delivery_webhook_id_fkey", "delivery_webhook_of_tenant",
        "idempotency_secret_id_fkey", "idempotency_secret_of_tenant", "instance_project_of_tenant",
        "member_allocation_of_project", "member_instance_of_project", "member_project_of_tenant",
        "membership_user_id_fkey", "operation_project_of_tenant", "platform_key_secret_id_fkey",
        "project_tenant_id_fkey", "task_member_of_project", "task_project_of_tenant", "token_account_of_tenant",
        "token_break_glass_of_user", "token_key_id_fkey", "token_key_of_account", "token_user_id_fkey",
        "token_user_of_tenant", "user_tenant_id_fkey", "webhook_previous_secret_id_fkey",
        "webhook_previous_key_of_tenant", "webhook_secret_id_fkey", "webhook_key_of_tenant",
        "webhook_tenant_id_fkey",
        "identity_provider_tenant", "identity_provider_secret", "identity_provider_secret_of_tenant",
        "user_identity_user", "user_identity_provider", "user_identity_user_of_tenant",
        "user_identity_provider_of_tenant", "membership_identity_provider", "membership_identity_provider_of_tenant",
        "passkey_user", "passkey_user_of_tenant", "sign_in_challenge_user", "sign_in_challenge_user_of_tenant",
    ),
    "the generation that was seen guards the row first, and a lost race is decided again": (
        "stale_write", "transition_pkey",
    ),
    "it ends the race of two equal requests, and the answer of the first is given": ("idempotency_pkey",),
    "one closing record is made by one worker, which reads first": (
        "closing_record_one_per_member", "closing_record_receipt_present", "closing_record_write_off_stated",
    ),
}  # fmt: skip

NOT_COMPOSITE: Final = {
    "allocation_price": "the price may be the list's; price_is_in_sight refuses another tenant's",
    "usage_record_price": "the price may be the list's; price_is_in_sight refuses another tenant's",
    "ledger_transaction_price": "the price may be the list's; price_is_in_sight refuses another tenant's",
    "rated_usage_price": "the price may be the list's; price_is_in_sight refuses another tenant's",
    "service_account_app_id_fkey": "the app may be the platform's; entitlement_app_is_in_sight refuses others",
    "instance_app_id_fkey": "the app may be the platform's; instance_version_is_of_app and version_is_in_sight hold it",
    "instance_version_id_fkey": "the version may be the platform's; version_is_in_sight refuses another tenant's",
    "member_version_id_fkey": "the version may be the platform's; version_is_in_sight refuses another tenant's",
    "visit_node_id_fkey": "a node is the platform's, and no tenant's row",
    "slot_metric_node": "a node is the platform's, and no tenant's row",
    "receipt_node_id_fkey": "a node is the platform's, and no tenant's row",
    "task_node_id_fkey": "a node is the platform's, and no tenant's row",
    "runtime_secret_secret_id_fkey": "beside runtime_secret_value_of_tenant, which every secret meets",
    "app_version_app_id_fkey": "for the platform's own; a tenant's is held by app_version_app_of_tenant",
    "app_version_artifact_version_id_fkey": "for the platform's own; else app_version_artifact_of_tenant",
    "app_version_check_version_id_fkey": "for the platform's own; a tenant's is held by app_version_check_of_tenant",
    "app_version_superseded_by_fkey": "for the platform's own; else app_version_successor_of_tenant",
    "app_word_app_id_fkey": "for the platform's own; a tenant's is held by app_word_of_tenant",
    "entitlement_app_id_fkey": "the app may be the platform's; entitlement_app_is_in_sight refuses another tenant's",
    "artifact_check_artifact_id_fkey": "for the platform's own; else artifact_check_artifact_of_tenant",
    "artifact_evidence_artifact_id_fkey": "for the platform's own; else artifact_evidence_artifact_of_tenant",
    "allocation_node_id_fkey": "a node is the platform's, and no tenant's row",
    "allocation_wanted_node": "a node is the platform's, and no tenant's row",
    "project_network_node": "a node is the platform's, and no tenant's row",
    "token_node_id_fkey": "a node is the platform's, and no tenant's row",
    "node_previous_node_id_fkey": "a node is the platform's, and no tenant's row",
    "closing_record_node_id_fkey": "a node is the platform's, and no tenant's row",
    "break_glass_user_id_fkey": "who enters by break-glass is a user of the platform's, by meaning",
    "membership_user_id_fkey": "for the platform's own; a tenant's is held by membership_user_of_tenant",
    "identity_provider_secret": "for the platform's own; a tenant's is held by identity_provider_secret_of_tenant",
    "user_identity_user": "for the platform's own; a tenant's is held by user_identity_user_of_tenant",
    "user_identity_provider": "for the platform's own; a tenant's is held by user_identity_provider_of_tenant",
    "membership_identity_provider": "for the platform's own; else membership_identity_provider_of_tenant",
    "passkey_user": "for the platform's own; a tenant's is held by passkey_user_of_tenant",
    "sign_in_challenge_user": "for the platform's own; a tenant's is held by sign_in_challenge_user_of_tenant",
    "token_user_id_fkey": "for the platform's own; a tenant's is held by token_user_of_tenant",
    "token_key_id_fkey": "beside token_key_of_account, which every token with a key meets",
    "webhook_secret_id_fkey": "for the platform's own; a tenant's is held by webhook_key_of_tenant",
    "webhook_previous_secret_id_fkey": "for the platform's own; else webhook_previous_key_of_tenant",
    "delivery_webhook_id_fkey": "for the platform's own; a tenant's is held by delivery_webhook_of_tenant",
    "idempotency_secret_id_fkey": "for the platform's own; a tenant's is held by idempotency_secret_of_tenant",
}


@pytest.fixture(scope="module")
async def database(shared_database_url: str) -> AsyncIterator[Database]:
    opened = Database(PoolSettings(shared_database_url, 2))
    await opened.open()
    yield opened
    await opened.close()


async def all_names(database: Database) -> set[str]:
    """Every name by which the database can refuse a write."""
    names = {row["name"] for row in await database.fetch(PLATFORM, CONSTRAINTS)}
    for row in await database.fetch(PLATFORM, RAISED):
        raised = re.findall(r"CONSTRAINT = ('\w+'|TG_NAME)", row["source"])
        assert raised or "RAISE" not in row["source"], f"{row['name']} refuses without a name"
        names |= {row["name"] if each == "TG_NAME" else each.strip("'") for each in raised}
    return names


def of_lifecycles() -> set[str]:
    """What holds a status to its transition and a state to its columns: the core decides by the same tables first."""
    names = set()
    for noun, machine in HOMES:
        status, generation = columns_of(machine)
        names |= {f"{noun}_{status}_is_backed", f"{noun}_{generation}_counts"}
        names |= {f"{noun}_{column}_required" for columns in machine.requires.values() for column in columns}
    return names


async def test_every_constraint_of_the_programs_table_exists(database: Database) -> None:
    assert set(REFUSALS) - await all_names(database) == set()
    assert {code for code, _ in REFUSALS.values()} <= set(CATALOGUE)


async def test_every_constraint_is_an_error_or_is_never_met_for_a_reason(database: Database) -> None:
    sorted_out = [name for names in NEVER_MET.values() for name in names]
    assert len(sorted_out) == len(set(sorted_out)), "a name stands under two reasons"
    assert set(sorted_out) & (set(REFUSALS) | DECIDE_AGAIN) == set()
    never_met = set(sorted_out) | of_lifecycles() | DECIDE_AGAIN
    there = await all_names(database)
    assert there - never_met - set(REFUSALS) == set(), "neither an error nor sorted out"
    assert never_met - there == set(), "sorted out, but not in the database"


async def test_constraints_have_names_that_say_whose_they_are(database: Database) -> None:
    """PostgreSQL takes one name for two tables; an error that is recognized by its name needs one for each."""
    doubled = await database.fetch(
        PLATFORM,
        "SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace GROUP BY 1 HAVING count(*) > 1",
    )
    assert [row["conname"] for row in doubled] == []


async def test_every_reference_between_things_of_a_tenant_carries_the_tenant(database: Database) -> None:
    owned = {row["name"] for row in await database.fetch(PLATFORM, TENANT_OWNED)}
    plain = {}
    for row in await database.fetch(PLATFORM, REFERENCES):
        carried = {
            (column, named)
            for column, named in zip(row["columns"], row["named"], strict=True)
            if column in TENANT_COLUMNS and (named == "tenant_id" or (row["target"], named) == ("tenant", "id"))
        }
        if {row["source"], row["target"]} <= owned and not carried:
            plain[row["name"]] = (row["source"], row["columns"])
    assert set(plain) == set(NOT_COMPOSITE), "a reference that does not carry the tenant needs a reason"
    composite = {
        (row["source"], column)
        for row in await database.fetch(PLATFORM, REFERENCES)
        if TENANT_COLUMNS & set(row["columns"])
        for column in row["columns"]
    }
    for name, (source, (column,)) in plain.items():
        of_platform = column.endswith("node_id") or name in (
            "service_account_app_id_fkey",
            "break_glass_user_id_fkey",
            "entitlement_app_id_fkey",
            "instance_app_id_fkey",
            "instance_version_id_fkey",
            "member_version_id_fkey",
            "allocation_price",
            "usage_record_price",
            "ledger_transaction_price",
            "rated_usage_price",
        )
        assert of_platform or (source, column) in composite, f"{name} has no composite one beside it"


async def test_the_lifecycle_tables_of_the_core_are_in_the_database(database: Database) -> None:
    rows = await database.fetch(PLATFORM, "SELECT machine, source, trigger, target FROM lifecycle_edge")
    machines = {machine.name: machine for _, machine in HOMES}
    wanted = {(name, "", BIRTH, machine.initial.value) for name, machine in machines.items()}
    for name, machine in machines.items():
        wanted |= {(name, edge.source.value, edge.trigger.value, edge.target.value) for edge in machine.edges}
    assert {tuple(row) for row in rows} == wanted
