"""Train a small Llama for three steps, with and without the debugger, show what was recorded, and find a planted bug.

The model has random weights; the text is the source code of Python's standard library, byte by byte. Run it with
``make demo``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from msprobe.measure import backend
from msprobe.pytorch import PrecisionDebugger, seed_all
from msprobe.store import Dump, read_dump

STEPS = 3
BATCH, TOKENS = 4, 128
BUG_LAYER = 2


def make_model() -> LlamaForCausalLM:
    """A Llama of 4 layers, hidden size 256."""
    seed_all(1234)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=TOKENS,
        )
    )


def make_batches() -> list[torch.Tensor]:
    """Byte-level token ids, one batch per step."""
    text = Path(argparse.__file__).read_bytes()
    size = BATCH * TOKENS
    return [torch.tensor(list(text[i * size : (i + 1) * size])).view(BATCH, TOKENS) for i in range(STEPS)]


def train(model: LlamaForCausalLM, batches: list[torch.Tensor], debugger: PrecisionDebugger | None) -> list[float]:
    """One AdamW step per batch; returns the losses."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches if debugger is None else debugger.steps(batches, model):
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def measure_slow_down(debugger: PrecisionDebugger, rounds: int = 4) -> tuple[float, float]:
    """Median seconds of a step without and with the debugger, alternating."""
    model, (batch, *_) = make_model(), make_batches()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> float:
        begin = time.perf_counter()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    step()
    without, with_tool = [], []
    for _ in range(rounds):
        without.append(step())
        begin = time.perf_counter()
        with debugger.capture(model):
            step()
        with_tool.append(time.perf_counter() - begin)
    return statistics.median(without), statistics.median(with_tool)


def counted(counts: dict[str, int]) -> str:
    """Counts by reason, as text."""
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"


def show_records(console: Console, dump: Dump) -> None:
    """A few records as a table."""
    table = Table(title="A few records (first output)", title_justify="left")
    for column in ("record", "shape", "Max", "Min", "Mean", "Norm"):
        table.add_column(
            column, justify="left" if column in ("record", "shape") else "right", no_wrap=column == "record"
        )
    wanted = ("layers.0.self_attn.q_proj", "scaled_dot_product", "layers.0.mlp.", "cross_entropy", "lm_head")
    names = [name for name in dump.data if any(part in name for part in wanted)]
    for name in names[:6] + names[-8:]:
        record = dump.data[name]
        entries = record.get("output") or next((value for value in record.values() if value), [])
        entry = next((item for item in entries if isinstance(item, dict) and "Max" in item), None)
        if entry is not None:
            numbers = [f"{entry[key]:.4g}" for key in ("Max", "Min", "Mean", "Norm")]
            table.add_row(name, str(entry["shape"]), *numbers)
    console.print(table)


def record_with_bug(dump_path: Path) -> None:
    """One recorded step of a model with a bug: a row of one weight was lost, as by a bad checkpoint."""
    model = make_model()
    with torch.no_grad():
        model.model.layers[BUG_LAYER].mlp.down_proj.weight[7] = 0
    debugger = PrecisionDebugger(task="statistics", level="mix", dump_path=str(dump_path))
    train(model, make_batches()[:1], debugger)


def find_bug(console: Console, out: Path) -> None:
    """Record the run with the bug in a process of its own, and compare it with the good one."""
    planted, result = out / "dump_with_bug", out / "compare"
    subprocess.run([sys.executable, __file__, "--record-with-bug", str(planted)], check=True)
    console.print("\n[bold]Can it find a bug?[/bold] One row of one weight was set to zero; which?", soft_wrap=True)
    command = ["msprobe", "compare", "-tp", str(planted / "step0"), "-gp", str(out / "dump" / "step0")]
    command += ["-o", str(result), "--html"]
    console.print(f"  $ {' '.join(command)}\n", soft_wrap=True)
    done = subprocess.run([sys.executable, "-m", *command], check=False)
    if done.returncode != 1:
        raise SystemExit(f"compare ended with {done.returncode}; 1 was expected: the runs differ.")
    first = json.loads((result / "summary.json").read_text("utf-8"))["first_divergence"]
    if f"layers.{BUG_LAYER}.mlp.down_proj.weight" not in first["explanation"]:
        raise SystemExit(f"The bug was not found: {first['explanation']}")
    console.print(f"  the page opens in any browser: {result / 'compare_result.html'}", soft_wrap=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="demo_output", help="folder for the dumps")
    parser.add_argument("--record-with-bug", metavar="DIR", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record_with_bug is not None:
        record_with_bug(arguments.record_with_bug)
        return
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    console = Console(width=None if sys.stdout.isatty() else 150)
    torch.set_num_threads(2)

    config = {"task": "statistics", "level": "mix", "dump_path": str(out / "dump")}
    config_path = out / "config.json"
    config_path.write_text(json.dumps(config, indent=4))
    console.print(f"Configuration {config_path}: {json.dumps(config)}", soft_wrap=True)

    plain = train(make_model(), make_batches(), None)
    debugger = PrecisionDebugger(config_path=config_path)
    recorded = train(make_model(), make_batches(), debugger)

    console.print("\n[bold]Does the tool change the run?[/bold]")
    for index, (without, with_tool) in enumerate(zip(plain, recorded, strict=True)):
        console.print(f"  step {index}: loss without {without!r}  with {with_tool!r}  equal: {without == with_tool}")

    folder = next((out / "dump" / "step0").iterdir())
    dump = read_dump(folder)
    coverage = dump.coverage or {}
    console.print("\n[bold]What was recorded in step 0?[/bold]")
    console.print(
        f"  {coverage['records']} records, {coverage['bytes'] / 1e6:.2f} MB; tensors measured by kernel: "
        f"{counted(coverage['kernels'])}"
    )
    console.print(f"  calls not recorded: {counted(coverage['not_recorded'])}")
    console.print(f"  failures: {'; '.join(map(str, coverage['failures'])) or 'none'}\n")
    show_records(console, dump)

    seconds_without, seconds_with = measure_slow_down(debugger)
    console.print("\n[bold]How slow is it?[/bold]")
    console.print(
        f"  a step takes {seconds_without * 1e3:.0f} ms without and {seconds_with * 1e3:.0f} ms with the debugger "
        f"(x{seconds_with / seconds_without:.2f}, {backend('cpu')} kernels, everything written)"
    )
    console.print("\n[bold]Where are the files?[/bold]")
    for path in sorted(folder.iterdir()):
        console.print(f"  {path}", soft_wrap=True)
    if plain != recorded:
        raise SystemExit("The losses differ: the tool changed the run.")
    find_bug(console, out)


if __name__ == "__main__":
    main()
