"""Recognizes errors that mean "the conversation is too long", and the limits that these errors name.

This module does no I/O. `WORDINGS` is the only list of wordings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from msgspec import Struct

__all__ = ["NEAR", "WORDINGS", "ReportedLimit", "Wording", "is_rate_limit", "names_other_cause", "reported_limit"]

NEAR: Final = 0.8
"""Share of the context window. A refused request of at least this size was probably too long."""


class ReportedLimit(Struct, frozen=True):
    """A limit that a provider reported. Unknown numbers are 0.

    `window` is the context window in tokens, and `request` the size of the request without the answer. If `answer` is
    True, the request itself fits, and only the requested length of the answer does not.
    """

    window: int = 0
    request: int = 0
    answer: bool = False


class Wording(Struct, frozen=True):
    """The wording of one error: a regular expression, and where this wording was seen.

    In `pattern`, W stands for the window and R for the size of the request. Both are numbers.
    """

    pattern: str
    source: str

    def find(self, text: str) -> re.Match[str] | None:
        """Return the match in `text`, with the groups `window` and `request` if this wording names them."""
        return _compiled(self.pattern).search(text)


WORDINGS: Final[tuple[Wording, ...]] = (
    # --- Providers ---
    Wording(
        r"prompt is too long(: R tokens > W)?", "Anthropic: stackblitz/bolt.new#1748; Bedrock: aaif-goose/goose#7504"
    ),
    Wording(
        r"input length and `?max_tokens`? exceed context limit(: R \+ \d+ > W)?", "Anthropic: BrokkAi/brokk-app#540"
    ),
    Wording(
        r"maximum context length (is|of) (only )?W.*?(requested|requested about) \d+ tokens \(R ",
        "OpenAI, vLLM: vllm-project/vllm#20409; DeepSeek: BerriAI/litellm#10431; OpenRouter: OpenHands/OpenHands#9937",
    ),
    Wording(
        r"maximum context length (is|of) (only )?W.*?prompt contains (at least )?R input tokens",
        "vLLM: AIDotNet/OpenCowork#82; Cloudflare: cloudflare/cloudflare-docs#29731",
    ),
    Wording(
        r"maximum context length (is|of) (only )?W.*?R tokens from the input",
        "SGLang, Cloudflare: anomalyco/models.dev#4422",
    ),
    Wording(
        r"maximum context length (is|of) (only )?W.*?(resulted in|request has|requested|contains|at least) R\b"
        r"(?![\d,_]* (output tokens|characters))",
        "OpenAI: smol-ai/developer#7; vLLM: THUDM/LongBench#104",
    ),
    Wording(
        r"maximum context length( (is|of) (only )?W)?", "OpenAI, OpenRouter: badlogic/pi-mono packages/ai overflow.ts"
    ),
    Wording(
        r"exceeds? (the|this model's) context window", "OpenAI Responses API: badlogic/pi-mono packages/ai overflow.ts"
    ),
    Wording(
        r"input tokens exceed the configured limit of W tokens(.*?resulted in R)?",
        "Azure, OpenAI: BerriAI/litellm#15968 and #18927",
    ),
    Wording(
        r"input token count( \(R\))? exceeds the maximum number of tokens allowed( \(?W\)?)?",
        "Gemini: google-gemini/gemini-cli#12214; without a count: BerriAI/litellm#18282",
    ),
    Wording(
        r"input token count is R but (the )?model only supports up to W",
        "Gemini on Vertex AI: google-gemini/gemini-cli#19727",
    ),
    Wording(r"maximum prompt length is W( but the request contains R)?", "xAI: cline/cline#3120"),
    Wording(r"prompt token count of R exceeds the limit of W", "GitHub Copilot: jjleng/copilot-more#35"),
    Wording(r"request body too large for .{1,80} max size: W tokens", "GitHub Models: cline/cline#995"),
    Wording(
        r"reduce the length of the (messages|prompt|input)( or completion\. current length is R while limit is W)?",
        "Groq: thepersonalaicompany/amurex-backend#51; Cerebras: cline/cline#5140",
    ),
    Wording(r"exceeded this model context window limit( \(W\))?", "Cloudflare Workers AI: error 5021 of its REST API"),
    Wording(r"number of input tokens R cannot exceed the total tokens limit W", "watsonx.ai: error texts of its API"),
    Wording(r"number of input tokens \(R\) has exceeded max_prompt_tokens \(W\)", "RhythmicWave/NovelForge#136"),
    Wording(r"input tokens exceed model token limit", "Salesforce: forcedotcom/Einstein-GPT-for-Developers#228"),
    Wording(
        r"input length R exceeds (the )?maximum (input )?length W",
        "DeepInfra: langchain-ai/langchain#25671; Volcano Engine: langgenius/dify#32221",
    ),
    Wording(
        r"(prompt contains R tokens.*?)?too large for model with W maximum context length",
        "Mistral: BerriAI/litellm#21647, badlogic/pi-mono packages/ai overflow.ts",
    ),
    Wording(
        r"too many tokens: total number of tokens.*?cannot exceed W( - received R)?",
        "Cohere: cohere-ai/sandbox-topically#4",
    ),
    Wording(r"size limit exceeded by \d+ tokens", "Cohere: error reference of the Chat API"),
    Wording(r"input is too long( for requested model)?", "Bedrock: aws-samples/bedrock-chat#95"),
    Wording(r"too many (input |prompt )?tokens", "Bedrock: BerriAI/litellm#21647"),
    Wording(r"number of input tokens exceeds maximum length", "Nova on Bedrock: error texts of the Converse API"),
    Wording(
        r"prompt is too long: R, model maximum context length: W",
        "Fireworks: error texts of api.fireworks.ai/inference",
    ),
    Wording(r"length of all messages is too long", "Perplexity: BerriAI/litellm#21647"),
    Wording(r"context window exceeds limit", "MiniMax: MiniMax-AI/MiniMax-M2#119"),
    Wording(
        r"exceeded model token limit(: W)?( \(requested: R\))?", "Moonshot: badlogic/pi-mono packages/ai overflow.ts"
    ),
    Wording(r"range of input length should be \[\d+, W\]", "Alibaba Model Studio: error code reference"),
    Wording(r"prompt exceeds max length", "Z.ai: error code 1261"),
    # --- Servers and gateways ---
    Wording(
        r"(request \(R tokens\)|the request) exceeds the available context size( \(W tokens\))?",
        "llama.cpp: ggml-org/llama.cpp#15780, oobabooga/textgen#7257",
    ),
    Wording(
        r"input( \(R tokens\))? is larger than the max context size( \(W tokens\))?",
        "llama.cpp: ggml-org/llama.cpp#10030",
    ),
    Wording(
        r"requested tokens \(R\) exceed context window of W", "llama-cpp-python: nextcloud/context_chat_backend#27"
    ),
    Wording(
        r"keep the first R tokens when context the overflows.*?context length of only W",
        "LM Studio: lmstudio-ai/lmstudio-bug-tracker#546",
    ),
    Wording(
        r"tokens to keep from the initial prompt is greater than the context length( \(n_keep: R >= n_ctx: W\))?",
        "LM Studio: tinyhumansai/openhuman#3550, lmstudio-ai/lmstudio-bug-tracker#2205",
    ),
    Wording(r"cannot truncate prompt with n_keep \(R\) >= n_ctx \(W\)", "LM Studio: anomalyco/opencode#11141"),
    Wording(r"reached context length of W tokens", "LM Studio: lmstudio-ai/lmstudio-bug-tracker#1251"),
    Wording(r"context size has been exceeded", "LM Studio with MLX: lmstudio-ai/lmstudio-bug-tracker#2339"),
    Wording(
        r"`?inputs`? tokens \+ `?max_new_tokens`? must be <= W(\. given: R `?inputs`?)?",
        "TGI: huggingface/chat-ui#340; Together: BerriAI/litellm#4934",
    ),
    Wording(
        r"`?inputs`? must have less than W tokens(\. given: R)?",
        "TGI: huggingface/text-generation-inference#695",
    ),
    Wording(r"input \(R tokens\) is longer than the model's context length \(W", "SGLang: sgl-project/sglang#8096"),
    Wording(r"input length \(R tokens\) exceeds the maximum allowed length \(W", "SGLang: sgl-project/sglang#4048"),
    Wording(
        r"prompt \((total )?length R\) is (longer than the maximum model length of|too long to fit into the model "
        r"\(context length) W",
        "vLLM: xorbitsai/inference#3785, vllm-project/vllm#12165",
    ),
    Wording(r"prompt \(R tokens\) is too long and exceeds limit of W", "vLLM: vllm-project/vllm#525"),
    Wording(
        r"(you passed R input tokens.*?)?model's context length is only W",
        "vLLM, NVIDIA NIM: VLLMValidationError of vLLM's renderers",
    ),
    Wording(
        r"prompt length \(R(\.0)?\)(, query length \(\d+\))? (exceeds maximum input length|should not exceed "
        r"max_num_tokens) \(W\)",
        "TensorRT-LLM: triton-inference-server/tensorrtllm_backend#565, NVIDIA/TensorRT-LLM#9277",
    ),
    Wording(r"length R( \+ \d+)? is greater than max_seq_len W", "TabbyAPI, ExLlama: SillyTavern/SillyTavern#3543"),
    Wording(
        r"prompt has R tokens in total, larger than the model input length limit W", "MLC LLM: tests of its server"
    ),
    Wording(
        r"input (length )?exceeds (the )?(maximum )?context length",
        "Ollama: ITSpecialist111/ai_automation_suggester#37",
    ),
    Wording(r"prompt too long; exceeded (max )?context length", "Ollama: error texts of its server"),
    Wording(r"ContextWindowExceededError", "LiteLLM: BerriAI/litellm#10431, getkimchi/kimchi#794"),
    # --- Other servers ---
    Wording(
        r"exceed(s|ed|ing)? (the |this |your )?(model'?s? )?(maximum |max |available |allowed )?context"
        r"( (length|window|size|limit))?( of W)?",
        "servers that are not listed",
    ),
    Wording(r"context[ _](length|window|size|limit)[ _](was |is |has been )?exceeded", "servers that are not listed"),
)
KINDS: Final = frozenset(
    {
        "context_length_exceeded",  # OpenAI, Groq
        "context_window_exceeded",
        "contextwindowexceedederror",  # LiteLLM
        "exceed_context_size_error",  # llama.cpp: ggml-org/llama.cpp#15780
        "model_max_prompt_tokens_exceeded",  # GitHub Copilot: microsoft/copilot-intellij-feedback#94
        "model_context_window_exceeded",
        "prompt_too_long",
        "tokens_limit_reached",  # GitHub Models: cline/cline#995
        "request_too_large",  # Anthropic: the body has too many bytes
    }
)
"""Types and codes of errors, in lower case. They decide before any wording."""

ANSWER_LIMITS: Final = re.compile(
    r"`?max_(completion_|output_|new_)?tokens`?'?( or '?`?max_completion_tokens`?'?)? is too large"
    r"|max_(completion_|output_|new_)?tokens`?:? .{0,40}(maximum allowed|supports at most|less than)"
    r"|maximum allowed number of output tokens|supports at most \d+ (completion|output) tokens"
    r"|(maximum|number of) tokens (you )?requested( \d+)? exceeds the|maxOutputTokens value of",
    re.I | re.S,
)
"""Errors of vLLM, OpenAI, Anthropic, Mistral, Bedrock and Vertex AI about the requested length of the answer.

