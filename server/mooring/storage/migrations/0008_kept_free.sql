-- Kept free for the catalog, so that numbers have no gap: nothing is changed here.
SELECT 1;
