"""The example server of language models: OpenAI's interface over loopback, streamed, with continuous batching."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from torchair.executable import observe

ROOT = Path(__file__).resolve().parents[2]
SLOTS, LENGTH = 3, 32


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("chat_server", ROOT / "examples" / "chat_server.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["chat_server"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def service(example: Any) -> Any:
    torch._dynamo.reset()
    torch.manual_seed(0)
    engine = example.Engine(example.Llama(example.Config(), SLOTS, LENGTH))
    return example.Service("tiny", engine, example.Bytes())


@pytest.fixture(scope="module")
def url(example: Any, service: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), example.handler(service))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def ask(url: str, **request: Any) -> Any:
    with urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(request).encode()), timeout=300
    ) as answer:
        return json.load(answer)


def streamed(url: str, **request: Any) -> list[Any]:
    body = json.dumps({**request, "stream": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=300) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        lines = answer.read().decode().splitlines()
    events = [line.removeprefix("data: ") for line in lines if line]
    assert events.pop() == "[DONE]"
    return [json.loads(e) for e in events]


def greedy(example: Any, service: Any, prompt: list[int], count: int) -> list[int]:
    """Tokens of eager mode, each from the whole text so far, without what the server's cache holds."""
    model = example.Llama(service.engine.model.config, 1, LENGTH).eval()
    model.load_state_dict(service.engine.model.state_dict())
    tokens = list(prompt)
    for _ in range(count):
        places = torch.arange(len(tokens))[None]
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), torch.tensor([0]), places, torch.tensor([len(tokens) - 1]))
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def test_requests_that_are_under_way_together_have_the_tokens_of_eager_mode(
    example: Any, service: Any, url: str
) -> None:
    prompts = ["a", "The quick brown", "fox", "jumps over the lazy", "dog", "abcdefgh", "xyz"]
    counts = [9, 6, 12, 8, 3, 10, 7]
    with observe() as reports, ThreadPoolExecutor(len(prompts)) as clients:
        asked = [
            clients.submit(ask, f"{url}/completions", prompt=p, max_tokens=n, temperature=0)
            for p, n in zip(prompts, counts, strict=True)
        ]
        answers = [a.result() for a in asked]
        graphs = len(reports)
        ask(f"{url}/completions", prompt="other", max_tokens=5, temperature=0)
        assert len(reports) == graphs
    for prompt, count, answer in zip(prompts, counts, answers, strict=True):
        wanted = greedy(example, service, list(prompt.encode()), count)
        assert answer["choices"] == [{"index": 0, "finish_reason": "length", "text": text_of(wanted)}]
        assert answer["usage"]["total_tokens"] == len(prompt) + count
    assert service.engine.together > 1  # continuous batching did take place
    # Prompts of 8, 16 and 32 tokens and decoding: four graphs, each one program, all on the NPU.
    assert graphs == 4
    assert [(r.programs, [(c.operator, c.reason) for c in r.refusals], r.failure) for r in reports] == [
        (1, [], "")
    ] * 4


def test_a_stream_has_the_text_of_the_whole_answer(url: str) -> None:
    request = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    whole = ask(f"{url}/chat/completions", **request)["choices"][0]
    events = streamed(f"{url}/chat/completions", **request)
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events)
    assert text == whole["message"]["content"]
    assert [e["choices"][0]["finish_reason"] for e in events][-2:] == [None, "length"]
    assert len(events) >= 9  # an event a token and the end; bytes that complete no character may add one


def test_a_seed_draws_the_same_tokens(url: str) -> None:
    request = {"prompt": "dice", "max_tokens": 8, "temperature": 1.5}
    texts = [ask(f"{url}/completions", **request, seed=s)["choices"][0]["text"] for s in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_models_are_listed_and_errors_are_told(url: str) -> None:
    with urllib.request.urlopen(f"{url}/models") as answer:
        assert [m["id"] for m in json.load(answer)["data"]] == ["tiny"]
    for path, request, status, why in (
        ("completions", {"prompt": ""}, 400, "empty"),
        ("completions", {"prompt": "x" * LENGTH}, 400, "the cache holds 32"),
        ("completions", {"prompt": [999]}, 400, "vocabulary"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "at least 1"),
        ("completions", {}, 400, "prompt"),
        ("images", {"prompt": "a"}, 404, "there is nothing"),
    ):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(f"{url}/{path}", **request)
        assert caught.value.code == status
        assert why in json.load(caught.value)["error"]["message"]
