from pathlib import Path

from pydantic_ai import Agent


def read_file(path: str) -> str:
    return Path(path).read_text()


agent = Agent("openai-chat:gpt-4o", tools=[read_file])
history = []
for day in range(30):
    result = agent.run_sync(f"What is in day{day}.log?", message_history=history)
    history = result.all_messages()
    print(result.output)
