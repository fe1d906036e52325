-- The boundary as the catalogue shows it. `open` refuses to start while any of this answers.

-- name: boundary_problems
-- slow
-- Every reason why the client login ($1) could see more than it may.
SELECT 'the client login ' || r.rolname || ' is a superuser' FROM pg_roles r WHERE r.rolname = $1 AND r.rolsuper
UNION ALL
SELECT 'the client login ' || $1::text || ' can become ' || r.rolname || ', which '
       || CASE WHEN r.rolsuper THEN 'is a superuser' WHEN r.rolbypassrls THEN 'bypasses row-level security'
               WHEN r.rolname = 'turnkeep_engine' THEN 'is the role of the engine' ELSE 'owns tables of Turnkeep' END
  FROM pg_roles r
 WHERE pg_has_role($1::text, r.oid, 'MEMBER') AND NOT (SELECT x.rolsuper FROM pg_roles x WHERE x.rolname = $1)
   AND (r.rolsuper OR r.rolbypassrls OR r.rolname = 'turnkeep_engine'
        OR EXISTS (SELECT 1 FROM pg_class c WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relowner = r.oid))
UNION ALL
SELECT 'the client login ' || $1::text || ' may write to ' || c.relname
  FROM pg_class c
 WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind IN ('r', 'p')
   AND (has_table_privilege($1::text, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
        OR has_any_column_privilege($1::text, c.oid, 'INSERT, UPDATE'))
UNION ALL
SELECT 'the table ' || c.relname || ' has no forced row-level security'
  FROM pg_class c
 WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
UNION ALL
SELECT 'the table ' || c.relname || ' has no policy'
  FROM pg_class c
 WHERE c.relnamespace = 'turnkeep'::regnamespace AND c.relkind IN ('r', 'p')
   AND NOT EXISTS (SELECT 1 FROM pg_policy p WHERE p.polrelid = c.oid)
 ORDER BY 1

-- name: readiness
-- Whether the server takes no writes, and the schema: the last migration, that of the oldest release which may work on it,
-- and whether it has the functions of this release ($1).
SELECT current_setting('transaction_read_only')::boolean,
       (SELECT max(m.version) FROM turnkeep.schema_migrations m),
       (SELECT max(f.oldest) FROM turnkeep.schema_migrations_of_functions f),
       EXISTS (SELECT 1 FROM turnkeep.schema_migrations_of_functions f WHERE f.schema_name = $1)

-- name: who_am_i
SELECT current_user::text, current_database()::text
