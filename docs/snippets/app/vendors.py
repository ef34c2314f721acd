import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection
from grelmicro.providers.postgres import PostgresProvider
from grelmicro.providers.redis import RedisProvider

redis = RedisProvider("redis://localhost:6379/0")
postgres = PostgresProvider("postgresql://localhost/shop")
micro = Grelmicro(
    uses=[
        Coordination(redis, schedule=postgres),
        Coordination(postgres, name="ledger"),
    ]
)
bookkeeper = LeaderElection("bookkeeper", backend="ledger")


async def main() -> None:
    async with micro:
        async with micro.coordination.lock("stock"):
            print("held in Redis")
        ledger = micro.get("coordination", "ledger")
        async with ledger.lock("stock"):
            print("held in PostgreSQL")
        print(type(bookkeeper.backend).__name__)


anyio.run(main)
# Prints:
#   held in Redis
#   held in PostgreSQL
#   PostgresLeaderElectionAdapter
