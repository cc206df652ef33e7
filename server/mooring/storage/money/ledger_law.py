"""Laws of prices, the ledger and rated usage that a query can check."""

from typing import Final

from mooring.storage.money.law import Law

APPEND_ONLY: Final = "'{price,usage_record,billing_hour,ledger_transaction,ledger_entry,rated_usage}'::text[]"
"""The tables whose rows are only added; see migration 41."""
NET: Final = """(
    SELECT r.source_id, r.hour, r.tenant_id, sum(r.quantity) AS quantity, sum(r.amount) AS amount
      FROM rated_usage r WHERE r.source = 'allocation' GROUP BY r.source_id, r.hour, r.tenant_id)"""

LAWS: Final = (
    Law(
        "balanced",
        "the entries of a transaction add up to zero in its currency",
        "SELECT count(*) FROM ledger_transaction",
        """SELECT t.id || ': ' || count(e.line) || ' entries with the sum ' || coalesce(sum(e.amount), 0) || ' in '
                  || coalesce(string_agg(DISTINCT e.currency, ', '), 'no currency')
             FROM ledger_transaction t LEFT JOIN ledger_entry e ON e.transaction_id = t.id
            GROUP BY t.id, t.currency
           HAVING count(e.line) < 2 OR sum(e.amount) <> 0 OR bool_or(e.currency <> t.currency) ORDER BY t.id LIMIT 1""",
    ),
    Law(
        "no_stray_entry",
        "every entry belongs to a transaction of its project",
        "SELECT count(*) FROM ledger_entry",
        """SELECT e.transaction_id || ' line ' || e.line || ' of project ' || coalesce(e.project_id, 'none')
             FROM ledger_entry e
            WHERE NOT EXISTS (SELECT FROM ledger_transaction t WHERE t.id = e.transaction_id
                                 AND t.tenant_id = e.tenant_id AND t.project_id IS NOT DISTINCT FROM e.project_id)
            ORDER BY e.transaction_id, e.line LIMIT 1""",
    ),
    Law(
        "append_only",
        "the database refuses to change, delete or empty what is booked",
        f"SELECT count(*) FROM unnest({APPEND_ONLY})",
        f"""SELECT n.name || ': the trigger ' || n.name || w.suffix || ' is missing or switched off'
              FROM unnest({APPEND_ONLY}) AS n (name), (VALUES ('_is_append_only'), ('_is_never_emptied')) AS w (suffix)
             WHERE NOT EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = n.name::regclass
                                  AND g.tgname = n.name || w.suffix AND g.tgenabled IN ('O', 'A'))
             ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "booked_as_rated",
        "a charge and its corrections owe exactly the sum of their rated lines",
        "SELECT count(*) FROM ledger_transaction WHERE price_id IS NOT NULL",
        """SELECT t.id || ': owed ' || coalesce(e.amount, 0) || ', rated ' || coalesce(r.amount, 0)
             FROM ledger_transaction t
             LEFT JOIN (SELECT transaction_id, sum(amount) AS amount FROM ledger_entry
                         WHERE account = 'receivable' GROUP BY transaction_id) e ON e.transaction_id = t.id
             LEFT JOIN (SELECT transaction_id, sum(amount) AS amount FROM rated_usage
                         GROUP BY transaction_id) r ON r.transaction_id = t.id
            WHERE t.price_id IS NOT NULL
              AND coalesce(e.amount, 0) <> coalesce(r.amount, 0) ORDER BY t.id LIMIT 1""",
    ),
    Law(
        "one_price",
        "every charged line names the one price, hour, project and currency of its transaction",
        "SELECT count(*) FROM rated_usage WHERE billing = 'charged'",
        """SELECT r.id || ' in ' || coalesce(r.transaction_id, 'no transaction') FROM rated_usage r
             LEFT JOIN ledger_transaction t ON t.id = r.transaction_id AND t.tenant_id = r.tenant_id
              AND t.project_id = r.project_id AND t.price_id = r.price_id AND t.hour = r.hour
              AND t.currency = r.currency
             LEFT JOIN price p ON p.id = r.price_id AND p.currency = r.currency
                   AND (p.tenant_id IS NULL OR p.tenant_id = r.tenant_id)
            WHERE r.billing = 'charged' AND (t.id IS NULL OR p.id IS NULL) ORDER BY r.id LIMIT 1""",
    ),
    Law(
        "charged_once",
        "a project is charged once for a price and an hour, and an interval once for each revision",
        """SELECT (SELECT count(*) FROM ledger_transaction WHERE kind = 'charge')
                + (SELECT count(*) FROM rated_usage)""",
        """(SELECT t.project_id || ' is charged ' || count(*) || ' times for ' || t.price_id || ' at ' || t.hour
              FROM ledger_transaction t WHERE t.kind = 'charge'
             GROUP BY t.project_id, t.price_id, t.hour HAVING count(*) > 1)
           UNION ALL
           (SELECT r.source || ' ' || r.source_id || ' has ' || count(*) || ' lines at ' || r.hour
              FROM rated_usage r GROUP BY r.source, r.source_id, r.hour, coalesce(r.price_id, ''), r.revision
            HAVING count(*) > 1) ORDER BY 1 LIMIT 1""",
    ),
    Law(
        "correction_points",
        "a correction names an earlier transaction of the same project, price and hour",
        "SELECT count(*) FROM ledger_transaction WHERE kind = 'correction'",
        """SELECT t.id || ' corrects ' || coalesce(t.corrects_id, 'nothing') FROM ledger_transaction t
             LEFT JOIN ledger_transaction c ON c.id = t.corrects_id AND c.project_id = t.project_id
              AND c.price_id = t.price_id AND c.hour = t.hour AND c.created_at <= t.created_at
            WHERE t.kind = 'correction' AND c.id IS NULL ORDER BY t.id LIMIT 1""",
    ),
    Law(
        "covered_is_free",
        "usage that the allocation pays for costs nothing a second time",
        "SELECT count(*) FROM rated_usage WHERE billing = 'covered'",
        """SELECT r.id || ' costs ' || r.amount FROM rated_usage r
            WHERE r.billing = 'covered' AND (r.amount <> 0 OR r.transaction_id IS NOT NULL) ORDER BY r.id LIMIT 1""",
    ),
    Law(
        "nothing_after_release",
        "nothing is charged before active, after the request of release, or for what never was active",
        f"SELECT count(*) FROM {NET} n",
        f"""SELECT n.source_id || ': ' || n.amount || ' in the hour ' || n.hour
              FROM {NET} n
              LEFT JOIN LATERAL (
                  SELECT min(s.occurred_at) FILTER (WHERE s.target = 'active') AS began,
                         min(s.occurred_at) FILTER (WHERE s.target = 'releasing') AS ended
                    FROM transition s WHERE s.machine = 'allocation' AND s.subject_id = n.source_id
                     AND s.tenant_id = n.tenant_id) c ON true
             WHERE (n.quantity <> 0 OR n.amount <> 0)
               AND (c.began IS NULL OR c.began >= n.hour + interval '1 hour'
                    OR (c.ended IS NOT NULL AND greatest(c.ended, c.began) <= n.hour))
             ORDER BY n.source_id, n.hour LIMIT 1""",
    ),
    Law(
        "plan_names_the_price",
        "the price of an allocation is the one that its plan showed",
        "SELECT count(*) FROM allocation",
        """SELECT a.id || ': its plan showed ' || a.price_minor_per_gpu_hour || ' ' || a.currency || ', its price is '
                  || coalesce(p.minor || ' ' || p.currency, 'none')
             FROM allocation a LEFT JOIN price p ON p.id = a.price_id
            WHERE p.id IS NULL OR (p.minor, p.currency) <> (a.price_minor_per_gpu_hour, a.currency)
               OR p.tenant_id <> a.tenant_id
            ORDER BY a.id LIMIT 1""",
    ),
    Law(
        "no_hour_left_out",
        "charged hours follow one another without a gap",
        "SELECT count(*) FROM billing_hour",
        """SELECT 'no hour between ' || h.before || ' and ' || h.hour
             FROM (SELECT hour, lag(hour) OVER (ORDER BY hour) AS before FROM billing_hour) h
            WHERE h.hour <> h.before + interval '1 hour' ORDER BY h.hour LIMIT 1""",
    ),
    Law(
        "usage_once",
        "a usage record is stored once under its id",
        "SELECT count(*) FROM usage_record",
        """SELECT u.instance_id || ' has ' || count(*) || ' records ' || u.record_id FROM usage_record u
            GROUP BY u.instance_id, u.usage_source, u.record_id HAVING count(*) > 1 ORDER BY 1 LIMIT 1""",
    ),
)
