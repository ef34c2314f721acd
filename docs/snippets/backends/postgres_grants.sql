GRANT USAGE ON SCHEMA public TO shop;
GRANT SELECT, INSERT, UPDATE, DELETE
   ON grelmicro_locks, grelmicro_leaders, grelmicro_schedules TO shop;
