"""A language model behind the interface of OpenAI's servers: completions and chats, streamed or whole.

    python examples/chat_server.py models/my-llama --slots 8 --port 8000
    curl localhost:8000/v1/completions -d '{"prompt": "Once", "max_tokens": 20, "stream": true}'

A folder holds `config.json`, `model.safetensors` and `tokenizer.json` of a Llama (needs `safetensors`, `tokenizers`).
Requests are batched continuously: each takes one of the slots of the cache, begins while others are under way, and
leaves when it is done; one compiled call makes the next token of all of them. Prompts are padded to powers of
two, so there are as many programs as powers of two up to the length of the cache, and one for decoding.
Without a folder, a tiny model with random weights is served, whose tokens are bytes, and asked once.
"""

from __future__ import annotations

import argparse
import codecs
import contextlib
import json
import queue
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import torchair

LEAST = 8  # tokens of the smallest program for prompts


# -- the model -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Sizes of a Llama, by the names of its configuration file."""

    vocab_size: int = 256
    hidden_size: int = 64
    intermediate_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1e4
    tie_word_embeddings: bool = False
    eos_token_id: int | list[int] | None = None

    @classmethod
    def read(cls, path: Path) -> Config:
        """The configuration of a folder; what this model does not have is refused."""
        given = json.loads(path.read_text())
        rope = given.get("rope_parameters") or given.get("rope_scaling") or {}
        if given.get("model_type") != "llama" or rope.get("rope_type", "default") != "default":
            raise SystemExit(
                f"{path} is not a Llama with plain rotary positions: {given.get('model_type')}, {rope}"
            )
        given.setdefault("rope_theta", rope.get("rope_theta", 1e4))
        given["rope_theta"] = given["rope_theta"] or 1e4
        return cls(**{k: v for k, v in given.items() if k in cls.__dataclass_fields__})


