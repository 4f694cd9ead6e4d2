import asyncio
from pathlib import Path

from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def read_file(path: str) -> str:
    return Path(path).read_text()


async def main():
    set_default_openai_api("chat_completions")
    set_tracing_disabled(True)
    agent = Agent(name="Reader", model="gpt-4o", tools=[read_file])
    session = SQLiteSession("logs")
    for day in range(30):
        result = await Runner.run(agent, f"What is in day{day}.log?", session=session)
        print(result.final_output)


asyncio.run(main())
