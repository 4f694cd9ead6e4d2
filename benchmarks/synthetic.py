"""Synthetic work of agents, for benches. The module creates turns of a given size with planted facts."""

from __future__ import annotations

import random
from itertools import accumulate

from orch_protocol.core.messages import Message, Text, ToolResult, ToolUse, assistant, user

__all__ = ["Worker"]

VOCABULARY = 6000
WIDE = "水泵阀门压力温度开关电机管道流量传感器系统记录错误正常关闭启动检查维修更换"


class Worker:
    """Creates turns. All turns differ. The same seed results in the same turns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "abcdefghijklmnopqrstuvwxyz"
        self._words = ["".join(self.random.choices(letters, k=self.random.randint(2, 9))) for _ in range(VOCABULARY)]
        self.common = self._words[:20]
        """Words that nearly every turn contains."""
        self._weights = list(accumulate(1 / (rank + 3) for rank in range(VOCABULARY)))

    def text(self, words: int) -> str:
        """Return `words` words. Common words occur more often."""
        return " ".join(self.random.choices(self._words, cum_weights=self._weights, k=words))

    def identifier(self) -> str:
        """Return a unique name of a function."""
        first, second = self.random.choices(self._words, k=2)
        return f"{first}_{second}{self.random.randint(10, 99999)}"

    def needles(self, number: int) -> dict[str, str]:
        """Return the texts to plant in the turn `number`, one text of each kind of query."""
        chance = self.random
        return {
            "identifier": f"{self.identifier()}_n{number}",
            "path": f"/srv/{self.identifier()}/src/{self.text(1)}_{number}.py",
            "error": f"ValueError: {self.text(3)} {number} is {self.text(1)} (code=-{chance.randint(10, 99)})",
            "number": f"{number}.{chance.randint(100, 999)} ms",
            "wide": "".join(chance.choices(WIDE, k=4)) + f"第{number}号",
        }

    def turn(self, number: int, steps: int, words: int, needles: dict[str, str] | None = None) -> list[Message]:
        """Return the turn `number`.

        It has `steps` calls with results of `words` words, and `needles` at random places.
        """
        planted = list((needles or {}).values())
        messages = [user(f"Work on item {number}: {self.text(12)}")]
        for step in range(steps):
            id = f"call_{number}_{step}"
            call = ToolUse(id, "bash", {"command": f"run --item {number} --step {step} {self.text(3)}"})
            lines = [self.text(12) for _ in range(words // 12)]
            for needle in planted[step::steps]:
                lines.insert(self.random.randrange(len(lines) + 1), f"{self.text(4)} {needle} {self.text(4)}")
            messages.append(Message("assistant", (Text(self.text(10)), call)))
            messages.append(Message("user", (ToolResult(id, (Text("\n".join(lines)),)),)))
        return [*messages, assistant(f"Item {number} is done. {self.text(15)}")]