class Attention(nn.Module):
    """Attention of grouped heads over the cache of slots."""

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, config: Config, slots: int, length: int) -> None:
        super().__init__()
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        width = config.hidden_size
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, self.groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        for name in ("keys", "values"):
            cache = torch.zeros(slots, length, self.groups, self.size)
            self.register_buffer(name, cache, persistent=False)

    def forward(
        self, x: torch.Tensor, slots: torch.Tensor, places: torch.Tensor, turn: torch.Tensor
    ) -> torch.Tensor:
        q = rotate(self.q_proj(x).unflatten(-1, (self.heads, self.size)), turn)
        k = rotate(self.k_proj(x).unflatten(-1, (self.groups, self.size)), turn)
        v = self.v_proj(x).unflatten(-1, (self.groups, self.size))
        self.keys[slots[:, None], places] = k
        self.values[slots[:, None], places] = v
        everyone = x.shape[0] == self.keys.shape[0]  # decoding is for all slots, in order
        k, v = (self.keys, self.values) if everyone else (self.keys[slots], self.values[slots])
        seen = torch.arange(self.keys.shape[1]) <= places[:, None, :, None]
        repeats = self.heads // self.groups
        k, v = (t.transpose(1, 2).repeat_interleave(repeats, 1) for t in (k, v))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen)
        return self.o_proj(y.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Pairs of elements turned by the angles of their position: (batch, tokens, heads, size)."""
    left, right = x.chunk(2, -1)
    return x * turn.cos() + torch.cat((-right, left), -1) * turn.sin()


class Layer(nn.Module):
    """Attention and a gated feed-forward network."""

    def __init__(self, config: Config, slots: int, length: int) -> None:
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.input_layernorm = nn.RMSNorm(width, config.rms_norm_eps)
        self.self_attn = Attention(config, slots, length)
        self.post_attention_layernorm = nn.RMSNorm(width, config.rms_norm_eps)
        self.mlp: Any = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, hidden, bias=False),
                "up_proj": nn.Linear(width, hidden, bias=False),
                "down_proj": nn.Linear(hidden, width, bias=False),
            }
        )

    def forward(
        self, x: torch.Tensor, slots: torch.Tensor, places: torch.Tensor, turn: torch.Tensor
    ) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), slots, places, turn)
        y = self.post_attention_layernorm(x)
        gated = F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        return x + self.mlp["down_proj"](gated)


class Llama(nn.Module):
    """Logits after tokens of some slots; keys and values are written into the cache at the given places."""

    frequencies: torch.Tensor

    def __init__(self, config: Config, slots: int, length: int) -> None:
        super().__init__()
        self.config, self.slots, self.length = config, slots, length
        layers = [Layer(config, slots, length) for _ in range(config.num_hidden_layers)]
        self.model: Any = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
                "layers": nn.ModuleList(layers),
                "norm": nn.RMSNorm(config.hidden_size, config.rms_norm_eps),
            }
        )
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model["embed_tokens"].weight
        size = config.hidden_size // config.num_attention_heads
        frequencies = config.rope_theta ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("frequencies", frequencies.repeat(2), persistent=False)

    def forward(
        self, tokens: torch.Tensor, slots: torch.Tensor, places: torch.Tensor, last: torch.Tensor
    ) -> torch.Tensor:
        x = self.model["embed_tokens"](tokens)
        turn = places[:, :, None, None] * self.frequencies
        for layer in self.model["layers"]:
            x = layer(x, slots, places, turn)
        rows = x[torch.arange(x.shape[0]), last]
        return self.lm_head(self.model["norm"](rows))

    @classmethod
    def read(cls, folder: Path, slots: int, length: int) -> Llama:
        """A model of a folder with the files that transformers writes."""
        from safetensors.torch import load_file

        model = cls(Config.read(folder / "config.json"), slots, length)
        weights = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        missing, unknown = model.load_state_dict(weights, strict=False)
        missing = [m for m in missing if m != "lm_head.weight" or not model.config.tie_word_embeddings]
        if missing or unknown:
            raise SystemExit(f"{folder} has not {missing}, and what is not a Llama's: {unknown}")
        return model


# -- text ------------------------------------------------------------------------------------------------------------


class Bytes:
    """The tokenizer of the tiny model: a byte is a token."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        return list(text.encode())

    def pieces(self) -> Callable[[int | None], str]:
        """A function that takes tokens one by one, None at the end, and gives the text that each completes."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return lambda token: decoder.decode(b"" if token is None else bytes([token]), token is None)


class Words:
    """A tokenizer of the package `tokenizers`."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(path))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def pieces(self) -> Callable[[int | None], str]:
        """A function that takes tokens one by one, None at the end, and gives the text that each completes."""
        tokens: list[int] = []
        said = ""

        def piece(token: int | None) -> str:
            nonlocal said
            tokens.extend([] if token is None else [token])
            text = self.tokenizer.decode(tokens)
            if token is not None and text.endswith("\ufffd"):  # a character that is not complete
                return ""
            new, said = text[len(said) :], text
            return new

        return piece


# -- continuous batching -------------------------------------------------------------------------------------------


class RequestError(Exception):
    """What is wrong with a request; the client is told."""


@dataclass
class Request:
    """A request that is under way."""

    prompt: list[int]
    most: int
    temperature: float
    generator: torch.Generator | None
    made: queue.SimpleQueue[int | Exception | None] = field(default_factory=queue.SimpleQueue)
    count: int = 0  # tokens that were made
    last: int = 0
    cancelled: bool = False


class Engine:
    """Slots of a cache, filled and emptied while a thread makes tokens."""

    def __init__(self, model: Llama) -> None:
        self.model = model.eval()
        self.call = torch.compile(model, backend=torchair.get_npu_backend(), dynamic=False)
        self.slots: list[Request | None] = [None] * model.slots
        self.waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.together = 0  # the most sequences that one call has served
        stops = model.config.eos_token_id
        self.stops = set(stops if isinstance(stops, list) else [stops])
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        threading.Thread(target=self._run, daemon=True).start()

    def submit(self, prompt: list[int], most: int, temperature: float, seed: int | None) -> Request:
        """Begin a request; tokens come through its queue, None at the end."""
        if not prompt:
            raise RequestError("the prompt is empty")
        if len(prompt) >= self.model.length:
            raise RequestError(f"the prompt has {len(prompt)} tokens; the cache holds {self.model.length}")
        most = min(most, self.model.length - len(prompt))
        generator = torch.Generator().manual_seed(seed) if seed is not None else None
        sequence = Request(prompt, most, temperature, generator)
        self.waiting.put(sequence)
        return sequence

    def _run(self) -> None:
        while True:
            active = [s for s in self.slots if s is not None]
            try:
                self._admit(block=not active)
                self._step()
            except Exception as error:  # whoever waits is told
                for index, sequence in enumerate(self.slots):
                    if sequence is not None:
                        sequence.made.put(error)
                        self.slots[index] = None

    @torch.no_grad()
    def _admit(self, block: bool) -> None:
        """Give free slots to those that wait, and read their prompts."""
        while None in self.slots:
            try:
                sequence = self.waiting.get(block=block)
            except queue.Empty:
                return
            block = False
            slot = self.slots.index(None)
            self.slots[slot] = sequence
            count = len(sequence.prompt)
            size = min(max(LEAST, 1 << (count - 1).bit_length()), self.model.length)
            tokens = torch.tensor([sequence.prompt + [0] * (size - count)])
            places = torch.arange(size)[
                None
            ]  # what is written behind the prompt is overwritten before it is seen
            logits = self.call(tokens, torch.tensor([slot]), places, torch.tensor([count - 1]))
            self._take(slot, logits[0])

    @torch.no_grad()
    def _step(self) -> None:
        """The next token of every slot; what free ones give is not read."""
        tokens, places = torch.zeros(len(self.slots), 1, dtype=torch.long), []
        for slot, sequence in enumerate(self.slots):
            if sequence is not None:
                tokens[slot] = sequence.last
            places.append([0 if sequence is None else len(sequence.prompt) + sequence.count - 1])
        active = sum(s is not None for s in self.slots)
        if not active:
            return
        self.together = max(self.together, active)
        everyone, last = torch.arange(len(self.slots)), torch.zeros(len(self.slots), dtype=torch.long)
        logits = self.call(tokens, everyone, torch.tensor(places), last)
        for slot in [i for i, s in enumerate(self.slots) if s is not None]:
            self._take(slot, logits[slot])

    def _take(self, slot: int, logits: torch.Tensor) -> None:
        """Choose a token; free the slot when it was the last."""
        sequence = self.slots[slot]
        assert sequence is not None
        if sequence.temperature > 0:
            shares = (logits.float() / sequence.temperature).softmax(-1)
            token = int(torch.multinomial(shares, 1, generator=sequence.generator))
        else:
            token = int(logits.argmax())
        sequence.last, sequence.count = token, sequence.count + 1
        ended = token in self.stops
        if not ended:
            sequence.made.put(token)
        if ended or sequence.count >= sequence.most or sequence.cancelled:
            sequence.made.put(None)
            self.slots[slot] = None


# -- the interface ---------------------------------------------------------------------------------------------------


class Service:
    """Requests in JSON to an engine, answers in JSON."""

    def __init__(self, name: str, engine: Engine, tokenizer: Any) -> None:
        self.name, self.engine, self.tokenizer = name, engine, tokenizer

    def begin(self, request: Mapping[str, Any], chat: bool) -> Request:
        """Start a request."""
        text = _chat(request["messages"]) if chat else request["prompt"]
        prompt = text if isinstance(text, list) else self.tokenizer.encode(text)
        if not all(isinstance(t, int) and 0 <= t < self.engine.model.config.vocab_size for t in prompt):
            raise RequestError("the prompt has tokens that are not in the vocabulary")
        most = int(request.get("max_completion_tokens", request.get("max_tokens", 16)))
        temperature, seed = float(request.get("temperature", 1.0)), request.get("seed")
        if most < 1 or temperature < 0:
            raise RequestError("max_tokens is at least 1, and temperature at least 0")
        if request.get("n", 1) != 1:
            raise RequestError("n is 1 here: send several requests")
        return self.engine.submit(prompt, most, temperature, seed)

    def pieces(self, sequence: Request) -> Iterator[str]:
        """The text of a request as it comes."""
        piece = self.tokenizer.pieces()
        while (token := sequence.made.get()) is not None:
            if isinstance(token, Exception):
                raise token
            yield piece(token)
        rest = piece(None)
        if rest:
            yield rest

    def answer(
        self, sequence: Request, chat: bool, identity: str, text: str | None, stream: bool
    ) -> dict[str, Any]:
        """A part of an answer, or all of it; no text: the end of a stream."""
        kind = ("chat.completion" if chat else "text_completion") + (".chunk" if chat and stream else "")
        done = text is None or not stream
        why = ("length" if sequence.count >= sequence.most else "stop") if done else None
        said: dict[str, Any] = {"index": 0, "finish_reason": why}
        if chat:
            message = {} if text is None else {"role": "assistant", "content": text}
            said["delta" if stream else "message"] = message
        else:
            said["text"] = text or ""
        made = {
            "id": identity,
            "object": kind,
            "created": int(time.time()),
            "model": self.name,
            "choices": [said],
        }
        if not stream:
            counts = {"prompt_tokens": len(sequence.prompt), "completion_tokens": sequence.count}
            made["usage"] = {**counts, "total_tokens": sum(counts.values())}
        return made


def _chat(messages: Sequence[Mapping[str, Any]]) -> str:
    """Messages as one text, in a plain form: the folder's own template needs the package transformers."""
    lines = [f"{m['role']}: {m['content']}\n" for m in messages]
    return "".join(lines) + "assistant: "


def handler(service: Service) -> type[BaseHTTPRequestHandler]:
    """The server's answers to requests."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            models = [{"id": service.name, "object": "model", "owned_by": "local", "created": 0}]
            if self.path == "/v1/models":
                self._send(200, {"object": "list", "data": models})
            elif self.path == f"/v1/models/{service.name}":
                self._send(200, models[0])
            else:
                self._refuse(404, f"there is nothing at {self.path}")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            chat = self.path == "/v1/chat/completions"
            if not chat and self.path != "/v1/completions":
                self._refuse(404, f"there is nothing at {self.path}")
                return
            try:
                request = json.loads(body)
                sequence = service.begin(request, chat)
            except (RequestError, KeyError, TypeError, ValueError) as error:
                self._refuse(400, f"{type(error).__name__}: {error}")
                return
            identity = f"cmpl-{uuid.uuid4().hex}"
            try:
                if request.get("stream"):
                    self._stream(sequence, chat, identity)
                else:
                    text = "".join(service.pieces(sequence))
                    self._send(200, service.answer(sequence, chat, identity, text, False))
            except ConnectionError:  # the client has gone: its slot is free after the next token
                sequence.cancelled = True
            except Exception as error:
                self._refuse(500, f"{type(error).__name__}: {error}")

        def _stream(self, sequence: Request, chat: bool, identity: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for text in service.pieces(sequence):
                self._event(json.dumps(service.answer(sequence, chat, identity, text, True)))
            self._event(json.dumps(service.answer(sequence, chat, identity, None, True)))
            self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")

        def _event(self, text: str) -> None:
            data = f"data: {text}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _refuse(self, status: int, message: str) -> None:
            self._send(
                status, {"error": {"message": message, "type": "invalid_request_error", "code": status}}
            )

        def _send(self, status: int, answer: Mapping[str, Any]) -> None:
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def ask_once(port: int) -> None:
    """One streamed request, as a client without any library sends it."""
    request = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "stream": True}
    url = f"http://127.0.0.1:{port}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(request).encode())) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    text = "".join(json.loads(e)["choices"][0]["text"] for e in events if e != "[DONE]")
    print(f"{len(events)} events: {text!r}")


def main() -> None:
    """Serve until interrupted; the tiny model only until it has answered."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="a Llama as transformers writes it")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--slots", type=int, default=4, help="requests that are under way at once")
    parser.add_argument("--length", type=int, default=256, help="tokens of a request, its answer included")
    parser.add_argument("--stay", action="store_true", help="keep serving the tiny model")
    given = parser.parse_args()
    torch.manual_seed(0)
    tokenizer: Any = Bytes()
    if given.folder is None:
        name, model = "tiny", Llama(Config(), given.slots, given.length)
    else:
        name, model = given.folder.name, Llama.read(given.folder, given.slots, given.length)
        tokenizer = Words(given.folder / "tokenizer.json")
    service = Service(name, Engine(model), tokenizer)
    server = ThreadingHTTPServer(("127.0.0.1", given.port), handler(service))
    print(f"{name} is served on port {server.server_port}", flush=True)
    if given.folder is None and not given.stay:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ask_once(server.server_port)
        server.shutdown()
        return
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
