from dataclasses import dataclass

from orch import Orchestrator


@dataclass
class Review:
    verdict: str


with Orchestrator("openai:gpt-4o", run="reviews") as o:
    for each in o.map(range(30), "Review number {item}", workers=6, returns=Review, tools=[]):
        print(each.key, each.error or each.value.verdict)
