import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
election = LeaderElection("mailer")
task = Tasks(tasks=[election])
micro = Grelmicro(uses=[memory, Coordination(memory), task])


async def send_mails(number: int) -> str:
    for mail in range(number):
        print("sending mail", mail)
        await anyio.sleep(1)
    return "all sent"


async def main() -> None:
    async with micro:
        print(await election.lead(send_mails, 2))


anyio.run(main)
# Prints:
#   sending mail 0
#   sending mail 1
#   all sent
