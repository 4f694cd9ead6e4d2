from pathlib import Path

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


agent = create_agent(ChatOpenAI(model="gpt-4o"), tools=[read_file], checkpointer=InMemorySaver())
for day in range(30):
    messages = [{"role": "user", "content": f"What is in day{day}.log?"}]
    state = agent.invoke({"messages": messages}, {"configurable": {"thread_id": "logs"}})
    print(state["messages"][-1].text)
