"""Recipes of training and deployment with Trainer, accelerate, PEFT and Lightning, on the npu device or compiled."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchair.conformance.hub.cases import Case, compile_in_place
from torchair.conformance.hub.text import gradients, network, tokens

__all__ = ["RECIPES", "cases"]

STEPS = 3


def _device(backend: str | None) -> str:
    """Where tensors are: the recipes of another backend than ours are those of the CPU."""
    if backend == "npu":
        importlib.import_module("torch_npu")
        return "npu"
    return "cpu"


class _Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Eight sequences and the tokens to be predicted."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        given = {k: v[0] for k, v in tokens(1, 9).items()}
        given["input_ids"] = (given["input_ids"] + index) % 90
        return given | {"labels": given["input_ids"].clone()}


def _parameters(module: Any) -> list[torch.Tensor]:
    return [p.detach().cpu().float() for p in module.parameters()]


def _trained(backend: str | None, module: Any, **given: Any) -> list[torch.Tensor]:
    """A few steps of transformers' Trainer: the parameters afterwards."""
    transformers = importlib.import_module("transformers")
    npu = _device(backend) == "npu"
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=2, use_cpu=not npu, seed=0,
            learning_rate=0.5, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            optim="sgd", dataloader_pin_memory=False, **given,
        )  # fmt: skip
        trainer = transformers.Trainer(model=module, args=options, train_dataset=_Sentences())
        trainer.train()
    if npu and options.device.type != "npu":
        raise AssertionError(f"Trainer took {options.device} instead of the NPU")
    return _parameters(module)


def _trainer(backend: str | None) -> list[torch.Tensor]:
    return _trained(backend, network("llama", "AutoModelForCausalLM").train())


def _trainer_compiled(backend: str | None) -> list[torch.Tensor]:
    """A compiled network; accelerate's own list of backends is closed, so `torch_compile_backend` cannot name ours."""
    return _trained(backend, compile_in_place(network("qwen2", "AutoModelForCausalLM").train(), backend))


def _trainer_checkpointed(backend: str | None) -> list[torch.Tensor]:
    """Gradient checkpointing and accumulation."""
    given = {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}
    return _trained(backend, network("llama", "AutoModelForCausalLM").train(), **given)


