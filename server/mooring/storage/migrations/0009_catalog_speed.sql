-- The catalog is read at the same cost however many versions there are.
--
-- `app_word` becomes the shelf: it has rows of those apps alone that some version is offered of, and of each word every
-- beginning. So a page is a walk along one index, in the order of the apps, from where the last page ended: for each
-- term there is exactly one place to look, nothing is sorted, and nothing is read only to be left out. The empty word
-- stands for the app itself; a category is a term with a space in it, which no word has.

DROP TRIGGER app_words ON app;
DROP FUNCTION app_words();
DROP INDEX app_word_by_word;
DELETE FROM app_word;
CREATE INDEX app_word_of_owner ON app_word (tenant_id, word, app_id);

-- Whoever calls this holds the app's row, so that two who come at once take turns and the second sees what the first did.
CREATE FUNCTION app_shelve(wanted text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM app_word WHERE app_id = wanted;
  IF NOT EXISTS (SELECT FROM app_version WHERE app_id = wanted AND promotion IN ('canary', 'active', 'deprecated')) THEN
    RETURN;
  END IF;
  INSERT INTO app_word (app_id, tenant_id, word)
    SELECT a.id, a.tenant_id, term.word
      FROM app a, LATERAL (
        SELECT DISTINCT left(found.word, length_.length) AS word
          FROM (SELECT lower(concat_ws(' ', a.slug, a.category, a.display_name, a.description))) card (told),
               LATERAL (SELECT regexp_split_to_table(card.told, '\s+')
                        UNION SELECT regexp_split_to_table(card.told, '[^[:alnum:]]+')) found (word),
               LATERAL generate_series(1, least(length(found.word), 100)) length_ (length)
        UNION ALL SELECT ''
        UNION ALL SELECT 'category ' || a.category) term
     WHERE a.id = wanted;
END $$;
REVOKE EXECUTE ON FUNCTION app_shelve FROM PUBLIC;

CREATE FUNCTION app_card_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
BEGIN
  PERFORM app_shelve(NEW.id);
  RETURN NULL;
END $$;
CREATE TRIGGER app_card_changes AFTER UPDATE OF slug, category, display_name, description ON app
  FOR EACH ROW EXECUTE FUNCTION app_card_changes();

CREATE FUNCTION app_offer_changes() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
  offered CONSTANT text[] := '{canary,active,deprecated}';
  was boolean := false;
BEGIN
  IF TG_OP = 'UPDATE' THEN
    was := OLD.promotion = ANY (offered);
  END IF;
  IF was = (NEW.promotion = ANY (offered)) THEN
    RETURN NULL;
  END IF;
  PERFORM FROM app WHERE id = NEW.app_id FOR NO KEY UPDATE;
  -- One more or less of an app that stays on the shelf changes nothing there: the first and the last do.
  IF (SELECT count(*) FROM app_word WHERE app_id = NEW.app_id AND word = '')
     <> (SELECT count(*) FROM (SELECT FROM app_version v WHERE v.app_id = NEW.app_id
                                 AND v.promotion IN ('canary', 'active', 'deprecated') LIMIT 1) one) THEN
    PERFORM app_shelve(NEW.app_id);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER app_offer_changes AFTER INSERT OR UPDATE OF promotion ON app_version
  FOR EACH ROW EXECUTE FUNCTION app_offer_changes();

SELECT app_shelve(id) FROM app;

-- The newest version of an app in each state, without a look at the older ones.
CREATE INDEX app_version_by_state ON app_version (app_id, promotion, version_order)
  WHERE promotion IN ('canary', 'active', 'deprecated');
DROP INDEX app_version_offered;
