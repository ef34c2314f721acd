import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.providers.postgres import PostgresProvider

postgres = PostgresProvider("postgresql://localhost/shop")
micro = Grelmicro(uses=[Coordination(postgres)])

WRITE = """
UPDATE stock SET number = $2, fence = $3
 WHERE item = $1 AND fence <= $3
"""


async def write(item: str, number: int, fence: int) -> bool:
    status = await postgres.client.execute(WRITE, item, number, fence)
    return status == "UPDATE 1"


async def main() -> None:
    async with micro:
        await postgres.client.execute("INSERT INTO stock VALUES ('apple', 5, 0)")
        async with micro.coordination.lock("apple") as old:
            print("first:", await write("apple", 4, old.fencing_token))
        async with micro.coordination.lock("apple") as new:
            print("second:", await write("apple", 3, new.fencing_token))
        print("first again:", await write("apple", 9, old.fencing_token))


anyio.run(main)
# Prints:
#   first: True
#   second: True
#   first again: False
