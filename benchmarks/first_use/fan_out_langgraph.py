from dataclasses import dataclass

from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task


@dataclass
class Review:
    verdict: str


with SqliteSaver.from_conn_string("reviews.sqlite") as saver:
    model = ChatOpenAI(model="gpt-4o").with_structured_output(Review)

    @task
    def review(item):
        return model.invoke(f"Review number {item}")

    @entrypoint(saver)
    def reviews(items):
        waiting = [review(item) for item in items]
        return [each.result() for each in waiting]

    # The entrypoint itself takes one of the seven places.
    config = {"configurable": {"thread_id": "reviews"}, "max_concurrency": 7}
    begun = reviews.get_state(config).next
    for item, found in enumerate(reviews.invoke(None if begun else list(range(30)), config)):
        print(item, found)
