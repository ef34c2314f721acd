import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.providers.postgres import PostgresProvider

postgres = PostgresProvider(
    "postgresql://pgbouncer.example:6432/shop",
    transaction_pooling=True,
)
micro = Grelmicro(uses=[Coordination(postgres)])


async def main() -> None:
    async with micro, micro.coordination.lock("stock"):
        print("held through pgbouncer")


anyio.run(main)
# Prints:
#   held through pgbouncer
