from grelmicro.coordination.postgres import (
    PostgresLeaderElectionAdapter,
    PostgresLockAdapter,
    PostgresScheduleAdapter,
)
from grelmicro.providers.postgres import PostgresProvider

postgres = PostgresProvider("postgresql://localhost/shop")
adapters = [
    PostgresLockAdapter(provider=postgres, schema="shop"),
    PostgresLeaderElectionAdapter(provider=postgres, schema="shop"),
    PostgresScheduleAdapter(provider=postgres, schema="shop"),
]
for adapter in adapters:
    print(adapter.schema_sql())
