"""The text of a reproducer script, filled in by :mod:`msprobe.replay.reproducer`; braces are doubled."""

TEMPLATE = """\
\"\"\"{title}

{findings}

python reproduce.py [DEVICE] repeats the call on {device}, and in float64 on the CPU, and prints how far each result is
from its reference. Exit code 1: it is still wrong. Only torch is needed. device.pt and reference.pt hold what was
found.
\"\"\"

import sys
from pathlib import Path

import torch
{imports}
HERE = Path(__file__).parent
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "{device}"
LIMITS = {limits}  # of the relative error of each result that was wrong: half of what it was
{own}

def call(t, device):
    return {call}


def reference(t, device):
    return {reference}


def inputs(device, wide):
    leaves, given = {{}}, []
    for index, tensor in enumerate(torch.load(HERE / "inputs.pt")):
        if wide and (tensor.is_floating_point() or tensor.is_complex()):
            tensor = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
        tensor = tensor.to(device)
        if index in {wanted}:
            leaves[index] = tensor.requires_grad_()
            tensor = tensor.clone()
        given.append(tensor)
    return given, leaves


def flat(value):
    if isinstance(value, (torch.Tensor, bool, int, float)):
        return [torch.as_tensor(value)]
    value = value.values() if isinstance(value, dict) else value
    return [] if value is None else [tensor for item in value for tensor in flat(item)]


def run(function, device, wide):
    given, leaves = inputs(device, wide)
    versions = [tensor._version for tensor in given]
    with torch.set_grad_enabled(bool(leaves)){autocast}:
        outputs = flat(function(given, device))
    written = [t for t, v in zip(given, versions) if t._version != v and not any(t is o for o in outputs)]
    results = [*outputs, *written] or given
    sent = torch.load(HERE / "gradients.pt") if leaves else []
    pairs = [(o, g.to(o)) for o, g in zip(outputs or written, sent) if g is not None and o.requires_grad]
    if pairs:
        ends, gradients = zip(*pairs)
        found = torch.autograd.grad(ends, list(leaves.values()), gradients, allow_unused=True)
        results += [gradient for gradient in found if gradient is not None]
    return [tensor.detach().cpu() for tensor in results]


def relative_error(found, wanted):
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return float(found.shape != wanted.shape or (found != wanted).any())
    found = found.to(wanted.dtype)
    if found.shape != wanted.shape or bool((found.isfinite() != wanted.isfinite()).any()):
        return float("inf")
    finite = wanted.isfinite()
    error = (found[finite] - wanted[finite]).norm()
    return float(error / wanted[finite].norm()) if error else 0.0


if __name__ == "__main__":
    wrong = False
    for index, (found, wanted) in enumerate(zip(run(call, DEVICE, False), run(reference, "cpu", True))):
        error = relative_error(found, wanted)
        limit = LIMITS[index] if index < len(LIMITS) else None
        bad = limit is not None and error >= limit
        wrong |= bad
        mark = " WRONG" if bad else ""
        print(f"result {{index}} {{list(found.shape)}} {{found.dtype}}: relative error {{error:.3g}}{{mark}}")
    sys.exit(wrong)
"""
