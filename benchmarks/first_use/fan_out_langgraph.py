import asyncio
from dataclasses import dataclass

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task


@dataclass
class Review:
    verdict: str


model = ChatOpenAI(model="gpt-4o").with_structured_output(Review)
# With `max_concurrency`, results are saved only when a place is free, so a kill would lose them.
places = asyncio.Semaphore(6)


@task
async def review(item):
    async with places:
        return await model.ainvoke(f"Review number {item}")


async def main():
    async with AsyncSqliteSaver.from_conn_string("reviews.sqlite") as saver:

        @entrypoint(saver)
        async def reviews(items):
            return await asyncio.gather(*map(review, items))

        config = {"configurable": {"thread_id": "reviews"}}
        begun = (await reviews.aget_state(config)).next
        for item, found in enumerate(await reviews.ainvoke(None if begun else list(range(30)), config)):
            print(item, found)


asyncio.run(main())
