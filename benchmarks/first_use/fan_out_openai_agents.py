import asyncio
from dataclasses import dataclass

from agents import Agent, Runner, set_default_openai_api, set_tracing_disabled


@dataclass
class Review:
    verdict: str


set_default_openai_api("chat_completions")
set_tracing_disabled(True)
agent = Agent(name="Reviewer", model="gpt-4o", output_type=Review)
places = asyncio.Semaphore(6)


async def review(item):
    async with places:
        result = await Runner.run(agent, f"Review number {item}")
        return result.final_output


async def main():
    for item, found in enumerate(await asyncio.gather(*map(review, range(30)), return_exceptions=True)):
        print(item, found if isinstance(found, Exception) else found.verdict)


asyncio.run(main())
