import json
from pathlib import Path

import openai

import orch.gateway

client = openai.OpenAI(http_client=orch.gateway.client("conversations"))
parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
tools = [{"type": "function", "function": {"name": "read_file", "parameters": parameters}}]
messages = []
for day in range(30):
    messages.append({"role": "user", "content": f"What is in day{day}.log?"})
    while True:
        reply = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools).choices[0].message
        messages.append(reply)
        if not reply.tool_calls:
            break
        for call in reply.tool_calls:
            text = Path(json.loads(call.function.arguments)["path"]).read_text()
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    print(reply.content)
