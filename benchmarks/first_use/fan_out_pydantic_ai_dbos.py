import asyncio
from dataclasses import dataclass

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability


@dataclass
class Review:
    verdict: str


DBOS(config={"name": "reviews", "system_database_url": "sqlite:///reviews.sqlite"})
agent = Agent("openai-chat:gpt-4o", name="reviewer", output_type=Review, capabilities=[DBOSDurability()])
places = asyncio.Semaphore(6)


@DBOS.workflow()
async def review(item):
    result = await agent.run(f"Review number {item}")
    return result.output


async def once(item):
    async with places:
        with SetWorkflowID(f"review-{item}"):
            return await review(item)


async def main():
    DBOS.launch()
    for item, found in enumerate(await asyncio.gather(*map(once, range(30)), return_exceptions=True)):
        print(item, found if isinstance(found, Exception) else found.verdict)


asyncio.run(main())
DBOS.destroy()
