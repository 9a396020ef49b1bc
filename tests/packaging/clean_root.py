"""Installs the wheels beside nothing but Python and runs README's examples: ``python -m tests.packaging.clean_root``.

1. debootstrap unpacks Debian's smallest system with Python into build/clean_root; nothing of this tree is in it.
2. pip installs the wheels of dist/ (`make wheels`) with the extras that README's examples need.
3. The blocks of README's section "Use it" run one after the other in one folder, Python blocks as scripts, the others
   as commands. Each prints what the comments behind its `print` say. Blocks of frameworks outside of `--extras` are
   left out.

pip's settings (variables PIP_* and those of proxies) are handed on; `--bind` shows folders of this machine, such as a
mirror of packages, at the same place.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = {
    "bookworm": "cp311",
    "trixie": "cp312",
    "sid": "cp312",
}  # what a suite's Python takes; 3.13 and 3.14 take the stable ABI of 3.12
MIRROR = "http://deb.debian.org/debian"
EXTRAS = "tensorflow,torch,onnx,ascend"
FRAMEWORKS = ("tensorflow", "torch")
HANDED_ON = re.compile(r"PIP_.*|(https?|no|all)_proxy", re.IGNORECASE)
BLOCK = re.compile(r"^```(python)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"print\(.*\)['\"]?  # (.+)$", re.MULTILINE)


def examples(text: str) -> list[tuple[str, str]]:
    """The blocks of the section "Use it": their language, empty for commands, and their text."""
    section = text.partition("\n## Use it\n")[2].partition("\n## ")[0]
    return BLOCK.findall(section)


def frameworks(block: str) -> list[str]:
    """The frameworks that a block imports."""
    return [name for name in FRAMEWORKS if re.search(rf"^import (.*, )?{name}\b", block, re.MULTILINE)]


def unsaid(block: str, output: str) -> list[str]:
    """The lines that a block's comments promise and its output does not have, in their order."""
    lines = iter(output.splitlines())
    return [said for said in SAID.findall(block) if not any(line.strip() == said for line in lines)]


class CleanRoot:
    """A Debian system in a folder, and commands that run in it."""

    def __init__(self, place: Path, binds: Sequence[Path]) -> None:
        self.place, self.binds = place, binds

    def unpack(self, suite: str, mirror: str) -> None:
        self.place.parent.mkdir(parents=True, exist_ok=True)
        include = "--include=python3,python3-venv,ca-certificates"
        subprocess.run(
            ["debootstrap", "--variant=minbase", include, suite, self.place, mirror],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def run(self, command: str) -> str:
        """The output of a command in the root's folder /try, in namespaces of its own for mounts and processes."""
        mounts = ["mount -t proc proc proc", "mount --rbind /dev dev", "touch etc/resolv.conf"]
        mounts.append("mount --bind /etc/resolv.conf etc/resolv.conf")
        mounts += [f"mkdir -p .{folder} && mount --bind {folder} .{folder}" for folder in self.binds]
        handed = {name: value for name, value in os.environ.items() if HANDED_ON.fullmatch(name)}
        path = "/try/environment/bin:/usr/bin:/bin"
        variables = {**handed, "PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "TF_CPP_MIN_LOG_LEVEL": "2"}
        inside = 'exec chroot . /bin/sh -ec "cd /try; $0"'
        script = " && ".join(["set -e", *mounts, inside])
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, command],
            cwd=self.place, env={**variables, "PATH": f"{path}:/usr/sbin:/sbin"}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"failed: {command}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
        return done.stdout


def install(root: CleanRoot, wheels: Sequence[Path], extras: str) -> None:
    folder = root.place / "try"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    for wheel in wheels:
        shutil.copy(wheel, folder / "wheels")
    root.run("python3 -m venv environment")
    root.run(f"pip install --quiet --no-cache-dir --find-links wheels 'tf-adapter[{extras}]'")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", choices=PYTHONS, default="bookworm")
    parser.add_argument("--mirror", default=MIRROR)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels")
    parser.add_argument("--extras", default=EXTRAS, help="what is installed with the wheels")
    parser.add_argument(
        "--bind", type=Path, action="append", default=[], help="a folder that pip reads there"
    )
    arguments = parser.parse_args()
    missing = [tool for tool in ("debootstrap", "unshare") if shutil.which(tool) is None]
    if missing or os.geteuid():
        parser.exit(1, f"needs root and the packages debootstrap and util-linux; missing: {missing}\n")
    kind = PYTHONS[arguments.suite]
    wheels = [
        *arguments.dist.glob(f"tf_adapter-*-{kind}-*.whl"),
        *arguments.dist.glob("tf_adapter_ascend-*.whl"),
    ]
    if len(wheels) != 2:
        parser.exit(1, f"no wheels for {kind} in {arguments.dist}: make wheels\n")
    root = CleanRoot(ROOT / "build" / "clean_root" / arguments.suite, arguments.bind)
    if not root.place.is_dir():
        root.unpack(arguments.suite, arguments.mirror)
    started = time.perf_counter()
    install(root, wheels, arguments.extras)
    print(
        root.run("python --version").strip(),
        f"installed in {time.perf_counter() - started:.0f} s",
        flush=True,
    )
    failed = False
    for number, (language, block) in enumerate(examples((ROOT / "README.md").read_text()), 1):
        name = f"example_{number}.{'py' if language else 'sh'}"
        absent = set(frameworks(block)) - set(arguments.extras.split(","))
        if absent:
            print(f"{name}: left out, needs {', '.join(sorted(absent))}", flush=True)
            continue
        (root.place / "try" / name).write_text(block)
        output = root.run(f"{'python' if language else 'sh -e'} {name}")
        left = unsaid(block, output)
        failed |= bool(left)
        said = SAID.findall(block)
        print(f"{name}: {f'not printed: {left}' if left else f'printed {said}'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
