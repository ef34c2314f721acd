from grelmicro.providers.postgres import PostgresProvider

PostgresProvider("postgresql://user:secret@db.example/shop?sslmode=verify-full")
PostgresProvider("postgresql://db1,db2/shop?target_session_attrs=read-write")
PostgresProvider(host="/run/postgresql", db="shop")
PostgresProvider()  # POSTGRES_URL, or POSTGRES_HOST, POSTGRES_PORT, …
