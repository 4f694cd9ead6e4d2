"""Session files of other programs, created for tests. They contain branches, calls, thinking and pictures."""

from __future__ import annotations

from typing import Any

__all__ = ["PICTURE", "pi_tree", "subagent_rows", "tree_rows"]

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def pi_tree() -> list[dict[str, Any]]:
    """Return a session of pi, version 3. It contains every type of entry, an abandoned branch and a compaction."""
    usage = {"input": 5, "output": 7, "cacheRead": 11, "cacheWrite": 13, "cost": {"total": 0.25}}
    reply_fields = {
        "api": "some-messages",
        "provider": "anthropic",
        "model": "some-model",
        "usage": usage,
        "timestamp": 1,
    }
    lines: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "0f", "timestamp": "2026-01-02T03:04:05.006Z", "cwd": "/srv/no/such"}
    ]
    parent: str | None = None

    def add(type: str, id: str, after: str | None = "", **fields: Any) -> None:
        nonlocal parent
        at = parent if after == "" else after
        stamp = f"2026-01-02T03:04:{len(lines):02d}.000Z"
        lines.append({"type": type, "id": id, "parentId": at, "timestamp": stamp, **fields})
        parent = id

    def message(id: str, role: str, content: Any, after: str | None = "", **more: Any) -> None:
        add("message", id, after, message={"role": role, "content": content, "timestamp": 2} | more)

    def text(given: str) -> list[dict[str, Any]]:
        return [{"type": "text", "text": given}]

    thinking = {"type": "thinking", "thinking": "Hm.", "thinkingSignature": "c2ln"}
    hidden = {"type": "thinking", "thinking": "", "thinkingSignature": "aGlkZGVu", "redacted": True}
    calls = [
        {
            "type": "toolCall",
            "id": f"call_{number}",
            "name": "read",
            "arguments": {"path": f"{number}.txt", "n": number},
        }
        for number in (1, 2)
    ]
    add("model_change", "a0000001", provider="anthropic", modelId="some-model")
    add("thinking_level_change", "a0000002", thinkingLevel="high")
    message("a0000003", "user", "Read both \u2028 files")
    message("a0000004", "assistant", [thinking, hidden, *text("I look."), *calls], stopReason="toolUse", **reply_fields)
    image = {"type": "image", "data": PICTURE, "mimeType": "image/png"}
    message("a0000005", "toolResult", [*text("one"), image], toolCallId="call_1", toolName="read", isError=False)
    message("a0000006", "toolResult", text("no such file"), toolCallId="call_2", toolName="read", isError=True)
    message("a0000007", "assistant", text("One is there."), stopReason="stop", **reply_fields)
    message("a0000008", "user", text("Try it the wrong way"))
    message("a0000009", "assistant", text("That was wrong."), stopReason="stop", **reply_fields)
    add("branch_summary", "a000000a", "a0000007", fromId="a0000009", summary="The wrong way fails.")
    add("label", "a000000b", targetId="a0000007", label="good")
    add("custom", "a000000c", customType="counter", data={"n": 3})
    add("custom_message", "a000000d", customType="note", content="It is Friday.", display=True)
    message("a000000e", "bashExecution", "", command="ls", output="1.txt", exitCode=0, cancelled=False, truncated=False)
    add("session_info", "a000000f", name="Two files")
    message("a0000010", "user", [*text("What is in the picture?"), image])
    message("a0000011", "assistant", text("A dot."), stopReason="stop", **reply_fields)
    add("compaction", "a0000012", summary="We read two files.", firstKeptEntryId="a000000f", tokensBefore=900)
    message("a0000013", "user", text("Go on"))
    message("a0000014", "assistant", text("Gladly."), stopReason="stop", **reply_fields)
    return lines


def tree_rows(session: str = "5e55") -> list[dict[str, Any]]:
    """Return the rows of a coding assistant's transcript.

    The rows contain parallel calls whose results each follow their own call, a prompt that was edited, a compaction,
    and rows that are not messages.
    """
    rows: list[dict[str, Any]] = [{"type": "file-history-snapshot", "messageId": "x", "snapshot": {}}]
    usage = {"input_tokens": 3, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 7}

    def row(type: str, uuid: str, parent: str | None, content: Any = None, **more: Any) -> None:
        fields = {"uuid": uuid, "parentUuid": parent, "sessionId": session, "cwd": "/srv/no/such", "isSidechain": False}
        stamp = f"2026-01-02T03:04:{len(rows):02d}.000Z"
        message = {"message": {"role": type, "content": content} | more.pop("message", {})} if content else {}
        rows.append({"type": type, "timestamp": stamp} | fields | message | more)

    def reply(uuid: str, parent: str, content: dict[str, Any], id: str) -> None:
        row("assistant", uuid, parent, [content], message={"id": id, "model": "claude-x", "usage": usage})

    def text(given: str) -> dict[str, Any]:
        return {"type": "text", "text": given}

    def use(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "Read", "input": {"file_path": f"{id}.txt"}}

    def result(id: str, content: Any) -> list[dict[str, Any]]:
        return [{"type": "tool_result", "tool_use_id": id, "content": content}]

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    row("user", "u1", None, "Read both files")
    reply("u2", "u1", {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, "m1")
    reply("u3", "u2", use("t1"), "m1")
    row("progress", "u4", "u3")
    reply("u5", "u4", use("t2"), "m1")
    row("user", "u6", "u3", result("t1", "one"))
    row("user", "u7", "u5", result("t2", [text("two"), image]))
    reply("u8", "u7", text("Both are there."), "m2")
    row("user", "u9", "u8", "Now delete them")
    reply("ua", "u9", text("I would rather not."), "m3")
    row("user", "ub", "u8", [text("What is this?"), image])
    reply("uc", "ub", text("A dot."), "m4")
    row("system", "ud", None, subtype="compact_boundary", logicalParentUuid="uc", compactMetadata={"preTokens": 900})
    row("user", "ue", "ud", "We read two files.", isCompactSummary=True)
    row("user", "uf", "ue", "Go on")
    reply("ug", "uf", text("Gladly."), "m5")
    rows.append({"type": "summary", "summary": "Two files", "leafUuid": "ug"})
    return rows


def subagent_rows(session: str = "5e55", agent: str = "a1b2") -> list[dict[str, Any]]:
    """Return the rows of a subagent's transcript."""
    fields = {"sessionId": session, "agentId": agent, "isSidechain": True, "cwd": "/srv/no/such"}
    asked = {"role": "user", "content": "Count the lines"}
    answer = {"role": "assistant", "id": f"m-{agent}", "content": [{"type": "text", "text": "Seven."}]}
    stamp = "2026-01-02T03:05:00.000Z"
    return [
        {"type": "user", "uuid": f"{agent}1", "parentUuid": None, "timestamp": stamp, "message": asked} | fields,
        {"type": "assistant", "uuid": f"{agent}2", "parentUuid": f"{agent}1", "timestamp": stamp, "message": answer}
        | fields,
    ]