If they name the size of the request, this size decides.
"""
RATE: Final = re.compile(
    r"per[ -](min(ute)?|hour|day|second)\b|\b[tr]p[md]\b|rate.?limit|throttl|too many requests|please wait|quota", re.I
)
IMAGES: Final = re.compile(r"\b(image|audio|video|file|document|pdf|attachment)s?\b|media_type|base64", re.I)
OTHER_CAUSES: Final = re.compile(
    r"max_(completion_|output_|new_)?tokens|temperature|top_[pk]|tool|function|schema|json|unsupported|not support"
    r"|unknown (field|param|arg)|required|missing|unexpected|unrecognized|extra (inputs|fields)|must be|pattern"
    r"|invalid[ _](model|role|type|value|api|key|url|header|param|signature)|signature|thinking|\brole|alternate"
    r"|tool_use_id|safety|policy|moderation|content.?filter|flagged|not found|does not exist|no such"
    r"|model .*(loaded|available)|header|api.?key|auth|credit|billing|--\w|(string|array) too long"
    r"|too many (images|tools|messages)|cache_control|metadata|at most \d+ characters",
    re.I,
)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    groups = {"W": "window", "R": "request"}
    numbers = re.sub(r"\b[WR]\b", lambda letter: rf"(?P<{groups[letter[0]]}>\d[\d,_]*)", pattern)
    return re.compile(numbers, re.I | re.S)


def reported_limit(text: str, kinds: tuple[str, ...], fields: Mapping[str, int]) -> ReportedLimit | None:
    """Return the limit that an error reports, or None if the error has another cause.

    `text` is the message, also with nested messages. `kinds` are types and codes. `fields` are the numbers beside the
    message, such as `n_ctx`.
    """
    certain = any(kind.lower() in KINDS for kind in kinds)
    if not certain and is_rate_limit(text):
        return None
    window, request = fields.get("n_ctx", 0), fields.get("n_prompt_tokens", 0)
    found = _best_match(text)
    is_answer_limit = ANSWER_LIMITS.search(text) is not None
    if not (found or is_answer_limit or certain or (window and request)):
        return None
    numbers = found.groupdict() if found is not None else {}
    window, request = window or _number(numbers.get("window")), request or _number(numbers.get("request"))
    # Answers get at most half of the window. If the request needs no more than the other half, it fits.
    answer = request <= window // 2 if request and window else is_answer_limit and not certain
    return ReportedLimit(window, request, answer)


def is_rate_limit(text: str) -> bool:
    """Return whether an error is about a number of requests or tokens in a time."""
    return RATE.search(text) is not None


def names_other_cause(text: str) -> bool:
    """Return whether an error of an unknown wording names a cause other than the conversation's size."""
    return any(cause.search(text) for cause in (RATE, IMAGES, OTHER_CAUSES))


def _best_match(text: str) -> re.Match[str] | None:
    """Return the match of the wording that names the most numbers."""
    matches = [found for wording in WORDINGS if (found := wording.find(text))]
    return max(matches, key=lambda found: sum(map(bool, found.groupdict().values())), default=None)


def _number(text: str | None) -> int:
    return int(re.sub(r"\D", "", text)) if text else 0
