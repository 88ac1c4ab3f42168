"""Make the two pictures of docs/report.md: a comparison with a planted fault, and a report with a NaN.

Usage: python tools/report_screenshots.py [FOLDER]

Trains a small transformer four times (two ranks, with and without the fault), runs ``msprobe compare --html`` and
``msprobe report``, and photographs both pages with headless Chromium (packages chromium, chromium-driver, selenium).
FOLDER keeps dumps and pages; by default they are thrown away.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger

IMAGES = Path(__file__).parents[1] / "docs" / "images"
STEPS, RANKS, LAYERS, WIDTH = 4, 2, 6, 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.o_proj(F.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_norm, self.post_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.post_norm(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 64)
        self.scale = 1.0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.log(self.norm(x) + self.scale) if self.scale != 1.0 else self.norm(x))


def train(dump_path: Path, rank: int, fault: str) -> None:
    """Train a few steps with the debugger around them; a fault is ``weight``, ``log`` or none."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if fault == "weight":
        with torch.no_grad():
            model.layers[2].mlp[0].weight[3, 5] += 0.5
    debugger = PrecisionDebugger(task="tensor", dump_path=str(dump_path), level="mix")
    torch.manual_seed(rank)
    for step in range(STEPS):
        tokens = torch.randint(0, 64, (2, 8))
        model.scale = 2.0 if fault == "log" and step == STEPS - 1 else 1.0
        debugger.start(model, rank_id=rank)
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def dump(folder: Path, faults: dict[int, str]) -> None:
    """Run every rank in a process of its own and put their folders together."""
    script = folder.parent / "train.py"  # run by its bare name: no path of this machine gets into a picture
    shutil.copy(__file__, script)
    for rank in range(RANKS):
        own = folder.with_name(f"{folder.name}_{rank}")
        command = [sys.executable, script.name, "--train", own.name, str(rank), faults.get(rank, "")]
        subprocess.run(command, cwd=folder.parent, check=True)
        for step in own.glob("step*"):
            (folder / step.name).mkdir(parents=True, exist_ok=True)
            shutil.move(step / f"rank{rank}", folder / step.name)
        shutil.rmtree(own)


def photograph(page: Path, picture: Path, *, dark: bool = False) -> None:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--lang=en-US", "--window-size=1440,1000"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get(page.resolve().as_uri())
        end = time.monotonic() + 30
        while driver.execute_script("return document.documentElement.dataset.ready") != "true":
            if time.monotonic() > end:
                raise SystemExit(f"{page} does not open")
            time.sleep(0.05)
        driver.execute_script("document.documentElement.dataset.theme = arguments[0]", "dark" if dark else "light")
        time.sleep(0.5)
        picture.parent.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(picture))
        print(picture)
    finally:
        driver.quit()


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        train(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else scratch).resolve()
        for name, faults in RUNS.items():
            dump(folder / name, faults)
        command = [sys.executable, "-m", "msprobe"]
        compare = [*command, "compare", "-tp", "target", "-gp", "golden", "-o", "result", "--html"]
        subprocess.run(compare, cwd=folder, check=False)  # exit code 1: it finds the planted fault
        subprocess.run([*command, "report", "nan", "-o", "report.html"], cwd=folder, check=True)
        photograph(folder / "result" / "compare_result.html", IMAGES / "comparison.png")
        photograph(folder / "report.html", IMAGES / "report.png", dark=True)


RUNS: dict[str, dict[int, str]] = {"golden": {}, "target": {1: "weight"}, "nan": {1: "log"}}

if __name__ == "__main__":
    main()
