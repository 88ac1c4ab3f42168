"""Record a compiled GPT, and compare it with the eager one: which operator does the compiler compute otherwise?

The same training step runs twice: as it is written, and under ``torch.compile``. Both dumps have the same records, so
``msprobe compare`` puts them side by side.

Usage: python examples/compile_gpt.py [--out DIR] [--backend inductor] [--dtype bfloat16]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe.store import read_dump

WIDTH, HEADS, LAYERS, TOKENS, VOCABULARY = 64, 4, 2, 32, 256


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Token ids to the loss of predicting the next one."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        logits = self.head(self.blocks(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def record(folder: Path, backend: str | None, dtype: torch.dtype) -> None:
    """Two training steps, recorded; compiled if there is a backend."""
    seed_all(1234)
    model = GPT().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.randint(0, VOCABULARY, (2, TOKENS))
    config = {"dump_path": str(folder), "level": "mix", "exact": dtype is not torch.float32, "self_check": True}
    path = folder.with_suffix(".json")
    path.write_text(json.dumps(config), encoding="utf-8")
    debugger = PrecisionDebugger(path)
    if backend is not None:
        model.compile(backend=backend)
    for batch in debugger.steps([ids, ids], model):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"  {'eager' if backend is None else backend}: loss {loss.item():.6f}")


def show(folder: Path) -> None:
    """What was compiled, and two records."""
    dump = read_dump(next((folder / "step1").iterdir()))
    for graph in (dump.coverage or {})["notes"]["compiled"]["graphs"]:
        print(f"  graph {graph['graph']}: {graph['calls']} calls, {graph['probes']} probes, {graph['self_check']}")
    for name in ("Functional.linear.0.forward", "Functional.linear.0.backward"):
        record = dump.data[name]
        norm = next(entry["Norm"] for entry in record["output"] if entry)
        print(f"  {name}: norm {norm:.6g}, from node {record['fx']['node']} of graph {record['fx']['graph']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="compile_output", type=Path, help="folder for the dumps")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--record", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    dtype = getattr(torch, chosen.dtype)
    if chosen.record:
        record(chosen.out / chosen.record, chosen.backend if chosen.record == "compiled" else None, dtype)
        return
    given = ["--out", str(chosen.out), "--backend", chosen.backend, "--dtype", chosen.dtype]
    for run in ("eager", "compiled"):  # a process each: one has one debugger
        subprocess.run([sys.executable, "-W", "ignore", __file__, "--record", run, *given], check=True)
    show(chosen.out / "compiled")
    command = ["msprobe", "compare", "-tp", str(chosen.out / "compiled"), "-gp", str(chosen.out / "eager")]
    command += ["-o", str(chosen.out / "compare")]
    print(f"  $ {' '.join(command)}")
    done = subprocess.run([sys.executable, "-m", *command], check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"compare ended with {done.returncode}")


if __name__ == "__main__":
    main()
