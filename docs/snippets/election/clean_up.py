from functools import partial

import anyio

from grelmicro.coordination import LeaderElection
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter

election = LeaderElection("mailer", backend=MemoryLeaderElectionAdapter())


async def send_mails() -> None:
    print("connected")
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(1)  # say goodbye to the mail server
            print("disconnected, leading:", election.is_leader())


async def main() -> None:
    async with anyio.create_task_group() as group:
        await group.start(election)
        group.start_soon(partial(election.lead, send_mails, repeat=True))
        await anyio.sleep(5)
        group.cancel_scope.cancel()
    print("handed over")


anyio.run(main)
# Prints:
#   connected
#   disconnected, leading: False
#   handed over
