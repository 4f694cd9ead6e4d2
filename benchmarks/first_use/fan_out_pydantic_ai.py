import asyncio
from dataclasses import dataclass

from pydantic_ai import Agent


@dataclass
class Review:
    verdict: str


agent = Agent("openai-chat:gpt-4o", output_type=Review)
places = asyncio.Semaphore(6)


async def review(item):
    async with places:
        result = await agent.run(f"Review number {item}")
        return result.output


async def main():
    for item, found in enumerate(await asyncio.gather(*map(review, range(30)), return_exceptions=True)):
        print(item, found if isinstance(found, Exception) else found.verdict)


asyncio.run(main())
