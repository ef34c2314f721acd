import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
election = LeaderElection("mailer", metadata={"pod": "shop-7"})
task = Tasks(tasks=[election])
micro = Grelmicro(uses=[memory, Coordination(memory), task])


async def main() -> None:
    async with micro:
        await election.wait_for_leader()
        print("leading:", election.is_leader())
        print("confirmed lately:", election.is_leader_confirmed_within(1))
        print("who leads:", election.record.metadata["pod"])
        print("what fails:", election.last_error)
    print("leading:", election.is_leader())


anyio.run(main)
# Prints:
#   leading: True
#   confirmed lately: True
#   who leads: shop-7
#   what fails: None
#   leading: False