def _lora(backend: str | None) -> list[torch.Tensor]:
    """Adapters: a training step compiled, on the device."""
    peft = importlib.import_module("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    module = peft.get_peft_model(network("llama", "AutoModelForCausalLM"), config).eval().to(_device(backend))
    compile_in_place(module.base_model.model, backend)
    given = {k: v.to(_device(backend)) for k, v in tokens(2, 9).items()}
    module(**given, labels=given["input_ids"]).loss.backward()
    return [gradients(module)]


def _lora_merged(backend: str | None) -> list[torch.Tensor]:
    """Adapters merged into the weights, then tokens."""
    peft = importlib.import_module("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, use_dora=True)
    merged = peft.get_peft_model(network("qwen2", "AutoModelForCausalLM"), config).merge_and_unload().eval()
    compile_in_place(merged, backend)
    return [merged.generate(**tokens(2, 9), max_new_tokens=6, do_sample=False)]


def _prompt_tuning(backend: str | None) -> list[torch.Tensor]:
    peft = importlib.import_module("peft")
    torch.manual_seed(0)
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    module = peft.get_peft_model(network("llama", "AutoModelForCausalLM"), config).to(_device(backend))
    given = {k: v.to(_device(backend)) for k, v in tokens(2, 9).items()}
    module(**given, labels=given["input_ids"]).loss.backward()
    return [gradients(module)]


def _accelerated(backend: str | None) -> list[torch.Tensor]:
    """accelerate's own loop, with clipping and a schedule."""
    accelerate = importlib.import_module("accelerate")
    npu = _device(backend) == "npu"
    for name in ("AcceleratorState", "PartialState"):
        getattr(accelerate.state, name)._reset_state()
    accelerator = accelerate.Accelerator(cpu=not npu)
    assert (accelerator.device.type == "npu") == npu, f"accelerate took {accelerator.device}"
    module = network("llama", "AutoModelForCausalLM").train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)  # Adam makes noise of gradients near zero large
    loader = torch.utils.data.DataLoader(_Sentences(), batch_size=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    prepared, optimizer, loader, schedule = accelerator.prepare(module, optimizer, loader, schedule)
    for batch in loader:
        accelerator.backward(prepared(**batch).loss)
        accelerator.clip_grad_norm_(prepared.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return _parameters(accelerator.unwrap_model(prepared))


_LAUNCHED = """
import sys, torch
from torchair.conformance.hub.recipes import launched
launched(sys.argv[1], sys.argv[2])
"""


def launched(backend: str, path: str) -> None:
    """The script that `accelerate launch` starts."""
    torch.save(_accelerated(backend if backend != "None" else None), path)


def _launch(backend: str | None) -> list[torch.Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        script, results = Path(folder) / "train.py", Path(folder) / "results.pt"
        script.write_text(_LAUNCHED)
        command = [sys.executable, "-m", "accelerate.commands.launch", "--num_processes", "1", "--num_machines", "1",
                   "--mixed_precision", "no", "--dynamo_backend", "no"]  # fmt: skip
        command += ["--cpu"] if _device(backend) == "cpu" else []
        environment = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        done = subprocess.run(
            [*command, str(script), str(backend), str(results)],
            capture_output=True,
            text=True,
            env=environment,
        )
        if done.returncode:
            raise RuntimeError(f"accelerate launch ended with {done.returncode}: {done.stderr[-600:]}")
        found: list[torch.Tensor] = torch.load(results)
        return found


def _lightning(backend: str | None) -> list[torch.Tensor]:
    """Lightning's loop over a compiled network."""
    lightning = importlib.import_module("lightning")

    class Task(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = compile_in_place(network("llama", "AutoModelForCausalLM").train(), backend)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.network(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    task = Task()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": True}
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", devices=1, **quiet)
    trainer.fit(task, torch.utils.data.DataLoader(_Sentences(), batch_size=2))
    return _parameters(task.network)


def _safetensors(backend: str | None) -> list[torch.Tensor]:
    """Weights written as safetensors and read onto the device by `device_map`."""
    auto = importlib.import_module("transformers").AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as folder:
        network("llama", "AutoModelForCausalLM").save_pretrained(folder)
        loaded = auto.from_pretrained(folder, device_map=_device(backend)).eval()
    assert loaded.device.type == _device(backend), f"the weights are on {loaded.device}"
    compile_in_place(loaded, backend)
    given = {k: v.to(loaded.device) for k, v in tokens(2, 9).items()}
    with torch.no_grad():
        return [loaded(**given).logits.cpu()]


def _pipeline(backend: str | None) -> list[torch.Tensor]:
    """transformers' pipeline on the device, with a tokenizer made here."""
    transformers, tokenizers = (importlib.import_module(n) for n in ("transformers", "tokenizers"))
    words = {"[UNK]": 0, "a": 1, "b": 2} | {f"w{i}": i for i in range(3, 96)}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[UNK]", unk_token="[UNK]"
    )
    module = network("llama", "AutoModelForCausalLM")
    make = transformers.pipeline(
        "text-generation", model=module, tokenizer=tokenizer, device=_device(backend)
    )
    compile_in_place(make.model, backend)
    made = make(
        ["w3 w4 w5 w9", "w8 w7"], max_new_tokens=6, do_sample=False, return_tensors=True, batch_size=2
    )
    return [torch.tensor(m[0]["generated_token_ids"]) for m in made]


def _exported(backend: str | None) -> list[torch.Tensor]:
    """torch.export's program, compiled."""
    module = network("bert", "AutoModel")
    given = tokens(2, 11)
    program: Any = module
    if backend is not None:
        exported = torch.export.export(module, (), given, strict=False).module()
        program = torch.compile(exported, backend=backend)
    with torch.no_grad():
        return [program(**given)[0]]


RECIPES: dict[str, Callable[[str | None], list[torch.Tensor]]] = {
    "Trainer": _trainer,
    "Trainer, compiled": _trainer_compiled,
    "Trainer, gradient checkpointing": _trainer_checkpointed,
    "LoRA": _lora,
    "DoRA, merged": _lora_merged,
    "prefix tuning": _prompt_tuning,
    "accelerate": _accelerated,
    "accelerate launch": _launch,
    "Lightning": _lightning,
    "safetensors, device_map": _safetensors,
    "pipeline": _pipeline,
    "torch.export": _exported,
}


def cases() -> Iterator[Case]:
    """Each recipe once."""
    for name, results in RECIPES.items():
        yield Case("recipes", name, "run", results)
